"""What operators say of a host: whether it takes new servers, and whether it is dead. The same for commands and the API."""

from __future__ import annotations

from cells.cell import Cell, Deadline
from db.cell import services
from db.cell.services import SeenService
from db.sql import clock
from db.sql.connection import CellTransaction
from objects.base import Object
from objects.process import AGENT_BINARY


class HostChange(Object, frozen=True, kw_only=True):
    """``disabled``: whether the host takes no new servers, for ``reason``. ``forced_down``: whether it counts as dead. None: as it
    was.
    """

    disabled: bool | None = None
    reason: str | None = None
    forced_down: bool | None = None


def change(cell: Cell | Deadline, host: str, asked: HostChange) -> SeenService:
    """Change the host's agent, in one transaction of its cell, and return it. The feed tells.

    Raises NotFound if the cell has no agent of this host, and CellUnavailable.
    """
    return cell.write(_change, host, asked)


def _change(tx: CellTransaction, host: str, asked: HostChange) -> SeenService:
    now = clock.read(tx)
    services.get(tx, host, AGENT_BINARY)
    if asked.disabled is not None:
        services.set_disabled(tx, host, AGENT_BINARY, asked.disabled, asked.reason, now)
    if asked.forced_down is not None:
        services.set_forced_down(tx, host, AGENT_BINARY, asked.forced_down, now)
    return services.list_seen(tx, AGENT_BINARY, host)[0]
