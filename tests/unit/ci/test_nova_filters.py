"""How misfits with the schemas, the filters and the weighers of Nova are found and told, without Nova."""

from __future__ import annotations

from typing import Any

import jsonschema

from ci import nova_contract
from scheduler.plugins import FILTERS_NAMESPACE, WEIGHERS_NAMESPACE, registered_plugins
from tests.conformance.scheduler import differences, worlds
from tests.conformance.scheduler.__main__ import Misfit, minimised
from tests.conformance.scheduler.worlds import Json


def test_the_same_seed_makes_the_same_world() -> None:
    assert worlds.world(7) == worlds.world(7) != worlds.world(8)


def test_every_filter_and_weigher_is_compared_or_excused() -> None:
    compared = {*differences.FILTERS.values(), *differences.WEIGHERS}
    registered = {*registered_plugins(FILTERS_NAMESPACE), *registered_plugins(WEIGHERS_NAMESPACE)}
    assert compared | differences.OURS_ALONE.keys() == registered
    assert compared.isdisjoint(differences.OURS_ALONE)


def test_the_smallest_world_has_only_the_misfit() -> None:
    def misfits(world: Json) -> list[Misfit]:
        [request] = world["requests"]
        disabled = [host["node"] for host in world["hosts"] if host["disabled"]]
        return [Misfit("F", 0, node, True, False) for node in disabled if request["flavor"]["extra_specs"]]

    world = worlds.world(1)
    world["requests"][3]["flavor"]["extra_specs"] = {"a": "1", "b": "2"}
    world["hosts"][5]["disabled"] = True
    smallest, found = minimised(world, Misfit("F", 3, "some host", True, False), misfits)
    [host], [request] = smallest["hosts"], smallest["requests"]
    assert host["disabled"]
    assert found == Misfit("F", 0, host["node"], True, False)
    assert (smallest["aggregates"], smallest["servers"]) == ([], {})
    assert request["left"] in ([], [0])
    assert len(request["flavor"]["extra_specs"]) == 1
    assert (request["image"], request["group"], request["hints"], request["ignore_hosts"]) == (None, None, {}, [])


def test_a_difference_is_allowed_only_with_both_answers() -> None:
    world = worlds.world(1)
    world["settings"] |= {"isolated_hosts": [], "isolated_images": [worlds.IMAGES[0]]}
    request = world["requests"][0] | {"image": {"id": worlds.IMAGES[0], "properties": {}}}
    case = differences.Case(world, request, world["hosts"][0])
    [declared] = [each for each in differences.FILTER_DIFFERENCES if "without isolated_hosts" in each.title]
    assert declared.allows("IsolatedHostsFilter", case, nova=False, ours=True)
    assert not declared.allows("IsolatedHostsFilter", case, nova=True, ours=False)
    assert not declared.allows("SameHostFilter", case, nova=False, ours=True)
    assert not declared.allows("IsolatedHostsFilter", case._replace(request=request | {"image": None}), nova=False, ours=True)


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
