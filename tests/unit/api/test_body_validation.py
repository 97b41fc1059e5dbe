"""A wrong body is answered with one sentence that names the field."""

from __future__ import annotations

import io
from typing import Any

import falcon
import falcon.testing
import pytest

from api.http import schemas
from api.http.validation import Validator, is_uuid, read_body
from objects import errors

UUID = "70a599e0-31e7-49b7-b260-868f441e862b"
DEVICE = {"uuid": UUID, "source_type": "image", "destination_type": "local", "boot_index": 0, "delete_on_termination": True}
GOOD: dict[str, Any] = {"name": "web", "flavorRef": "1", "imageRef": UUID, "networks": "none"}


def server(**fields: Any) -> dict[str, Any]:
    return {"server": GOOD | fields}


def device(**fields: Any) -> dict[str, Any]:
    return server(block_device_mapping_v2=[DEVICE | fields])


def without(name: str) -> dict[str, Any]:
    return {"server": {key: value for key, value in GOOD.items() if key != name}}


@pytest.fixture(scope="module")
def newest() -> Validator:
    return Validator(schemas.create((2, 53)))


@pytest.fixture(scope="module")
def oldest() -> Validator:
    return Validator(schemas.create((2, 1)))


ACCEPTED = [
    {},
    {"flavorRef": 1},
    {"imageRef": ""},
    {"imageRef": UUID.replace("-", "")},
    {"networks": "auto"},
    {"networks": [{"uuid": UUID, "tag": "nic"}]},
    {"networks": [{"port": None}]},
    {"min_count": "2", "max_count": 3},
    {"block_device_mapping_v2": [DEVICE]},
    {"block_device_mapping_v2": [DEVICE | {"boot_index": "0", "tag": "disk"}]},
    {"user_data": "I2Nsb3VkLWNvbmZpZwo="},
    {"metadata": {"simulated:outcome": "fail", "a b": ""}},
    {"tags": ["one", "two"], "description": None},
    {"config_drive": "yes", "key_name": "key"},
    {"security_groups": [{"name": "default"}]},
    {"OS-DCF:diskConfig": "AUTO"},
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_what_clients_send_is_accepted(newest: Validator, fields: dict[str, Any]) -> None:
    """The forms that the standard clients use."""
    newest.check_body(server(**fields))


REFUSED: list[tuple[Any, str]] = [
    ([], "body"),
    ({}, "server: is required"),
    ({"server": []}, "server: "),
    ({"server": GOOD, "extra": 1}, "extra: is not a field"),
    (without("name"), "server.name: is required"),
    (without("flavorRef"), "server.flavorRef: is required"),
    (without("networks"), "server.networks: is required"),
    (server(name=5), "server.name: 5 is not of type string"),
    (server(name=""), "server.name: must not be empty"),
    (server(name=" web"), "server.name: "),
    (server(name="a\nb"), "server.name: "),
    (server(name="a\x00b"), "server.name: "),
    (server(name="x" * 256), "server.name: is too long"),
    (server(flavorRef=[]), "server.flavorRef: "),
    (server(imageRef="cirros"), "server.imageRef: "),
    (server(imageRef=None), "server.imageRef: "),
    (server(networks="all"), "server.networks: "),
    (server(networks=[{"uuid": "x"}]), "server.networks[0].uuid: "),
    (server(min_count=0), "server.min_count: "),
    (server(min_count="many"), "server.min_count: "),
    (server(max_count=1.5), "server.max_count: "),
    (server(max_count=True), "server.max_count: "),
    (server(max_count=10**30), "server.max_count: "),
    (server(max_count="9" * 5000), "server.max_count: "),
    (server(availability_zone=7), "server.availability_zone: "),
    (server(metadata={"a": 1}), "server.metadata.a: "),
    (server(metadata={"a/b": "c"}), "server.metadata: "),
    (server(metadata={"a": "x" * 256}), "server.metadata.a: "),
    (server(user_data="not base64!"), "server.user_data: "),
    (server(user_data="AAAA" * 20000), "server.user_data: "),
    (server(tags=["a,b"]), "server.tags[0]: "),
    (server(tags=["x" * 61]), "server.tags[0]: is too long"),
    (server(tags=["a"] * 51), "server.tags: is too long"),
    (server(description=5), "server.description: "),
    (server(config_drive="perhaps"), "server.config_drive: "),
    (server(security_groups=["default"]), "server.security_groups[0]: "),
    (device(source_type="volume"), "server.block_device_mapping_v2[0].source_type: "),
    (device(source_type=None), "server.block_device_mapping_v2[0].source_type: "),
    (device(destination_type="volume"), "server.block_device_mapping_v2[0].destination_type: "),
    (device(boot_index="first"), "server.block_device_mapping_v2[0].boot_index: "),
    (server(block_device_mapping_v2=[{}]), "server.block_device_mapping_v2[0].source_type: is required"),
    (server(adminPass=""), "server.adminPass: "),
    (server(adminPass="x" * 256), "server.adminPass: "),
    (server(personality=[{"path": "/a"}]), "server.personality[0].contents: is required"),
    (server(personality=[{"path": "/a", "contents": "%"}]), "server.personality[0].contents: "),
    ({"server": GOOD, "os:scheduler_hints": []}, "os:scheduler_hints: "),
    ({"server": GOOD, "os:scheduler_hints": {"group": 5}}, "os:scheduler_hints.group: "),
    ({"server": GOOD, "OS-SCH-HNT:scheduler_hints": {"group": [1]}}, "OS-SCH-HNT:scheduler_hints.group[0]: "),
]  # fmt: skip


@pytest.mark.parametrize(("body", "sentence"), REFUSED)
def test_what_is_wrong_is_refused_by_name(newest: Validator, body: Any, sentence: str) -> None:
    """The message begins with the path of the field, and stays short whatever was sent."""
    with pytest.raises(errors.Invalid) as refused:
        newest.check_body(body)
    assert str(refused.value).startswith(sentence)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("secret", ["user_data", "metadata", "adminPass"])
def test_a_secret_is_not_repeated_in_the_message(newest: Validator, secret: str) -> None:
    """What may hold passwords goes into no message, and so into no log."""
    value: Any = "hunter2-hunter2!" if secret == "user_data" else {"a": ["hunter2-hunter2!"]}
    with pytest.raises(errors.Invalid) as refused:
        newest.check_body(server(**{secret: value}))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("field", "value"), [("tags", []), ("description", "d"), ("networks", "none")])
