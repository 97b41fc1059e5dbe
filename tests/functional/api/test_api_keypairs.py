"""Key pairs over HTTP, and servers that are booted with one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import falcon.testing
import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from api.http.schemas import PUBLIC_KEY_LENGTH
from api.opts import ApiSettings
from db.api.rows.tables import keypairs, request_specs
from db.api.servers import mappings
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, refusal, with_status
from tests.support.fronts import front_on_servers
from tests.support.keys import CERTIFICATE, CERTIFICATE_FINGERPRINT, ED25519, ED25519_FINGERPRINT, RSA

PATH = "/v2.1/os-keypairs"
READER = NEWEST | TENANT | {"X-Roles": "reader"}
ADMIN = NEWEST | TENANT | {"X-User-Id": "boss", "X-Roles": "admin"}
GENERATING = TENANT | {"OpenStack-API-Version": "compute 2.91"}
"""The last version that generates pairs."""

BASIC = {"name", "public_key", "fingerprint"}


front = front_on_servers(ApiSettings(key_pairs=3))


def create(front: Front, headers: dict[str, str] = NEWEST | TENANT, **fields: Any) -> falcon.testing.Result:
    return front.client.simulate_post(PATH, headers=headers, json={"keypair": {"name": "mine", "public_key": ED25519} | fields})


def delete(front: Front, name: str, headers: dict[str, str] = NEWEST | TENANT, **params: str) -> int:
    return front.client.simulate_delete(f"{PATH}/{name}", headers=headers, params=params).status_code


def names(front: Front, headers: dict[str, str] = NEWEST | TENANT, **params: str) -> list[str]:
    answer = with_status(front.get(PATH, headers, **params), 200)
    return [each["keypair"]["name"] for each in answer.json["keypairs"]]


def test_a_key_is_imported_listed_shown_and_deleted(front: Front) -> None:
    made = with_status(create(front, public_key=f"{ED25519}\n"), 201)
    basic = {"name": "mine", "public_key": f"{ED25519}\n", "fingerprint": ED25519_FINGERPRINT, "type": "ssh"}
    assert made.json["keypair"] == basic | {"user_id": "u1"}
    assert front.get(PATH, READER).json == {"keypairs": [{"keypair": basic}]}
    shown = front.get(f"{PATH}/mine", READER).json["keypair"]
    more = {name: shown.pop(name) for name in ("id", "created_at", "updated_at", "deleted", "deleted_at", "user_id")}
    assert shown == basic
    assert isinstance(more.pop("id"), int)
    assert str(more.pop("created_at")).startswith("20")
    assert more == {"updated_at": None, "deleted": False, "deleted_at": None, "user_id": "u1"}
    assert delete(front, "mine") == 204
    assert delete(front, "mine") == 404
    assert refusal(front.get(f"{PATH}/mine", READER), 404) == "Keypair 'mine' of user 'u1' not found"
    assert names(front) == []


def test_pairs_are_only_imported_since_2_92(front: Front) -> None:
    """And their names may have more characters."""
    assert create(front, name="me@home.example").status_code == 201
    assert names(front) == ["me@home.example"]
    assert delete(front, "me@home.example") == 204
    asked = {"keypair": {"name": "mine"}}
    newest = front.client.simulate_post(PATH, headers=NEWEST | TENANT, json=asked)
    assert "keypair.public_key: is required" in refusal(newest, 400)
    assert "keypair.name" in refusal(create(front, GENERATING, name="me@home.example"), 400)
    assert "private_key" in front.client.simulate_post(PATH, headers=GENERATING, json=asked).json["keypair"]


def test_the_oldest_version_has_its_own_shape(front: Front) -> None:
    made = create(front, TENANT)
    assert (made.status_code, set(made.json["keypair"])) == (200, BASIC | {"user_id"})
    assert set(front.get(PATH, TENANT).json["keypairs"][0]["keypair"]) == BASIC
    assert "type" not in front.get(f"{PATH}/mine", TENANT).json["keypair"]
    assert front.get("/v2.1/p1/os-keypairs", TENANT).status_code == 200
    assert delete(front, "mine", TENANT) == 202
    assert "type: is not a field" in refusal(create(front, TENANT, type="ssh"), 400)


def test_a_generated_private_key_is_shown_once(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        made = front.client.simulate_post(PATH, headers=GENERATING, json={"keypair": {"name": "mine"}})
    pair = made.json["keypair"]
    key = serialization.load_pem_private_key(pair["private_key"].encode(), None)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    assert pair["public_key"].startswith(line)
    assert "PRIVATE" not in front.get(PATH, READER).text + front.get(f"{PATH}/mine", READER).text + caplog.text
    rows = front.database.read(lambda tx: tx.execute(sa.select(keypairs)).all())
    assert "PRIVATE" not in str(rows)


def test_a_certificate_is_imported(front: Front) -> None:
    made = create(front, type="x509", public_key=CERTIFICATE).json["keypair"]
    assert (made["type"], made["fingerprint"]) == ("x509", CERTIFICATE_FINGERPRINT)


def test_a_certificate_is_generated_for_the_pairs_owner(front: Front) -> None:
    headers = ADMIN | {"OpenStack-API-Version": "compute 2.91"}
    asked = {"keypair": {"name": "c", "type": "x509", "user_id": "u1"}}
    pair = front.client.simulate_post(PATH, headers=headers, json=asked).json["keypair"]
    certificate = x509.load_pem_x509_certificate(pair["public_key"].encode())
    assert certificate.subject.rfc4514_string() == "CN=u1"
    assert certificate.public_key() == serialization.load_pem_private_key(pair["private_key"].encode(), None).public_key()
    assert certificate.fingerprint(hashes.SHA1()).hex(":") == pair["fingerprint"]
    shown = front.get(f"{PATH}/c", READER).json["keypair"]
    assert (shown["public_key"], shown["type"]) == (pair["public_key"], "x509")


def test_a_name_is_taken_once_for_each_user(front: Front) -> None:
    assert create(front).status_code == 201
    assert refusal(create(front, public_key=RSA), 409) == "Key pair 'mine' already exists"
    assert create(front, name="Mine").status_code == 201
    assert create(front, NEWEST | OTHER_TENANT).status_code == 201
    assert front.get(f"{PATH}/mine", READER).json["keypair"]["public_key"] == ED25519


def test_a_user_has_so_many_and_no_more(front: Front) -> None:
    for number in range(3):
        assert create(front, name=f"k{number}").status_code == 201
    assert refusal(create(front, name="k3"), 403) == "Quota exceeded, too many key pairs."
    assert create(front, NEWEST | OTHER_TENANT).status_code == 201
    assert delete(front, "k0") == 204
    assert create(front, name="k3").status_code == 201


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a/b"},
        {"name": "../x"},
        {"name": "é"},
        {"name": "a'b"},
        {"name": " a"},
        {"name": "a\n"},
        {"name": "x" * 256},
        {"name": 7},
        {"public_key": ""},
        {"public_key": "ssh-rsa AAAA"},
        {"public_key": "\x00"},
        {"public_key": f"{ED25519} {'x' * PUBLIC_KEY_LENGTH}"},
        {"public_key": CERTIFICATE},
        {"type": "x509"},
        {"type": "dsa"},
        {"user_id": ""},
        {"user_id": "a b"},
        {"private_key": "x"},
    ],
)
def test_bad_fields_are_refused(front: Front, fields: dict[str, Any]) -> None:
    said = refusal(create(front, ADMIN, **fields), 400)
    assert "\n" not in said
    assert front.database.read(lambda tx: tx.execute(sa.select(keypairs)).all()) == []


def test_pages_follow_the_names(front: Front) -> None:
    for name in ("b", "c", "a"):
        create(front, name=name)
    first = front.get(PATH, READER, limit="2").json
    assert [each["keypair"]["name"] for each in first["keypairs"]] == ["a", "b"]
    assert first["keypairs_links"] == [{"rel": "next", "href": "http://falconframework.org/v2.1/os-keypairs?limit=2&marker=b"}]
    rest = front.get(PATH, READER, limit="2", marker="b").json
    assert ([each["keypair"]["name"] for each in rest["keypairs"]], set(rest)) == (["c"], {"keypairs"})
    assert refusal(front.get(PATH, READER, marker="x"), 400).startswith("marker: ")
    assert names(front, TENANT, limit="1") == ["a", "b", "c"], "pages came with 2.35"


def test_only_an_administrator_names_another_user(front: Front) -> None:
    assert create(front, ADMIN, user_id="u1").json["keypair"]["user_id"] == "u1"
    assert names(front, ADMIN, user_id="u1") == names(front) == ["mine"]
    assert names(front, ADMIN) == []
    assert names(front, TENANT | {"X-User-Id": "boss", "X-Roles": "admin"}, user_id="u1") == [], "since 2.10"
    for answer in (
        create(front, NEWEST | OTHER_TENANT, user_id="u1"),
        front.get(PATH, NEWEST | OTHER_TENANT, user_id="u1"),
        front.get(f"{PATH}/mine", NEWEST | OTHER_TENANT, user_id="u1"),
        create(front, READER, name="r"),
    ):
        assert "Policy doesn't allow os_compute_api:os-keypairs:" in refusal(answer, 403)
    assert delete(front, "mine", NEWEST | OTHER_TENANT, user_id="u1") == 403
    assert delete(front, "mine", NEWEST | OTHER_TENANT) == 404
    assert delete(front, "mine", ADMIN, user_id="u1") == 204


def test_a_server_keeps_its_boot_key(front: Front) -> None:
    create(front)
    server = front.boot("web", TENANT, key_name="mine")
    delete(front, "mine")
    create(front, public_key=RSA)
    spec = front.database.read(mappings.specs_by_batch, [front.batch_of(server)])[front.batch_of(server)]
    assert (spec.properties.key_name, spec.properties.public_key) == ("mine", ED25519)
    assert front.get(f"/v2.1/servers/{server}", TENANT).json["server"]["key_name"] == "mine"
    assert ED25519 not in front.get(f"/v2.1/servers/{server}", NEWEST | TENANT).text


def test_a_boot_needs_a_key_of_the_caller(front: Front) -> None:
    create(front)
    body = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "key_name": "mine"}}
    for headers in (OTHER_TENANT, TENANT | {"X-User-Id": "u2"}):
        assert refusal(front.post(body, headers), 400) == "server.key_name: Invalid key_name provided."
    assert front.database.read(lambda tx: tx.execute(sa.select(request_specs)).all()) == []


def test_a_boot_without_a_key_looks_up_none(tmp_path: Path) -> None:
    front = Front(tmp_path)
    front.database.write(lambda tx: keypairs.drop(tx))
    assert front.boot("web", TENANT)
    front.close()
