"""Whatever name can be given can stand in a path: what it names can be shown and deleted, through the HTTP server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from service.periodic import wait_until
from tests.functional.cli.test_cli_standalone import file_of
from tests.support.commands import standalone
from tests.support.keys import ED25519
from tests.support.region import IMAGE

NAMES = (
    *(".", "..", "...", ".a", "a.", "..a", "%2e", "%2E%2e", "a%2fb", "a%5cb", "a/b", "/", "a\\b", "\\", "a/../b"),
    *(
        " ",
        "a b",
        " a",
        "a ",
        "\t",
        "a\nb",
        "a\rb",
        "\x7f",
        "\x01",
        "",
        "é",
        "e\N{COMBINING ACUTE ACCENT}",
        "\N{CLOUD}",
        "\N{NO-BREAK SPACE}",
    ),
    *("a?b", "?", "a#b", "a;b", "a&b=c", "a+b", "a,b", "a:b", "a@b", "~", "*", "a|b", '"', "'", "<b>", "null", "0", "-1", "{id}"),
)
HEADERS = {"Content-Type": "application/json", "X-Roles": "admin", "OpenStack-API-Version": "compute 2.96"}


class Door:
    """Sends paths as they are: clients would resolve dot segments."""

    def __init__(self, endpoint: str) -> None:
        self.parts = urlsplit(endpoint)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.parts.hostname or "", self.parts.port)
        connection.request(method, self.parts.path + path, json.dumps(body) if body is not None else None, HEADERS)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("standalone")
    with standalone(folder / "state", file_of(folder, "")) as endpoint:
        yield Door(endpoint)


@pytest.fixture(scope="module")
def server(door: Door) -> str:
    _, flavors = door.ask("GET", "/flavors")
    asked = {"name": "web", "flavorRef": flavors["flavors"][0]["id"], "imageRef": IMAGE, "networks": "none"}
    _, made = door.ask("POST", "/servers", {"server": asked})
    path = f"/servers/{made['server']['id']}"
    assert wait_until(lambda: bool(door.ask("GET", path)[1]["server"]["status"] == "ACTIVE"), 60.0)
    return path


@pytest.fixture(scope="module")
def flavor(door: Door) -> str:
    _, made = door.ask("POST", "/flavors", {"flavor": {"name": "named", "vcpus": 1, "ram": 64, "disk": 0}})
    return f"/flavors/{made['flavor']['id']}"


Make = Callable[[Door, str, str, str], tuple[int, str]]
"""Gives a name to something; returns the status, and the path that the name is to be added to."""


def flavor_id(door: Door, server: str, flavor: str, name: str) -> tuple[int, str]:
    body = {"name": f"of {name.encode().hex()}", "id": name, "vcpus": 1, "ram": 64, "disk": 0}
    return door.ask("POST", "/flavors", {"flavor": body})[0], "/flavors/"


def extra_spec(door: Door, server: str, flavor: str, name: str) -> tuple[int, str]:
    path = f"{flavor}/os-extra_specs"
    return door.ask("POST", path, {"extra_specs": {name: "v"}})[0], f"{path}/"


def metadata(door: Door, server: str, flavor: str, name: str) -> tuple[int, str]:
    return door.ask("POST", f"{server}/metadata", {"metadata": {name: "v"}})[0], f"{server}/metadata/"


def tag(door: Door, server: str, flavor: str, name: str) -> tuple[int, str]:
    return door.ask("PUT", f"{server}/tags", {"tags": [name]})[0], f"{server}/tags/"


def keypair(door: Door, server: str, flavor: str, name: str) -> tuple[int, str]:
    body = {"name": name, "public_key": ED25519, "type": "ssh"}
    return door.ask("POST", "/os-keypairs", {"keypair": body})[0], "/os-keypairs/"


@pytest.mark.parametrize("make", [flavor_id, extra_spec, metadata, tag, keypair])
def test_what_is_named_can_be_shown_and_deleted(door: Door, server: str, flavor: str, make: Make) -> None:
    served = []
    for name in NAMES:
        made, path = make(door, server, flavor, name)
        assert made < 500
        if made < 300:
            place = path + quote(name, safe="")
            assert (name, *(door.ask(method, place)[0] < 300 for method in ("GET", "DELETE"))) == (name, True, True)
            served.append(name)
    assert "..." in served
    assert not {".", ".."} & {*served}
