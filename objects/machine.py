"""Machines that run as a host: the one that its cell has admitted, and another one that asks for the same name."""

from __future__ import annotations

from objects.base import Object

ATTEMPT_GAP_S = 15.0
"""Two attempts of a machine count as one wait if there are so many seconds between them at most. Agents try every few seconds."""
REFUSAL_SHOWN_S = 60.0
"""Seconds for which a refusal is shown after the last attempt."""


class Machine(Object, frozen=True, kw_only=True):
    """``id``: a digest, which tells machines apart; empty for an agent of an older release. ``name``: what people see."""

    id: str
    name: str = ""


class RefusedMachine(Object, frozen=True, kw_only=True):
    """A machine whose agent has the name of a host that another machine runs as.

    ``since``: the attempt from which on the admitted machine was silent. ``last``: the latest attempt. Both are seconds since the
    epoch by the clock of the cell's database. ``accepted``: an operator lets it take over.
    """

    id: str
    name: str
    since: float
    last: float
    accepted: bool = False


def refusal_of(
    admitted: str | None, last_seen: float, refused: RefusedMachine | None, asking: Machine, now: float, down_time: float
) -> RefusedMachine | None:
    """The refusal of the machine that asks; None: it may run as the host.

    ``admitted``: the ID of the admitted machine, which was last seen at ``last_seen``. ``refused``: the latest refusal. The
    admitted machine must be silent for ``down_time`` seconds in which the other one asks again and again. So an outage of the cell
    is no silence.
    """
    if not asking.id or admitted in (None, asking.id):
        return None
    since = now
    if refused is not None and refused.id == asking.id:
        if refused.accepted:
            return None
        if last_seen < refused.since and now - refused.last <= ATTEMPT_GAP_S:
            since = refused.since
    if now - since >= down_time:
        return None
    return RefusedMachine(id=asking.id, name=asking.name, since=since, last=now)


def two_machines_text(host: str, admitted: str, refused: str) -> str:
    """What people see of two machines with one name, which are given by their names."""
    return (
        f"two machines are called {host}: {admitted or 'a machine'} runs as the host, and {refused} is refused. Stop one of their "
        f"agents or correct its [compute] host. 'superconductor host accept --machine {host}' lets the refused machine take over"
    )
