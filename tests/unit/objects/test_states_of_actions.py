"""Which states allow which actions: as in the Compute API of Nova 34, with the differences that are wanted."""

from __future__ import annotations

import pytest

from objects.operation import OperationKind as Kind
from objects.operation import allows_operation
from objects.task import Power

POWERS = {
    "active": Power.ON,
    "stopped": Power.OFF,
    "paused": Power.PAUSED,
    "suspended": Power.SUSPENDED,
    "rescued": Power.RESCUED,
    "error": Power.ON,
}
REST = {"active", "stopped", "paused", "suspended"}

NOVA: dict[tuple[Kind, bool], set[str]] = {
    (Kind.STOP, False): {"active", "error"},
    (Kind.START, False): {"stopped"},
    (Kind.REBOOT, False): {"active"},
    (Kind.REBOOT, True): REST | {"error"},
    (Kind.PAUSE, False): {"active"},
    (Kind.UNPAUSE, False): {"paused"},
    (Kind.SUSPEND, False): {"active"},
    (Kind.RESUME, False): {"suspended"},
    (Kind.REBUILD, False): {"active", "stopped", "error"},
    (Kind.RESIZE, False): {"active", "stopped"},
    (Kind.MIGRATE, False): {"active", "stopped"},
    (Kind.LIVE_MIGRATE, False): {"active", "paused"},
    (Kind.EVACUATE, False): {"active", "stopped", "error"},
    (Kind.SHELVE, False): REST,
    (Kind.CREATE_IMAGE, False): REST,
    (Kind.CREATE_BACKUP, False): REST,
    (Kind.RESCUE, False): {"active", "stopped", "error"},
    (Kind.UNRESCUE, False): {"rescued"},
    (Kind.CHANGE_PASSWORD, False): {"active"},
    (Kind.CRASH_DUMP, False): {"active", "paused", "rescued", "error"},
    (Kind.ATTACH_INTERFACE, False): {"active", "paused", "stopped"},
    (Kind.DETACH_INTERFACE, False): {"active", "paused", "stopped"},
    (Kind.SOFT_DELETE, False): REST | {"rescued", "error"},
}
"""The ``vm_state`` in which Nova accepts an action without a task; (kind, whether it is a hard reboot)."""

DIFFERENCES = {
    (Kind.EVACUATE, "paused"): "a dead host's servers leave it, whatever they were",
    (Kind.EVACUATE, "suspended"): "a dead host's servers leave it, whatever they were",
    (Kind.EVACUATE, "rescued"): "a dead host's servers leave it, whatever they were",
}


@pytest.mark.parametrize(("kind", "hard"), NOVA)
@pytest.mark.parametrize("vm_state", POWERS)
def test_a_state_allows_what_nova_allows(kind: Kind, hard: bool, vm_state: str) -> None:
    allowed = allows_operation(kind, POWERS[vm_state], hard=hard, failed=vm_state == "error")
    differs = (kind, vm_state) in DIFFERENCES
    assert allowed is ((vm_state in NOVA[kind, hard]) is not differs)


def test_every_kind_that_users_ask_for_is_compared() -> None:
    unasked = {Kind.RESPAWN, Kind.RESET, Kind.FAIL, Kind.UNSHELVE}  # no state of a guest decides about these
    assert {kind for kind, _ in NOVA} == set(Kind) - unasked


@pytest.mark.parametrize("power", [Power.OFF, Power.PAUSED, Power.SUSPENDED])
def test_the_power_of_a_failed_server_decides_nothing(power: Power) -> None:
    for kind in (Kind.UNPAUSE, Kind.RESUME, Kind.START, Kind.MIGRATE, Kind.SHELVE):
        assert not allows_operation(kind, power, failed=True)
    for kind in (Kind.STOP, Kind.REBUILD, Kind.RESCUE, Kind.EVACUATE):
        assert allows_operation(kind, power, failed=True)
