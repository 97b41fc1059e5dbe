"""Bodies made of the API's own description, with a few hostile values in them: no answer is a server error.

The description has every route that reads a body, so that new ones are tried too. The stage ``fuzz`` sends more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.http.microversions import MAXIMUM, MINIMUM, Version, format_version
from tests.support import fleet
from tests.support.api import IMAGE, TENANT, Front
from tests.support.deciding import add_hosts, scheduler_of
from tests.support.hostile import HOSTILE, SURROGATES

EXAMPLES = 60
"""Bodies of each operation and version."""
DESCRIPTION = "/v2.1/superconductor/openapi.json"
OTHER_SERVER = "0b9f4a0e-3c1d-4b53-9d1c-6b3a3b0f9f5e"
NUMBERS = (0, 1, -1, 2**31, 2**53, 2**63, 10**30, 0.5, 1e300)
SHORT = tuple(each for each in (*HOSTILE, *SURROGATES) if len(each) < 1000)

ANY_HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(SHORT),
    st.sampled_from(NUMBERS),
    st.sampled_from([None, True, [], {}, [None], {"": None}, {"a": {"a": {}}}]),
)


@st.composite
def hostile_values(draw: st.DrawFn) -> Any:
    """One of them. Hypothesis prints strategies to itself: this one by its name, which for hundreds of fields saves seconds."""
    return draw(ANY_HOSTILE)


hostile = hostile_values()


def made_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that mostly fit a schema; one in a few is hostile."""
    return st.one_of(_fitting(schema), _fitting(schema), _fitting(schema), hostile)


def _fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "anyOf" in schema:
        return st.one_of([_fitting(branch) for branch in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", "object")
    return st.one_of([_of_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def _of_kind(kind: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    match kind:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer" | "number":
            return st.integers(schema.get("minimum", -(2**40)), schema.get("maximum", 2**40))
        case "array":
            items = schema.get("items")
            return st.lists(made_of(items) if items else hostile, max_size=3)
        case "object":
            return _objects(schema)
        case _:
            return st.sampled_from([IMAGE, "1", "a", "x" * min(schema.get("maxLength", 20), 300), "2030-01-01T00:00:00Z"])


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    required = set(schema.get("required", ()))
    fields = {name: made_of(each) for name, each in schema.get("properties", {}).items()}
    known = st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name in required},
        optional={name: each for name, each in fields.items() if name not in required},
    )
    more = schema.get("additionalProperties")
    if not isinstance(more, dict):
        return known
    extra = st.dictionaries(st.sampled_from(["role", *SHORT]), made_of(more), max_size=2)
    return st.builds(lambda one, other: {**other, **one}, known, extra)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    made = Front(tmp_path_factory.mktemp("described"))
    server = made.boot("web", metadata={"role": "web"})
    made.hand_over()
    made.activate(server)
    add_hosts(made, [fleet.node("h9")])
    with scheduler_of(made):
        yield made
    made.close()


def bodies(front: Front, version: Version) -> dict[tuple[str, str], dict[str, Any]]:
    """The schema of the body of each operation that has one, by method and path."""
    answer = front.get(DESCRIPTION, {"OpenStack-API-Version": f"compute {format_version(version)}"})
    return {
        (method.upper(), path): operation["requestBody"]["content"]["application/json"]["schema"]
        for path, item in answer.json["paths"].items()
        for method, operation in item.items()
        if method != "parameters" and "requestBody" in operation
    }


@pytest.mark.parametrize("version", [MINIMUM, MAXIMUM], ids=format_version)
def test_no_body_is_a_server_error(front: Front, version: Version) -> None:
    found = bodies(front, version)
    assert ("POST", "/v2.1/servers") in found
    for (method, path), schema in found.items():
        if path.endswith("/os-keypairs"):
            schema["properties"]["keypair"]["required"] = ["name", "public_key"]  # to generate pairs takes long
        if path.endswith("/servers/{server_id}/action"):
            schema["anyOf"] = [branch for branch in schema["anyOf"] if branch["required"] != ["forceDelete"]]
        known = {"server_id": front.uuids()[0], "flavor_id": "1", "project_id": "admin", "key": "role", "name": "mine"}
        _try(front, version, method, path, schema, known)


def _try(front: Front, version: Version, method: str, path: str, schema: dict[str, Any], known: dict[str, str]) -> None:
    parts = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    places = st.fixed_dictionaries(
        {part: st.one_of(st.just(known.get(part, "1")), st.sampled_from([OTHER_SERVER, *SHORT])) for part in parts}
    )

    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(made_of(schema), places, st.sampled_from([{}, TENANT]))
    def tried(body: Any, values: dict[str, str], role: dict[str, str]) -> None:
        filled = path
        for name, value in values.items():
            filled = filled.replace(f"{{{name}}}", quote(value, safe="", errors="surrogatepass"))
        headers = {**role, "OpenStack-API-Version": f"compute {format_version(version)}", "Content-Type": "application/json"}
        answer = front.client.simulate_request(method, filled, headers=headers, body=json.dumps(body).encode())
        assert answer.status_code < 500 or answer.status_code == 501, f"{method} {filled} {body!r:.500}: {answer.text}"

    tried()


@pytest.mark.parametrize("version", [MINIMUM, MAXIMUM], ids=format_version)
def test_every_operation_refuses_bodies_without_a_json_object(front: Front, version: Version) -> None:
    raw = (b"[" * 100_000, b"{" * 1000, b'{"a": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"", b"null", b"[]", b'{"\\ud800": 1}', b"{}")
    headers = {"OpenStack-API-Version": f"compute {format_version(version)}", "Content-Type": "application/json"}
    for method, path in bodies(front, version):
        filled = re.sub(r"\{\w+\}", IMAGE, path)
        for each in (*raw, b'{"x": "' + b"y" * front.settings.max_body_size + b'"}'):
            answer = front.client.simulate_request(method, filled, headers=headers, body=each)
            assert 400 <= answer.status_code < 500 or (each == b"{}" and answer.status_code == 200), (method, path, each[:20])
