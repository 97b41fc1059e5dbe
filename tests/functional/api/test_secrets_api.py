"""``POST /servers`` with what is given in confidence: sealed, told once, or refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from api.lookup.boot_secrets import PASSWORD_LENGTH, new_password
from api.main import build_app
from api.opts import ApiSettings
from db import secrets
from db.api.servers import mappings
from objects.spec import BootSecrets, RequestSpec
from service.vault import Vault, new_key
from tests.support.api import IMAGE, NEWEST, Front, with_status

USER_DATA = base64.b64encode(b"#cloud-config: marked-hunter2").decode()
LONGEST = base64.b64encode(b"x" * 49149).decode()
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


def post(front: Front, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """The ``server`` of the answer."""
    answer = with_status(front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | fields}, headers), 202)
    return answer.json.get("server", answer.json)


def kept(front: Front, server: str) -> BootSecrets | None:
    batch = front.batch_of(server)
    sealed = front.database.read(secrets.of_request, batch)
    return None if sealed is None else VAULT.open(batch, sealed)


def spec_of(front: Front, server: str) -> RequestSpec:
    batch = front.batch_of(server)
    return front.database.read(mappings.specs_by_batch, [batch])[batch]


def erase(front: Front) -> None:
    """What a conductor does once nothing of them is queued."""
    front.database.write(secrets.erase_requests, front.database.read(secrets.list_decided))


def test_a_password_is_made_told_and_kept_sealed(front: Front) -> None:
    one, other = post(front), post(front)
    assert kept(front, one["id"]) == BootSecrets(admin_pass=one["adminPass"])
    assert spec_of(front, one["id"]).has_secrets
    assert len(one["adminPass"]) == PASSWORD_LENGTH
    assert one["adminPass"] != other["adminPass"]
    for name in ("api.db", "api.db-wal"):
        assert one["adminPass"].encode() not in (front_folder(front) / name).read_bytes()


def test_secrets_serve_all_servers_of_the_request(front: Front) -> None:
    server = post(front, user_data=USER_DATA, adminPass="given-pass", min_count=3)
    assert server["adminPass"] == "given-pass"
    assert [kept(front, uuid) for uuid in front.uuids()] == [BootSecrets(user_data=USER_DATA, admin_pass="given-pass")] * 3
    with_password = post(front, user_data=LONGEST)
    assert kept(front, with_password["id"]) == BootSecrets(user_data=LONGEST, admin_pass=with_password["adminPass"])


def test_nothing_of_it_is_shown(front: Front) -> None:
    uuid = post(front, user_data=USER_DATA, adminPass="given-pass")["id"]
    for path in (f"/v2.1/servers/{uuid}", "/v2.1/servers/detail", f"/v2.1/servers/{uuid}/explanation"):
        text = front.get(path, NEWEST).text
        assert "given-pass" not in text
        assert USER_DATA not in text
    assert front.get(f"/v2.1/servers/{uuid}", NEWEST).json["server"]["OS-EXT-SRV-ATTR:user_data"] is None


def test_a_repeated_request_returns_the_stored_password(front: Front) -> None:
    token = {"Idempotency-Key": "again"}
    first = post(front, token)
    assert post(front, token) == first
    other = front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "adminPass": "another"}}, token)
    assert other.status_code == 422, "the servers of the first time have another password"
    assert len(front.uuids()) == 1
    front.hand_over()
    erase(front)
    assert kept(front, first["id"]) is None
    later = post(front, token)
    assert later == {name: value for name, value in first.items() if name != "adminPass"}


def test_a_password_no_key_opens_is_omitted(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    token = {"Idempotency-Key": "again"}
    first = post(front, token)
    app = build_app(front.settings, front.registry, front.database, front.bus, Vault([new_key()]))
    front.client = falcon.testing.TestClient(app)
    assert "adminPass" not in post(front, token)
    assert "[secrets] keys" in caplog.text
    assert first["adminPass"] not in caplog.text


def test_no_password_is_generated_for_nobody(front: Front) -> None:
    answer = post(front, return_reservation_id=True)
    assert set(answer) == {"reservation_id"}
    assert kept(front, front.uuids()[0]) is None
    assert not spec_of(front, front.uuids()[0]).has_secrets


def test_passwords_need_the_option(tmp_path: Path) -> None:
    for front in made(tmp_path, VAULT, enable_instance_password=False):
        assert "adminPass" not in post(front)
        given = post(front, adminPass="given-pass")
        assert "adminPass" not in given
        assert kept(front, given["id"]) == BootSecrets(admin_pass="given-pass")


@pytest.mark.parametrize("given", [{"user_data": USER_DATA}, {"adminPass": "given-pass"}])
def test_secrets_without_a_key_are_refused(keyless: Front, given: dict[str, str]) -> None:
    answer = keyless.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | given})
    assert answer.status_code == 400
    (field,) = given
    assert answer.json["badRequest"]["message"].startswith(f"server.{field}: ")
    assert "[secrets] keys" in answer.text
    assert given[field] not in answer.text
    assert keyless.uuids() == []


def test_without_a_key_no_password_is_made(keyless: Front) -> None:
    server = post(keyless, user_data="")
    assert "adminPass" not in server
    assert not spec_of(keyless, server["id"]).has_secrets


FILE = {"path": "/etc/motd", "contents": base64.b64encode(b"marked-hunter2").decode()}


def test_files_are_kept_sealed_and_shown_nowhere(front: Front) -> None:
    server = post(front, personality=[FILE])["id"]
    found = kept(front, server)
    assert found is not None
    assert [(file.path, file.contents) for file in found.files] == [("/etc/motd", FILE["contents"])]
    assert "hunter" not in found.mask_text(f"{FILE['contents']} marked-hunter2")
    assert FILE["contents"] not in front.get(f"/v2.1/servers/{server}", NEWEST).text
    assert FILE["contents"] not in repr(spec_of(front, server)) + repr(found)


@pytest.mark.parametrize(
    ("personality", "said"),
    [
        ([FILE] * 6, "Personality file limit exceeded: at most 5"),
        ([FILE | {"path": "/" + "x" * 255}], "Personality file path limit exceeded: at most 255"),
        ([FILE | {"contents": base64.b64encode(b"x" * 10241).decode()}], "Personality file content limit exceeded: at most 10240"),
    ],
)
def test_too_many_or_too_large_files_are_refused(front: Front, personality: list[dict[str, str]], said: str) -> None:
    answer = front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "personality": personality}})
    assert (answer.status_code, front.uuids()) == (403, [])
    assert said in answer.json["forbidden"]["message"]


def test_a_limit_of_files_may_be_lifted(front: Front) -> None:
    lifted = front.client.simulate_put("/v2.1/os-quota-sets/admin", json={"quota_set": {"injected_files": -1, "force": True}})
    assert lifted.status_code == 200, lifted.text
    assert front.get("/v2.1/os-quota-sets/admin").json["quota_set"]["injected_files"] == -1


def test_a_password_has_every_kind_of_character() -> None:
    made = {new_password() for _ in range(50)}
    assert len(made) == 50
    assert all(any(c.isdigit() for c in p) and any(c.islower() for c in p) and any(c.isupper() for c in p) for p in made)
    assert not set("".join(made)) & set("0O1lI")


def front_folder(front: Front) -> Path:
    return Path(front.database.url_masked.removeprefix("sqlite:///")).parent
