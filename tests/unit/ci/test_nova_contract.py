"""How misfits with Nova's schemas are found and told, without Nova."""

from __future__ import annotations

from typing import Any

import jsonschema

from ci import nova_contract


class Code:
    """As Nova's decorators leave a method."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_paths_are_compared_without_parameter_names() -> None:
    assert nova_contract.plain_path("/servers/{server_id}/tags/{id}") == "/servers/{}/tags/{}"


def test_a_misfit_names_the_refusals_of_every_branch() -> None:
    branch = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"server": {"oneOf": [branch, {"type": "null"}]}}}
    [error] = jsonschema.Draft202012Validator(schema).iter_errors({"server": {"id": 1, "more": 2}})
    told = nova_contract.describe_error(error)
    assert told.startswith("server: no branch fits: ")
    assert "server/id: 1 is not of type 'string'" in told
    assert "'more' was unexpected" in told
    assert "is not of type 'null'" in told


def test_a_method_that_was_removed_is_not_served() -> None:
    assert not nova_contract.is_served(Code(removed=True), (2, 1))
