"""Whatever text a field of a request holds: it is refused by name, or it is stored, shown, found and built, on every database."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from objects import text
from tests.support.api import IMAGE, NEWEST, TENANT, Front, with_status
from tests.support.examples import examples
from tests.support.fronts import front_on_servers
from tests.support.hostile import HOSTILE, TEXTS

HEADERS = NEWEST | TENANT | {"X-Roles": "admin"}
GOOD: dict[str, Any] = {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}
DEVICE = {"uuid": IMAGE, "source_type": "image", "destination_type": "local", "boot_index": 0, "delete_on_termination": True}

Fields = Callable[[str], dict[str, Any]]
SHOWN: dict[str, tuple[Fields, Callable[[dict[str, Any]], Any], Callable[[str], dict[str, str]] | None]] = {
    "name": (lambda t: {"name": t}, lambda s: s["name"], None),
    "description": (lambda t: {"description": t}, lambda s: s["description"], None),
    "metadata value": (
        lambda t: {"metadata": {"k": t}},
        lambda s: s["metadata"]["k"],
        lambda t: {"metadata": json.dumps({"k": t})},
    ),
    "metadata key": (
        lambda t: {"metadata": {t: "v"}},
        lambda s: next(iter(s["metadata"])),
        lambda t: {"metadata": json.dumps({t: "v"})},
    ),
    "tag": (lambda t: {"tags": [t]}, lambda s: s["tags"][0], lambda t: {"tags": t}),
}
"""Fields that are shown: how a text is put in, how it is read out of the detailed server, and by which filter it is found."""
DEVICE_FIELDS = ("guest_format", "device_type", "disk_bus", "tag", "device_name", "uuid", "volume_size")


def with_device(field: str) -> Fields:
    return lambda t: {"block_device_mapping_v2": [DEVICE | {field: t}]}


SILENT: dict[str, Fields] = {
    **{field: with_device(field) for field in DEVICE_FIELDS},
    "admin_pass": lambda t: {"adminPass": t},
    "key_name": lambda t: {"key_name": t},
    "security_group": lambda t: {"security_groups": [{"name": t}]},
    "user_data": lambda t: {"user_data": t},
    "encoded user_data": lambda t: {"user_data": base64.b64encode(t.encode()).decode()},
    "zone": lambda t: {"availability_zone": t},
    "flavor": lambda t: {"flavorRef": t},
    "image": lambda t: {"imageRef": t},
    "networks": lambda t: {"networks": t},
    "unknown": lambda t: {t: t},
}
"""Other fields of a server."""
HINTS: dict[str, Fields] = {
    "hint": lambda t: {"custom": t},
    "hint list": lambda t: {"custom": [t, "x"]},
    "hint key": lambda t: {t: "x"},
    "group": lambda t: {"group": t},
    "query": lambda t: {"query": json.dumps(["=", "$hypervisor_type", t])},
    "raw query": lambda t: {"query": t},
    "ignore_hosts": lambda t: {"ignore_hosts": [t]},
    "same_host": lambda t: {"same_host": t},
    "near": lambda t: {"build_near_host_ip": t, "cidr": t},
}


front = front_on_servers(scope="module")


def built(front: Front, server: str) -> None:
    """Staged in a cell and told of in its feed, as conductors and an agent do it."""
    front.bring_up(server)


def shown(front: Front, server: str) -> dict[str, Any]:
    answer = with_status(front.get(f"/v2.1/servers/{server}", HEADERS), 200)
    document: dict[str, Any] = answer.json["server"]
    return document


def check(front: Front, answer: Any, words: str) -> str | None:
    """The server's uuid if it was accepted, and then it runs; None if it was refused in a sentence that can be shown."""
    assert answer.status_code in (202, 400, 413), (words[:80], answer.text)
    if answer.status_code == 413:
        return None  # several long texts in one body
    if answer.status_code == 400:
        message = answer.json["badRequest"]["message"]
        assert len(message) < 1000
        assert text.is_safe(message)
        return None
    server = str(answer.json["server"]["id"])
    built(front, server)
    return server


