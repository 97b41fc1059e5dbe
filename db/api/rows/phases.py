"""What a server is at, in SQL: the expressions say the same as ``objects/phase.py`` does of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, operations
from objects.operation import OperationKind, OperationState
from objects.phase import (
    MOVE_TASKS,
    MOVING_STATES,
    OF_POWER,
    POWER_STATES,
    SHELVE_TASKS,
    SOFT_DELETE_TASKS,
    SOFT_DELETED,
    TASKS,
    ServerPhase,
)
from objects.task import Power, TaskState

_C, _O = instance_mappings.c, operations.c
_SERVER = sa.func.coalesce(_C.server_uuid, _C.instance_uuid)
_UNTOUCHED = (_C.turn == 0) & (_C.last_number == 0)
"""Servers that never had an operation: for these no operation is looked for."""


def _of_open(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """A column of the server's open operation; NULL: there is none."""
    return sa.select(column).where(_O.open_for == _SERVER).correlate(instance_mappings).scalar_subquery()


_KIND, _STATE, _BEFORE = _of_open(_O.kind), _of_open(_O.state), _of_open(_O.power_before)
_HARD = _of_open(sa.case((_O.args.contains('"hard":true'), 1), else_=0)) == sa.literal(1)
_MOVES = [kind for kind in OperationKind if kind.is_move]
_IS_REBUILT = sa.or_(_KIND == OperationKind.REBUILD, sa.and_(_KIND == OperationKind.EVACUATE, _STATE.in_(MOVING_STATES)))
_IS_LIVE = _KIND == OperationKind.LIVE_MIGRATE
_FAILED = sa.or_(_KIND == OperationKind.FAIL, sa.and_(_KIND.is_(None), _C.task_state == TaskState.FAILED))


def _by_power(power: sa.ColumnElement[Any], values: Mapping[Power, Any]) -> list[tuple[sa.ColumnElement[bool], Any]]:
    return [(power == known_power, values[known_power]) for known_power in Power]


def _cases_of(value: sa.ColumnElement[Any], names: Mapping[Any, str]) -> list[tuple[sa.ColumnElement[bool], Any]]:
    return [(value.in_([member]), name) for member, name in names.items()]


_IS_SHELVED = _C.state == "shelved"
_IS_RESPAWNED = sa.and_(_C.state == "error", _KIND == OperationKind.RESPAWN)
PHASE: sa.ColumnElement[Any] = sa.case(
    (_IS_RESPAWNED, ServerPhase.BUILDING),
    (_C.state != "active", _C.state),
    (_UNTOUCHED, ServerPhase.ACTIVE),
    (_KIND == OperationKind.SOFT_DELETE, ServerPhase.SOFT_DELETED),
    (_STATE == OperationState.SHELVED, ServerPhase.SHELVED),
    (_STATE == OperationState.VERIFY, ServerPhase.VERIFYING),
    (_STATE == OperationState.REVERTING, ServerPhase.REVERTING),
    (_IS_LIVE, ServerPhase.MIGRATING),
    (_IS_REBUILT, ServerPhase.REBUILDING),
    (sa.and_(_KIND == OperationKind.REBOOT, _HARD), ServerPhase.HARD_REBOOTING),
    (_KIND == OperationKind.REBOOT, ServerPhase.REBOOTING),
    (_KIND == OperationKind.CHANGE_PASSWORD, ServerPhase.CHANGING_PASSWORD),
    (_KIND.in_(_MOVES), ServerPhase.RESIZING),
    (_FAILED, ServerPhase.ERROR),
    *_by_power(sa.func.coalesce(_BEFORE, _C.power), {power: str(phase) for power, phase in OF_POWER.items()}),
    else_=ServerPhase.STOPPED,
)
"""The phase of a row of ``instance_mappings``."""

IS_NOT_SOFT_DELETED: sa.ColumnElement[bool] = sa.or_(_UNTOUCHED, sa.func.coalesce(_KIND, "") != OperationKind.SOFT_DELETE)
"""Of live rows. Most servers never had an operation: for these none is looked for."""

_VM_STATES = {power: str(phase) for power, phase in OF_POWER.items()}
VM_STATE: sa.ColumnElement[Any] = sa.case(
    (_IS_RESPAWNED, "building"),
    (_IS_SHELVED, "shelved_offloaded"),
    (_C.state != "active", _C.state),
    (_UNTOUCHED, "active"),
    (_KIND == OperationKind.SOFT_DELETE, SOFT_DELETED),
    (_STATE == OperationState.SHELVED, "shelved"),
    (_STATE == OperationState.VERIFY, "resized"),
    (_FAILED, "error"),
    *_by_power(sa.func.coalesce(_BEFORE, _C.power), _VM_STATES),
    else_="stopped",
)
"""``OS-EXT-STS:vm_state``."""

TASK_STATE: sa.ColumnElement[Any] = sa.case(
    (_C.deleted == sa.true(), sa.null()),
    (sa.and_(_C.state == "building", _C.cell_uuid.is_(None)), "scheduling"),
    (sa.or_(_C.state == "building", _IS_RESPAWNED), "spawning"),
    (sa.and_(_IS_SHELVED, _KIND.is_not(None)), "unshelving"),
    (sa.or_(_C.state != "active", _UNTOUCHED), sa.null()),
    *_cases_of(sa.case((_KIND == OperationKind.SHELVE, _STATE)), SHELVE_TASKS),
    (_KIND == OperationKind.SHELVE, sa.null()),
    *_cases_of(sa.case((_KIND == OperationKind.SOFT_DELETE, _STATE)), SOFT_DELETE_TASKS),
    (_KIND == OperationKind.SOFT_DELETE, sa.null()),
    (sa.and_(_KIND == OperationKind.REBOOT, _HARD), "rebooting_hard"),
    (_KIND == OperationKind.REBOOT, "rebooting"),
    *_cases_of(_KIND, TASKS),
    *_cases_of(_STATE, MOVE_TASKS),
    else_=sa.null(),
)
"""``OS-EXT-STS:task_state``, as far as the API database knows."""

POWER_STATE: sa.ColumnElement[Any] = sa.case(
    (_IS_SHELVED, POWER_STATES[Power.OFF]),
    (_C.state != "active", 0),
    (sa.and_(_IS_LIVE, _BEFORE == Power.PAUSED), POWER_STATES[Power.PAUSED]),
    (_IS_LIVE, POWER_STATES[Power.ON]),
    *_by_power(_C.power, POWER_STATES),
    else_=0,
)
"""``OS-EXT-STS:power_state``."""