def test_the_oldest_version_rejects_newer_fields(oldest: Validator, field: str, value: Any) -> None:
    """As 2.1 has it: no tags, no description, no words for networks."""
    with pytest.raises(errors.Invalid, match=rf"^server\.{field}: "):
        oldest.check_body({"server": {"name": "web", "flavorRef": "1", field: value}})
    oldest.check_body({"server": {"name": "web", "flavorRef": "1"}})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"server": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'"\xed\xa0\x80"', "not JSON"),
        (b'{"a":' * 50000, "nested too deeply"),
    ],
)
def test_a_non_object_body_is_refused(raw: bytes, reason: str) -> None:
    """Whatever the bytes."""
    with pytest.raises(errors.Invalid, match=reason):
        read_body(request(raw), 10**6)


def test_an_oversized_body_is_refused_unread() -> None:
    """One byte over the limit is too much, the limit itself is not."""
    assert read_body(request(b'{"a": "b"}'), 10) == {"a": "b"}
    with pytest.raises(falcon.HTTPContentTooLarge):
        read_body(request(b'{"a": "bb"}'), 10)


def test_another_media_type_is_refused() -> None:
    """A form is not JSON; JSON with a charset is."""
    assert read_body(request(b"{}", "application/json; charset=utf-8"), 10) == {}
    for other in ("application/x-www-form-urlencoded", "text/plain", ""):
        with pytest.raises(falcon.HTTPUnsupportedMediaType):
            read_body(request(b"{}", other), 10)


def test_uuids_are_told_from_other_text() -> None:
    """With dashes or without, in any case; nothing looser."""
    assert is_uuid(UUID)
    assert is_uuid(UUID.upper())
    assert is_uuid(UUID.replace("-", ""))
    for other in ("", "x", UUID[:-1], UUID + "0", "{" + UUID + "}", "urn:uuid:" + UUID, UUID.replace("7", "g"), "\x00" * 36):
        assert not is_uuid(other)


def request(raw: bytes, content_type: str = "application/json") -> falcon.Request:
    environ = falcon.testing.create_environ(method="POST", headers={"Content-Type": content_type})
    environ["wsgi.input"] = io.BytesIO(raw)
    environ["CONTENT_LENGTH"] = str(len(raw))
    return falcon.Request(environ)
