"""Actions on a server: which body is which, by version."""

from __future__ import annotations

from typing import Any

import pytest

from api.http import schemas
from api.http.microversions import Version
from api.http.validation import VersionedValidator
from objects import errors

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
