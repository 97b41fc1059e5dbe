"""What the processes of a region say of themselves, asked over HTTP as a monitoring would."""

from __future__ import annotations

import enum
import http.client
from concurrent.futures import ThreadPoolExecutor

import msgspec

from deploy import ports
from deploy.local.folder import Notes
from objects import typed
from objects.base import Object
from service.health import HealthFinding

HTTP_TIMEOUT_S = 10.0
"""Seconds until no answer is one: a process takes three, and more where the machine is busy."""


class State(enum.StrEnum):
    """What a process says of itself."""

    WELL = "well"
    WEDGED = "wedged"
    SILENT = "silent"  # it does not answer: it is stopped, starts, or is dead


class MemberHealth(Object, frozen=True, kw_only=True):
    """The answer of one process; ``troubles``: what is wedged, and why."""

    state: State
    troubles: tuple[str, ...] = ()


class _Answer(Object, frozen=True, kw_only=True):
    healthy: bool
    checks: tuple[HealthFinding, ...]


def ask_members(notes: Notes, patience: float = HTTP_TIMEOUT_S) -> dict[str, MemberHealth]:
    """What each member says within ``patience`` seconds, all of them asked at the same time."""
    monitored = notes.monitored_ports()
    with ThreadPoolExecutor(max(1, len(monitored))) as pool:
        return dict(zip(monitored, pool.map(lambda port: ask_member(port, patience), monitored.values()), strict=True))


def ask_member(port: int, patience: float = HTTP_TIMEOUT_S) -> MemberHealth:
    """What the process says that is monitored on this port."""
    connection = http.client.HTTPConnection(ports.HOST, port, timeout=patience)
    try:
        connection.request("GET", "/health")
        answer = typed.decode_json(connection.getresponse().read(), _Answer)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return MemberHealth(state=State.SILENT)
    finally:
        connection.close()
    troubles = tuple(f"{finding.check}: {finding.trouble}" for finding in answer.checks if finding.trouble)
    return MemberHealth(state=State.WELL if answer.healthy else State.WEDGED, troubles=troubles)
