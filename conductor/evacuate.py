"""Evacuate the servers of hosts that operators call dead, without a further command: ``[conductor] evacuate_dead_hosts``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cells.cell import Cell
from cells.emptying import Emptier, HostCondition, MoveOrder, Need
from cells.fan_out import Answered, fan_out
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.operations import operations
from db.cell import services
from objects.operation import OperationKind
from objects.process import AGENT_BINARY
from service.rate_limited_log import RateLimitedLog
from service.steps import log_step

LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0
RETRY_AFTER_S = 600.0
"""Seconds after an evacuation that was given up in which its server is left alone."""
AT_ONCE = 1000
"""Servers of one cell that are evacuated at the same time, as many as one request may boot."""
USER = "conductor"
"""Who asks for these operations, as 'operation show' has it."""


class DeadHostSweep:
    """Accepts the evacuations. While no host is called dead, a look costs one statement in each cell. A cell's feed asks for a look
    when a host was called dead.

    Hosts that are only silent stay: whether their guests run is unknown, and nobody has said that they do not. Several conductors
    may look at once: a server has one open operation at most.
    """

    def __init__(self, ledger: Ledger, registry: CellRegistry) -> None:
        self._ledger = ledger
        self._registry = registry
        self._complaints = RateLimitedLog(LOG)

    def evacuate_dead(self) -> None:
        for answer in fan_out(self._registry.list_cells(), services.forced_down, AGENT_BINARY):
            if isinstance(answer, Answered) and answer.value:
                self._evacuate_hosts(answer.cell, answer.value)

    def _evacuate_hosts(self, cell: Cell, hosts: Sequence[str]) -> None:
        order = MoveOrder(kinds={HostCondition.DEAD: OperationKind.EVACUATE}, user_id=USER)
        emptier, database = Emptier(self._ledger, cell, order), self._ledger.database
        occupants = list(emptier.list_occupants(hosts))
        for occupant in occupants:
            if occupant.need is Need.GIVE_UP and occupant.operation is not None:
                emptier.give_up(occupant.operation)
            if occupant.need is Need.OFFLOAD and occupant.operation is not None:
                emptier.offload_server(occupant.operation)
        movable = [occupant for occupant in occupants if occupant.need is Need.MOVE]
        if not movable:
            return
        since = database.current_time() - RETRY_AFTER_S
        failed = database.read(
            operations.lately_given_up, [occupant.server_uuid for occupant in movable], OperationKind.EVACUATE, since
        )
        under_way = sum(
            occupant.operation is not None and occupant.operation.kind is OperationKind.EVACUATE for occupant in occupants
        )
        due = [occupant for occupant in movable if occupant.server_uuid not in failed]
        accepted, refused = emptier.accept_moves(due[: max(0, AT_ONCE - under_way)])
        for operation in accepted:
            log_step(LOG, "evacuate accepted", operation.server_uuid, operation.request_id, host=operation.source_host)
        for server_uuid, error in refused.items():
            self._complaints(server_uuid, logging.WARNING, "a server of a host that is called dead stays there: %s", error)
