"""The description that the API gives of itself: complete, and valid."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from api.http.microversions import MAXIMUM, MINIMUM, Microversion, Version, format_version
from api.http.openapi import DIALECT
from api.http.validation import VALIDATED
from tests.support.api import TENANT, Front, with_status
from tests.support.routes import routes_of

PATH = "/v2.1/superconductor/openapi.json"
VERSIONS = sorted({MINIMUM, MAXIMUM, *(change.value for change in Microversion if change.value <= MAXIMUM)})
WITHOUT_BODY = {
    ("PUT", "/v2.1/servers/{server_id}/tags/{tag}"),
    ("PUT", "/image/v2/images/{image_id}/file"),
    ("PUT", "/image/v2/images/{image_id}/tags/{tag}"),
    ("POST", "/v2.1/superconductor/holds/{hold_id}/boot"),
    ("POST", "/v2.1/superconductor/hosts/{host}/accept"),
}
"""Methods that usually take a body, and take none here, or one that is not JSON."""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    made = Front(tmp_path_factory.mktemp("openapi"))
    yield made
    made.close()


def described(front: Front, version: Version = MAXIMUM, headers: dict[str, str] = TENANT) -> dict[str, Any]:
    answer = with_status(front.get(PATH, {**headers, "OpenStack-API-Version": f"compute {format_version(version)}"}), 200)
    document: dict[str, Any] = answer.json
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method.upper(), path, operation


def body_of(operation: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema


def test_every_route_is_described(front: Front) -> None:
    found = {(method, path) for version in VERSIONS for method, path, _ in operations(described(front, version))}
    assert found == set(routes_of(front.app))


def test_version_documents_have_a_described_status(front: Front) -> None:
    for method, path, operation in operations(described(front)):
        if "security" not in operation:
            status = str(front.get(path, TENANT).status_code)
            assert {status, f"{status[0]}XX"} & operation["responses"].keys(), (method, path, status)


def test_a_version_has_its_own_routes_and_bodies(front: Front) -> None:
    older, newer = (
        {(method, path): operation for method, path, operation in operations(described(front, version))}
        for version in ((2, 1), (2, 52))
    )
    assert {key for key in newer if key[1] == "/v2.1/servers/{server_id}/tags"}
    assert not {key for key in older if key[1] == "/v2.1/servers/{server_id}/tags"}
    create = ("POST", "/v2.1/servers")
    assert "tags" in body_of(newer[create])["properties"]["server"]["properties"]
    assert "tags" not in body_of(older[create])["properties"]["server"]["properties"]
    acts = ("POST", "/v2.1/servers/{server_id}/action")
    assert {tuple(body["required"]) for body in body_of(newer[acts])["anyOf"]} >= {("os-start",), ("resize",), ("lock",)}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("version", VERSIONS, ids=format_version)
def test_a_description_is_consistent(front: Front, version: Version) -> None:
    document = described(front, version)
    assert (document["openapi"], document["info"]["version"]) == (DIALECT, format_version(version))
    identifiers = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(identifiers) == len(set(identifiers))
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        found = document
        for step in reference.split("/"):
            found = found[step]
    for method, path, operation in operations(document):
        given = document["paths"][path].get("parameters", [])
        assert [each["name"] for each in given if each.get("in") == "path"] == re.findall(r"\{(\w+)\}", path)
        assert operation["summary"], (method, path)
        assert operation["responses"], (method, path)
        if "requestBody" in operation:
            jsonschema.Draft202012Validator.check_schema(body_of(operation))
            assert r"\Z" not in json.dumps(body_of(operation)), "other languages have no such end of a pattern"


def test_operations_with_a_body_name_their_validators(front: Front) -> None:
    for (method, path), handler in routes_of(front.app).items():
        if method in ("POST", "PUT") and (method, path) not in WITHOUT_BODY:
            names = getattr(handler, VALIDATED, ())
            assert names, f"{method} {path}: @validated_by says which attributes of the resource validate the body"
            resource = inspect.getsource(type(handler.__self__))  # type: ignore[attr-defined]  # a bound method
            for name in names:
                assert f"self.{name} =" in resource, (method, path, name)


def test_a_body_that_was_sent_fits_its_description(front: Front) -> None:
    operation = described(front, (2, 52))["paths"]["/v2.1/servers"]["post"]
    validator = jsonschema.Draft202012Validator(body_of(operation))
    server = {"name": "web", "flavorRef": "1", "imageRef": "", "networks": "none", "tags": ["blue"]}
    assert validator.is_valid({"server": server})
    assert not validator.is_valid({"server": server | {"unknown": 1}})
    assert not validator.is_valid({})


def test_nobody_without_a_role_reads_it(front: Front) -> None:
    assert front.get(PATH, {"X-Project-Id": "p1", "X-Roles": "nobody"}).status_code == 403
