"""Who is let through to which path."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from api.http.paths import Paths
from api.opts import ApiSettings
from tests.support.api import IMAGE, NEWEST, TENANT, Front, with_status
from tests.support.routes import routes_of

NOBODY = {"X-Project-Id": "p1", "X-Roles": "nobody"}
READER = {"X-Project-Id": "p1", "X-Roles": "reader"}
AUDITOR = {"X-Project-Id": "auditors", "X-Roles": "auditor"}
UUID = "3f0a2b5e-1111-4222-8333-444455556666"
PARAMETERS = {
    "server_id": UUID,
    "flavor_id": "1",
    "project_id": "p1",
    "quota_class": "default",
    "hold_id": UUID,
    "request_id": f"req-{UUID}",
    "image_id": UUID,
    "service_id": UUID,
    "aggregate_id": "1",
    "hypervisor_id": "1",
    "key": "k",
    "network": "n",
    "tag": "t",
    "name": "k",
    "token": "t",
    "alias": "os-keypairs",
    "network_id": UUID,
    "port_id": UUID,
    "host": "h1",
    "before": "2026-01-01 00:00:00",
    "migration": "1",
    "subnet_id": UUID,
    "security_group_id": UUID,
    "security_group_rule_id": UUID,
    "collection": "routers",
    "resource_id": UUID,
    "volume_id": UUID,
    "version_id": "v2.1",
    "group_id": UUID,
}
OPEN = {
    "/",
    "/v2",
    "/v2.0",
    "/v2.1/versions/{version_id}",
    "/v2.1",
    "/identity/v3",
    "/image",
    "/image/v2",
    "/network",
    "/network/v2.0",
}


def test_only_version_documents_serve_callers_without_a_role(front: Front) -> None:
    """Whatever is there: before the handler looks."""
    found = routes_of(front.app)
    assert len(found) > 20
    for method, template in found:
        path = template.format(**PARAMETERS)
        body: dict[str, str] | None = {} if method in ("POST", "PUT") else None
        answers = [front.client.simulate_request(method, path, headers=each, json=body) for each in (NOBODY, NOBODY | NEWEST)]
        if template in OPEN:
            assert all(answer.status_code in (200, 300) for answer in answers), template
            continue
        turned_away = [answer for answer in answers if "does not exist in version" not in answer.text]
        assert turned_away, "it is in the oldest or in the newest version"
        for answer in turned_away:
            assert answer.status_code == 403, (method, template, answer.text)
            assert "Policy doesn't allow" in answer.json["forbidden"]["message"]


def test_a_path_without_a_rule_fails_at_once(front: Front) -> None:
    """Not one that is found by who uses it."""

    class Both:
        def on_get(self) -> None: ...

        def on_post(self) -> None: ...

    with pytest.raises(ValueError, match="methods"):
        Paths().add_route(front.app, "/new", Both(), get="a")
    with pytest.raises(ValueError, match="methods"):
        Paths().add_route(front.app, "/new", Both(), get="a", post="a", put="a")


def test_a_reader_reads_and_changes_nothing(front: Front) -> None:
    uuid = front.boot(headers=TENANT)
    assert front.get(f"/v2.1/servers/{uuid}", READER).status_code == 200
    assert front.delete(uuid, READER).status_code == 403
    server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE}
    assert front.post({"server": server}, READER).status_code == 403
    assert front.uuids() == [uuid]


def test_what_is_another_projects_does_not_exist(front: Front) -> None:
    uuid = front.boot(headers=TENANT)
    other = TENANT | {"X-Project-Id": "p2"}
    for path in (f"/v2.1/servers/{uuid}", f"/v2.1/servers/{uuid}/explanation", f"/v2.1/servers/{uuid}/os-instance-actions"):
        assert front.get(path, other).status_code == 404
    assert front.delete(uuid, other).status_code == 404
    assert front.get("/v2.1/os-quota-sets/p1", other).status_code == 403
    assert front.get("/v2.1/limits", other, tenant_id="p1").status_code == 403


def test_an_operators_rules_open_only_the_named_paths(tmp_path: Path) -> None:
    """Auditors see the servers of all projects, and touch none."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        '"os_compute_api:servers:show": "rule:project_reader_or_admin or role:auditor"\n'
        '"os_compute_api:os-extended-server-attributes": "role:auditor"\n'
    )
    front = Front(tmp_path, msgspec.structs.replace(ApiSettings(), policy_files=(str(rules),)))
    try:
        uuid = front.boot(headers=TENANT)
        shown = with_status(front.get(f"/v2.1/servers/{uuid}", AUDITOR), 200)
        assert "OS-EXT-SRV-ATTR:host" in shown.json["server"]
        assert "OS-EXT-SRV-ATTR:host" not in front.get(f"/v2.1/servers/{uuid}", TENANT).json["server"]
        assert front.delete(uuid, AUDITOR).status_code == 403
        assert front.get(f"/v2.1/servers/{uuid}/explanation", AUDITOR).status_code == 403
    finally:
        front.close()


def test_callers_over_the_rate_get_a_retry_time(tmp_path: Path) -> None:
    """Other projects go on."""
    front = Front(tmp_path, msgspec.structs.replace(ApiSettings(), boot_rate=0.001, boot_burst=2))
    try:
        front.boot(headers=TENANT)
        front.boot(headers=TENANT)
        server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE}
        refused = front.post({"server": server}, TENANT)
        assert (refused.status_code, refused.json["overLimit"]["code"]) == (429, 429)
        assert int(refused.headers["Retry-After"]) > 0
        front.boot(headers=TENANT | {"X-Project-Id": "p2"})
        assert len(front.uuids()) == 3
    finally:
        front.close()
