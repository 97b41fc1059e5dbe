"""The table of the Compute API: which route a path means, and which action a body, by version."""

from __future__ import annotations

from typing import Any

import falcon
import pytest

from api.http import not_served, schemas
from api.http.microversions import Version
from api.http.not_served import COLLECTIONS, ROUTES, SERVER_ACTIONS
from api.http.validation import VersionedValidator
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


LOCK = VersionedValidator([(since, schemas.action_body("lock", value)) for since, value in schemas.LOCK])


@pytest.mark.parametrize(
    ("version", "value"),
    [
        ((2, 1), None),
        ((2, 1), {}),
        ((2, 72), {"locked_reason": "audit"}),
        ((2, 73), None),
        ((2, 73), {}),
        ((2, 73), {"locked_reason": "audit"}),
    ],
)
def test_a_lock_has_a_reason_in_newer_versions(version: Version, value: Any) -> None:
    LOCK.check_body(version, {"lock": value})


@pytest.mark.parametrize(
    ("version", "value", "said"),
    [
        ((2, 73), {"locked_reason": ""}, "lock.locked_reason: must not be empty"),
        ((2, 73), {"locked_reason": "x" * 256}, "lock.locked_reason: is too long"),
        ((2, 73), {"locked_reason": "a\0"}, "lock.locked_reason: has a control character"),
        ((2, 73), {"reason": "audit"}, "lock.reason: is not a field"),
        ((2, 73), "audit", "lock: 'audit' is not of type"),
    ],
)
def test_other_values_are_refused_by_name(version: Version, value: Any, said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        LOCK.check_body(version, {"lock": value})
    assert str(refused.value).startswith(said)


def test_an_update_has_a_description_since_its_version() -> None:
    update = VersionedValidator((since, schemas.server_update_body(since)) for since in schemas.UPDATE_CHANGES)
    update.check_body((2, 19), {"server": {"description": None}})
    update.check_body((2, 1), {"server": {"name": "web"}})
    with pytest.raises(errors.Invalid, match=r"server\.description: is not a field"):
        update.check_body((2, 18), {"server": {"description": None}})