@pytest.mark.parametrize("name", SHOWN)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=TEXTS)
def test_accepted_texts_are_returned_and_can_be_searched(front: Front, name: str, words: str) -> None:
    put, read, found_by = SHOWN[name]
    server = check(front, front.post({"server": GOOD | put(words)}, HEADERS), words)
    if server is None:
        return
    document = shown(front, server)
    assert (document["status"], read(document)) == ("ACTIVE", words)
    if found_by is not None:
        listed = with_status(front.get("/v2.1/servers", HEADERS, **found_by(words), limit="1000"), 200)
        assert server in [each["id"] for each in listed.json["servers"]]
    front.delete(server, HEADERS)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from([*SILENT, *HINTS]), words=TEXTS)
def test_other_fields_are_accepted_and_built_or_refused(front: Front, name: str, words: str) -> None:
    body = {"server": GOOD | SILENT[name](words)} if name in SILENT else {"server": GOOD, "os:scheduler_hints": HINTS[name](words)}
    server = check(front, front.post(body, HEADERS), words)
    if server is not None:
        assert shown(front, server)["status"] == "ACTIVE"
        front.delete(server, HEADERS)


def test_lists_by_everything_still_answer(front: Front) -> None:
    """Whoever boots the oddest servers that are accepted takes nobody's list down."""
    for words in HOSTILE:
        front.post({"server": GOOD | {"metadata": {"k": words}, "description": words, "tags": [words]}}, HEADERS)
        for name in ("guest_format", "disk_bus"):
            front.post({"server": GOOD | SILENT[name](words)}, HEADERS)
        front.post({"server": GOOD, "os:scheduler_hints": {"custom": words, words[:200]: "x"}}, HEADERS)
    for query in (
        {"image": IMAGE}, {"flavor": "1"}, {"key_name": "k"}, {"tags": "t"}, {"not-tags-any": "t"}, {"metadata": '{"k": "v"}'},
        {"description": "d"}, {"config_drive": "1"}, {"sort_key": "display_description"}, {"sort_key": "key_name"},
    ):  # fmt: skip
        answer = front.get("/v2.1/servers/detail", HEADERS, all_tenants="1", **query)
        assert answer.status_code == 200, (query, answer.text)


@pytest.mark.parametrize(
    "words", ["tab\tand\nlines\r\n", "😀", "👩\u200d👩\u200d👧", "Grüße", "\u202eabc", "a\u0301", "\\u0000", ""]
)
def test_texts_in_order_are_accepted_as_metadata(front: Front, words: str) -> None:
    assert front.post({"server": GOOD | {"metadata": {"k": words}}}, HEADERS).status_code == 202


@pytest.mark.parametrize("odd", ["a\0b", "\x1b[31m", "\x85", "\x7f"])
def test_a_refusal_names_the_field_but_no_secret(front: Front, odd: str) -> None:
    for fields, field in (
        ({"metadata": {"k": odd}}, "server.metadata.k: has a control character"),
        ({"block_device_mapping_v2": [DEVICE | {"disk_bus": odd}]}, "server.block_device_mapping_v2[0].disk_bus: has a control"),
        ({"tags": ["t", odd]}, "server.tags[1]: has a control character"),
        ({"adminPass": odd}, "server.adminPass: has a control character"),
    ):
        answer = front.post({"server": GOOD | fields}, HEADERS)
        assert answer.json["badRequest"]["message"].startswith(field), answer.text
        assert odd not in answer.text
    hinted = front.post({"server": GOOD, "os:scheduler_hints": {odd: "x"}}, HEADERS)
    assert hinted.json["badRequest"]["message"].startswith("os:scheduler_hints: the key '")


@pytest.mark.parametrize("path", ["servers", "flavors", "servers/detail", "limits"])
def test_parameters_and_paths_with_control_characters_are_refused(front: Front, path: str) -> None:
    for query in ("name=%00", "marker=a%1b", "%00=x", "whatever=%7f", "tags=a,%00"):
        answer = front.client.simulate_get(f"/v2.1/{path}", query_string=query, headers=HEADERS)
        assert answer.status_code == 400, (query, answer.text)
    assert front.get(f"/v2.1/{path}/%00", HEADERS).status_code in (400, 404)


def test_an_idempotency_key_with_control_characters_is_refused(front: Front) -> None:
    answer = with_status(front.post({"server": GOOD}, HEADERS | {"Idempotency-Key": "a\x85b"}), 400)
    assert answer.json["badRequest"]["message"].startswith("Idempotency-Key: has a control character")
