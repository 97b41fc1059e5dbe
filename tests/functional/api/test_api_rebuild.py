"""The action ``rebuild`` with what is given in confidence, and with another key: sealed, told once, or refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from api.lookup.boot_secrets import PASSWORD_LENGTH
from api.opts import ApiSettings
from db.api.operations import accepting, operations
from db.api.servers import mappings
from objects.operation import Operation
from objects.spec import BootSecrets, InjectedFile
from objects.task import DriveChanges
from service.vault import Vault, new_key
from tests.support.api import IMAGE, NEWEST, TENANT, Front, with_status
from tests.support.keys import ED25519, RSA

NEW = TENANT | NEWEST
OLD = TENANT | {"OpenStack-API-Version": "compute 2.56"}
USER_DATA = base64.b64encode(b"#cloud-config: marked-hunter2").decode()
FILE = {"path": "/etc/motd", "contents": base64.b64encode(b"marked-hunter2").decode()}
VAULT = Vault([new_key()])


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    yield from made(tmp_path, VAULT)


@pytest.fixture
def keyless(tmp_path: Path) -> Iterator[Front]:
    yield from made(tmp_path, None)


def made(folder: Path, vault: Vault | None, **settings: Any) -> Iterator[Front]:
    front = Front(folder, ApiSettings(**settings), vault)
    yield front
    front.close()


def booted(front: Front, **fields: Any) -> str:
    uuid = front.boot("web", TENANT, **fields)
    front.bring_up(uuid)
    return uuid


def ask(front: Front, server: str, headers: dict[str, str] | None = None, **value: Any) -> falcon.testing.Result:
    body = {"rebuild": {"imageRef": IMAGE} | value}
    return front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=headers or NEW, json=body)


def rebuilt(front: Front, server: str, headers: dict[str, str] | None = None, **value: Any) -> dict[str, Any]:
    """The ``server`` of the answer."""
    answer = with_status(ask(front, server, headers, **value), 202)
    document: dict[str, Any] = answer.json["server"]
    return document


def operation(front: Front, server: str) -> Operation:
    return front.database.read(operations.open_for, [server])[server]


def kept(front: Front, server: str) -> BootSecrets | None:
    uuid = operation(front, server).uuid
    sealed = front.database.read(operations.kept_secrets, [uuid]).get(uuid)
    return None if sealed is None else VAULT.open(uuid, sealed)


def add_key(front: Front, name: str, key: str = ED25519) -> None:
    body = {"keypair": {"name": name, "public_key": key}}
    assert front.client.simulate_post("/v2.1/os-keypairs", headers=TENANT, json=body).status_code == 200


def shown_key(front: Front, server: str) -> str | None:
    key: str | None = front.get(f"/v2.1/servers/{server}", NEW).json["server"]["key_name"]
    return key


# -- secrets -------------------------------------------------------------------------------------------------------------------


def test_a_password_is_made_told_and_kept_sealed(front: Front) -> None:
    server = booted(front)
    answer = rebuilt(front, server)
    assert len(answer["adminPass"]) == PASSWORD_LENGTH
    assert kept(front, server) == BootSecrets(admin_pass=answer["adminPass"])
    assert operation(front, server).args.drive == DriveChanges(has_secrets=True)
    assert "adminPass" not in front.get(f"/v2.1/servers/{server}", NEW).json["server"]


def test_secrets_are_sealed_and_shown_nowhere(front: Front) -> None:
    server = booted(front)
    answer = rebuilt(front, server, adminPass="given-pass", user_data=USER_DATA)
    assert (answer.pop("adminPass"), answer["user_data"]) == ("given-pass", None)
    assert kept(front, server) == BootSecrets(user_data=USER_DATA, admin_pass="given-pass")
    paths = (f"/v2.1/servers/{server}", "/v2.1/servers/detail", f"/v2.1/servers/{server}/os-instance-actions")
    for text in (str(answer), repr(operation(front, server)), *(front.get(path, NEW).text for path in paths)):
        assert "given-pass" not in text
        assert USER_DATA not in text
    stored = (Path(front.database.url_masked.removeprefix("sqlite:///"))).parent
    assert not [path for path in stored.iterdir() if path.is_file() and b"given-pass" in path.read_bytes()]


def test_files_within_quotas_work_up_to_2_56(front: Front) -> None:
    server = booted(front)
    refused = with_status(ask(front, server, OLD, personality=[FILE] * 6), 403)
    assert "rebuild.personality: Personality file limit exceeded: at most 5" in refused.json["forbidden"]["message"]
    rebuilt(front, server, OLD, personality=[FILE], adminPass="p")
    assert kept(front, server) == BootSecrets(admin_pass="p", files=(InjectedFile(path="/etc/motd", contents=FILE["contents"]),))


@pytest.mark.parametrize(
    ("version", "field", "value"),
    [("2.57", "personality", [FILE]), ("2.56", "user_data", USER_DATA), ("2.53", "key_name", "k")],
)
def test_a_version_without_the_field_refuses_it(front: Front, version: str, field: str, value: Any) -> None:
    answer = with_status(ask(front, booted(front), TENANT | {"OpenStack-API-Version": f"compute {version}"}, **{field: value}), 400)
    assert f"rebuild.{field}" in answer.text


@pytest.mark.parametrize("value", [{"adminPass": ""}, {"user_data": "a"}, {"user_data": 1}, {"adminPass": None}])
def test_what_is_no_secret_is_refused(front: Front, value: dict[str, Any]) -> None:
    server = booted(front)
    assert ask(front, server, **value).status_code == 400
    assert front.database.read(operations.of_server, server) == []


@pytest.mark.parametrize(
    ("value", "removes"), [({}, False), ({"user_data": USER_DATA}, False), ({"user_data": None}, True), ({"user_data": ""}, True)]
)
def test_user_data_stays_unless_replaced_or_null(front: Front, value: dict[str, Any], removes: bool) -> None:
    server = booted(front)
    rebuilt(front, server, **value)
    assert operation(front, server).args.drive.removes_user_data is removes


def test_passwords_need_the_option(tmp_path: Path) -> None:
    for front in made(tmp_path, VAULT, enable_instance_password=False):
        server = booted(front)
        assert "adminPass" not in rebuilt(front, server)
        assert operation(front, server).args.drive == DriveChanges()
        other = booted(front)
        assert "adminPass" not in rebuilt(front, other, adminPass="given-pass")
        assert kept(front, other) == BootSecrets(admin_pass="given-pass")


@pytest.mark.parametrize("given", [{"user_data": USER_DATA}, {"adminPass": "given-pass"}])
def test_secrets_without_a_key_are_refused(keyless: Front, given: dict[str, str]) -> None:
    server = booted(keyless)
    answer = with_status(ask(keyless, server, None, **given), 400)
    (field,) = given
    assert answer.json["badRequest"]["message"].startswith(f"rebuild.{field}: ")
    assert "[secrets] keys" in answer.text
    assert given[field] not in answer.text
    assert keyless.database.read(operations.of_server, server) == []


def test_rebuilds_without_a_key_make_no_password(keyless: Front) -> None:
    server = booted(keyless)
    assert "adminPass" not in rebuilt(keyless, server, user_data=None)
    assert operation(keyless, server).args.drive == DriveChanges(removes_user_data=True)


def test_a_refused_rebuild_stores_no_secrets(front: Front) -> None:
    server = booted(front)
    rebuilt(front, server, adminPass="first")
    assert ask(front, server, adminPass="second").status_code == 409
    assert kept(front, server) == BootSecrets(admin_pass="first")


# -- the key pair --------------------------------------------------------------------------------------------------------------


def test_another_key_is_the_servers_from_then_on(front: Front) -> None:
    add_key(front, "first")
    add_key(front, "second", RSA)
    server, other = booted(front, key_name="first"), booted(front, key_name="first")
    answer = rebuilt(front, server, key_name="second")
    assert (answer["key_name"], shown_key(front, server), shown_key(front, other)) == ("second", "second", "first")
    drive = operation(front, server).args.drive
    assert (drive.key_name, drive.public_key) == ("second", RSA)
    found = front.database.read(mappings.get, server)
    assert found is not None
    spec = front.database.read(mappings.specs_by_batch, [found.batch_id])[found.batch_id]
    after = accepting.current_spec(spec, found).properties
    assert (after.key_name, after.public_key) == ("second", drive.public_key), "a move takes it along"
    for name, servers in (("first", [other]), ("second", [server])):
        listed = front.get("/v2.1/servers", NEW | {"X-Roles": "admin"}, key_name=name).json["servers"]
        assert [each["id"] for each in listed] == servers
    ordered = front.get("/v2.1/servers", NEW, sort_key="key_name", sort_dir="desc").json["servers"]
    assert [each["id"] for each in ordered] == [server, other]


def test_null_takes_the_key_away(front: Front) -> None:
    add_key(front, "first")
    server = booted(front, key_name="first")
    assert rebuilt(front, server, key_name=None)["key_name"] is None
    assert shown_key(front, server) is None
    assert operation(front, server).args.drive.key_name == ""


def test_a_rebuild_that_names_no_key_leaves_it(front: Front) -> None:
    add_key(front, "first")
    server = booted(front, key_name="first")
    assert rebuilt(front, server)["key_name"] == "first"
    assert operation(front, server).args.drive.key_name is None


def test_an_unknown_key_is_refused_as_at_boot(front: Front) -> None:
    server = booted(front)
    add_key(front, "k")
    others = ask(front, server, NEW | {"X-User-Id": "u9"}, key_name="k")
    for answer in (ask(front, server, key_name="unknown"), others):
        assert answer.status_code == 400
        assert "rebuild.key_name: Invalid key_name provided." in answer.text
    assert front.database.read(operations.of_server, server) == []
    assert shown_key(front, server) is None


# -- beside an older release ---------------------------------------------------------------------------------------------------
