"""What operators say of a host: whether it takes new servers, whether it is dead, and what it counts with.

The same for commands and the API.
"""

from __future__ import annotations

from collections.abc import Mapping

from cells.cell import Cell
from db.api.claims import claims
from db.api.claims.claims import Ledger
from db.cell import compute_nodes, feed, services
from db.cell.services import SeenService
from db.sql import clock
from db.sql.connection import CellTransaction
from objects.base import Object
from objects.host_terms import Sizes
from objects.machine import RefusedMachine
from objects.process import AGENT_BINARY


class HostChange(Object, frozen=True, kw_only=True):
    """``disabled``: whether the host takes no new servers, for ``reason``. ``forced_down``: whether it counts as dead. None: as it
    was.
    """

    disabled: bool | None = None
    reason: str | None = None
    forced_down: bool | None = None


def change_agent(cell: Cell, ledger: Ledger, host: str, host_change: HostChange, timeout: float | None = None) -> SeenService:
    """Change the host's agent, in one transaction of its cell, and return it. The feed tells.

    Afterwards no scheduler claims on the host before it has read this. If this function raises, repeat it: it then makes sure of
    that again. ``timeout``: seconds that the cell has; None: as long as it takes.
    Raises NotFound if the cell has no agent of this host, CellUnavailable and DatabaseUnavailable.
    """
    agent, event = (cell if timeout is None else cell.with_timeout(timeout)).write(_change_in_cell, host, host_change)
    ledger.write(claims.tell_service, host, cell.uuid, event)
    return agent


def accept_sizes(cell: Cell, host: str, timeout: float | None = None) -> dict[str, Sizes]:
    """The host counts with the sizes that its nodes reported last, which are returned by node. The feed tells.

    ``timeout``, and what else it raises: as ``change_agent``. Raises NotFound if the cell has no sizes of this host.
    """
    return (cell if timeout is None else cell.with_timeout(timeout)).write(_accept_in_cell, host)


def accept_machine(cell: Cell, host: str) -> RefusedMachine:
    """Let the machine that was refused as this host take over with its next attempt, which is seconds away. Returns it.

    Raises NotFound if none was refused, or if the cell has no agent of this host, and else as ``accept_sizes``.
    """
    return cell.write(services.accept_machine, host, AGENT_BINARY)


def set_ratios(cell: Cell, host: str, ratios: Mapping[str, float | None]) -> None:
    """See ``compute_nodes.set_ratios``. Raises as ``accept_sizes``."""
    cell.write(_set_ratios, host, ratios)


def _accept_in_cell(tx: CellTransaction, host: str) -> dict[str, Sizes]:
    return compute_nodes.accept_sizes(tx, host, clock.read(tx))


def _set_ratios(tx: CellTransaction, host: str, ratios: Mapping[str, float | None]) -> None:
    compute_nodes.set_ratios(tx, host, ratios, clock.read(tx))


def _change_in_cell(tx: CellTransaction, host: str, host_change: HostChange) -> tuple[SeenService, int]:
    """Also returns the number of the event that tells of it, or of a later one if nothing changed."""
    now = clock.read(tx)
    services.get(tx, host, AGENT_BINARY)
    if host_change.disabled is not None:
        services.set_disabled(tx, host, AGENT_BINARY, host_change.disabled, host_change.reason, now)
    if host_change.forced_down is not None:
        services.set_forced_down(tx, host, AGENT_BINARY, host_change.forced_down, now)
    return services.list_seen(tx, AGENT_BINARY, host)[0], feed.read_head(tx)
