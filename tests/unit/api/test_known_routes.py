"""The table of the Compute API's routes: which one a path means, and in which versions it is there."""

from __future__ import annotations

import falcon
import pytest

from api.http import not_served
from api.http.not_served import COLLECTIONS, ROUTES, SERVER_ACTIONS
from objects import errors


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/servers/6/os-interface/7", "/servers/{}/os-interface/{}"),
        ("/os-hypervisors/statistics", "/os-hypervisors/statistics"),
        ("/os-hypervisors/statistics/servers", "/os-hypervisors/{}/servers"),
        ("/os-cells/capacities", "/os-cells/capacities"),
        ("/servers/", None),
        ("/servers//os-interface", None),
        ("/servers/6/os-interface/7/8", None),
        ("/os-anything", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_word_stands_before_a_parameter(path: str, template: str | None) -> None:
    assert not_served.find_template(path) == template


def test_an_unserved_operation_is_refused_by_version() -> None:
    with pytest.raises(errors.NotOffered, match=r"POST /v2\.1/servers/6/shares is an operation of the Compute API that"):
        not_served.refuse_unserved("POST", "/v2.1/servers/6/shares", (2, 97))
    with pytest.raises(errors.NotFound, match=r"does not exist in version 2\.96"):
        not_served.refuse_unserved("POST", "/v2.1/servers/6/shares", (2, 96))
    with pytest.raises(errors.NotFound):
        not_served.refuse_unserved("GET", "/v2.1/os-volumes", (2, 36))
    with pytest.raises(falcon.HTTPGone):
        not_served.refuse_unserved("GET", "/v2.1/os-cells", (2, 1))
    not_served.refuse_unserved("PATCH", "/os-volumes", (2, 1))
    not_served.refuse_unserved("GET", "/os-anything", (2, 1))


def test_an_unserved_action_is_refused_by_version() -> None:
    with pytest.raises(errors.NotOffered, match="The action addFixedIp is"):
        not_served.refuse_action("addFixedIp", (2, 43))
    with pytest.raises(errors.NotFound):
        not_served.refuse_action("addFixedIp", (2, 44))
    with pytest.raises(falcon.HTTPGone):
        not_served.refuse_action("resetNetwork", (2, 1))
    not_served.refuse_action("addAnything", (2, 1))


def test_the_table_has_what_nova_has() -> None:
    """All routes of Nova 34 but the version document at /v2.1, and all actions on servers."""
    assert len(ROUTES) == 208
    assert len(SERVER_ACTIONS) == 41
    assert {"servers", "os-volumes", "superconductor", "versions"} < COLLECTIONS
    assert all(known.until is None or known.since <= known.until for known in (*ROUTES.values(), *SERVER_ACTIONS.values()))
