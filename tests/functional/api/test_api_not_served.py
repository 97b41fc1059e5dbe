"""What the Compute API has and this product does not serve: no client mistakes it for something that is not there."""

from __future__ import annotations

import re

from api.http import microversions
from api.http.not_served import ROUTES, SERVER_ACTIONS
from tests.support.api import TENANT, Front
from tests.support.api_table import served_routes
from tests.support.routes import routes_of

OWN = re.compile(r"/image.*|/network.*|/v2\.1/superconductor/.*|/v2\.1/servers/{server_id}/explanation|/v2(\.[01])?|/identity/v3|/")
"""Paths that the Compute API does not have."""


def test_versioned_paths_are_in_the_table_or_ours(front: Front) -> None:
    ours = {
        (method, re.sub("{[^}]*}", "{}", path.removeprefix("/v2.1")))
        for method, path in routes_of(front.app)
        if OWN.fullmatch(path)
    }
    assert served_routes(front) - ours <= set(ROUTES)


def test_other_routes_are_501_and_unknown_ones_404(front: Front) -> None:
    """With and without a project in the path."""
    for (method, template), known in ROUTES.items():
        if (method, template) in served_routes(front) or known.since > microversions.MAXIMUM:
            continue
        path = template.replace("{}", "5")
        for prefix in ("/v2.1", "/v2.1/p1"):
            headers = TENANT | {"OpenStack-API-Version": f"compute {microversions.format_version(known.since)}"}
            answer = front.client.simulate_request(method, prefix + path, headers=headers, json={})
            if known.gone:
                assert (answer.status_code, answer.json["computeFault"]["code"]) == (410, 410), (method, path)
                continue
            assert answer.status_code == 501, (method, path, answer.text)
            [(name, said)] = answer.json.items()
            assert (name, said["code"]) == ("notImplemented", 501)
            general = f"{method} /v2.1{path} is an operation of the Compute API that this service does not offer."
            assert said["message"] == (known.why or general)
        if known.until is not None and known.until < microversions.MAXIMUM:
            headers = TENANT | {"OpenStack-API-Version": f"compute {microversions.format_version(microversions.MAXIMUM)}"}
            assert front.client.simulate_request(method, f"/v2.1{path}", headers=headers, json={}).status_code == 404


def test_a_method_unknown_to_a_path_is_405(front: Front) -> None:
    answer = front.client.simulate_delete("/v2.1/os-volumes")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert front.client.simulate_patch("/v2.1/servers").status_code == 405


def test_a_delete_without_id_is_404(front: Front) -> None:
    for path in ("/v2.1/servers/", "/v2.1/images/", "/v2.1/p1/os-keypairs/"):
        assert front.client.simulate_delete(path).status_code == 404
        assert front.client.simulate_delete(path.rstrip("/")).status_code == 405


def test_a_head_of_unserved_routes_matches_its_get(front: Front) -> None:
    assert front.client.simulate_head("/v2.1/os-volumes").status_code == 501


def test_a_route_is_404_in_versions_without_it(front: Front) -> None:
    uuid = front.boot(headers=TENANT)
    answer = front.get(f"/v2.1/servers/{uuid}/tags", TENANT | {"OpenStack-API-Version": "compute 2.25"})
    assert "does not exist in version 2.25" in answer.json["itemNotFound"]["message"]
    assert front.get(f"/v2.1/servers/{uuid}/tags", TENANT | {"OpenStack-API-Version": "compute 2.26"}).status_code == 200


def test_other_actions_are_501_and_unknown_ones_400(front: Front) -> None:
    uuid = front.boot(headers=TENANT)

    def act(name: str, version: microversions.Version) -> int:
        headers = {"OpenStack-API-Version": f"compute {microversions.format_version(version)}"}
        return front.client.simulate_post(f"/v2.1/servers/{uuid}/action", headers=headers, json={name: 7}).status_code

    for name, known in SERVER_ACTIONS.items():
        status = act(name, known.since)
        assert status == 410 if known.gone else status < 500 or status == 501, name
        if known.until is not None:
            assert act(name, (known.until[0], known.until[1] + 1)) == 404
    assert act("addFixedIp", (2, 1)) == 501
    assert act("addAnything", (2, 1)) == 400
