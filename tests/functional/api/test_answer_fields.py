"""The fields of some answers, version by version: a small sample of what the stage ``nova-schemas`` compares with Nova.

``FIELDS`` was taken from answers that fit Nova's schemas. Who changes an answer runs that stage, and then writes the change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api.http.microversions import MAXIMUM, MINIMUM, Microversion, Version, format_version
from tests.support.api import TENANT, Front, with_status
from tests.support.keys import ED25519

VERSIONS = sorted({MINIMUM, MAXIMUM, *(change.value for change in Microversion if change.value <= MAXIMUM)})
Changes = dict[Version, str]
"""The fields of 2.1, and with each version that changes them those that come (+) and go (-)."""

FIELDS: dict[str, Changes] = {
    "/v2.1/flavors/1": {
        (2, 1): (
            "OS-FLV-DISABLED:disabled OS-FLV-EXT-DATA:ephemeral disk id links name os-flavor-access:is_public ram "
            "rxtx_factor swap vcpus"
        ),
        (2, 55): "+description",
        (2, 61): "+extra_specs",
    },
    "/v2.1/os-keypairs/k": {
        (2, 1): "created_at deleted deleted_at fingerprint id name public_key updated_at user_id",
        (2, 2): "+type",
    },
    "/v2.1/servers/{server}": {
        (2, 1): (
            "OS-DCF:diskConfig OS-EXT-AZ:availability_zone OS-EXT-STS:power_state OS-EXT-STS:task_state "
            "OS-EXT-STS:vm_state OS-SRV-USG:launched_at OS-SRV-USG:terminated_at accessIPv4 accessIPv6 addresses "
            "config_drive created flavor hostId id image key_name links metadata name "
            "os-extended-volumes:volumes_attached progress status tenant_id updated user_id"
        ),
        (2, 9): "+locked",
        (2, 19): "+description",
        (2, 26): "+tags",
        (2, 63): "+trusted_image_certificates",
        (2, 71): "+server_groups",
        (2, 73): "+locked_reason",
        (2, 90): "+OS-EXT-SRV-ATTR:hostname",
        (2, 96): "+pinned_availability_zone",
    },
}
"""By path; ``{server}`` is a server. Fields are those of the object under the only key of the answer, or under ``absolute``."""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    made = Front(tmp_path_factory.mktemp("fields"))
    server = made.boot("web", TENANT, metadata={"role": "web"})
    made.bring_up(server)
    answer = made.client.simulate_post("/v2.1/os-keypairs", headers=TENANT, json={"keypair": {"name": "k", "public_key": ED25519}})
    assert answer.status_code == 200, answer.text
    yield made
    made.close()


def fields_of(front: Front, path: str, version: Version) -> set[str]:
    headers = {**TENANT, "OpenStack-API-Version": f"compute {format_version(version)}"}
    answer = with_status(front.get(path.format(server=front.uuids()[0]), headers), 200)
    inner: dict[str, Any] = next(iter(answer.json.values()))
    return set(inner.get("absolute", inner))


def expected(changes: Changes, version: Version) -> set[str]:
    found: set[str] = set()
    for since, words in sorted(changes.items()):
        if since <= version:
            gone = {word[1:] for word in words.split() if word.startswith("-")}
            found = (found | {word.lstrip("+") for word in words.split() if not word.startswith("-")}) - gone
    return found


@pytest.mark.parametrize("path", FIELDS)
def test_an_answer_has_the_fields_of_its_version(front: Front, path: str) -> None:
    for version in VERSIONS:
        assert fields_of(front, path, version) == expected(FIELDS[path], version), (path, format_version(version))
