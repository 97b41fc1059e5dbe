"""Evacuate the servers of hosts that operators call dead, without a further command: ``[conductor] evacuate_dead_hosts``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import compress

from cells.cell import Cell
from cells.emptying import Emptier, HostCondition, MoveOrder, Need
from cells.fan_out import Answered, fan_out
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.operations import operations
from db.cell import services
from db.cell.services import Signs
from objects.operation import OperationKind
from objects.process import AGENT_BINARY
from objects.shared_defaults import SERVICE_DOWN_TIME_S
from service.liveness import Liveness
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0
RETRY_AFTER_S = 600.0
"""Seconds after an evacuation that was given up in which its server is left alone."""
AT_ONCE = 1000
"""Servers of one cell that are evacuated at the same time, as many as one request may boot."""
USER = "conductor"
"""Who asks for these operations, as 'operation show' has it."""
REPORTS_TEXT = (
    "host %s is called dead but reports: its servers stay until it is silent for %d s. If it has come back, run 'superconductor "
    "host set %s --up'. If its guests do not run, run 'superconductor host evacuate %s --dead'"
)


class _CellWatch:
    """What one process has heard of the hosts of a cell, one look after the other."""

    def __init__(self, down_time: float) -> None:
        self._down_time = down_time
        self._liveness = Liveness(down_time)
        self._counts_when_dead: dict[str, int] = {}
        """By the hosts that are called dead: how many reports of each had arrived when this was first seen."""
        self._logged: set[str] = set()
        """Hosts of which the log says that they are called dead and report."""

    def dead_and_silent(self, signs: Signs, now: float) -> list[str]:
        """The hosts that are called dead and were silent for the down time. ``now``: this process's monotonic clock, in seconds."""
        counts = dict(zip(signs.hosts, signs.report_counts, strict=True))
        silent = self._liveness.silent_services(counts, now)
        dead = {host: counts[host] for host in compress(signs.hosts, signs.forced_down)}
        self._counts_when_dead = {host: self._counts_when_dead.get(host, count) for host, count in dead.items()}
        self._logged &= dead.keys()
        for host in sorted(dead.keys() - silent - self._logged):
            if dead[host] != self._counts_when_dead[host]:
                self._logged.add(host)
                LOG.warning(REPORTS_TEXT, host, self._down_time, host, host)
        return sorted(dead.keys() & silent)


class DeadHostSweep:
    """Accepts the evacuations. While no host is called dead, a look costs one statement in each cell. A cell's feed asks for a look
    when a host was called dead.

    A host must be called dead, and this process must have seen it silent for ``down_time`` seconds. A cell's database from a backup
    calls hosts dead that have come back since. Its times of last reports prove nothing either, because they are as old.

    Hosts that are only silent stay: whether their guests run is unknown, and nobody has said that they do not. Several conductors
    may look at once: a server has one open operation at most.
    """

    def __init__(
        self,
        ledger: Ledger,
        registry: CellRegistry,
        down_time: float = SERVICE_DOWN_TIME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._registry = registry
        self._down_time = down_time
        self._clock = clock
        self._watches: dict[str, _CellWatch] = {}
        """By uuid of the cells that have answered the latest look, and have hosts that are called dead."""
        self._complaints = RateLimitedLog(LOG)

    def evacuate_dead(self) -> None:
        watches, self._watches = self._watches, {}
        answers = fan_out(self._registry.list_cells(), services.forced_down, AGENT_BINARY)
        with_dead = [answer.cell for answer in answers if isinstance(answer, Answered) and answer.value]
        for answer in fan_out(with_dead, services.read_signs, AGENT_BINARY):
            if isinstance(answer, Answered):
                watch = self._watches[answer.cell.uuid] = watches.get(answer.cell.uuid) or _CellWatch(self._down_time)
                if hosts := watch.dead_and_silent(answer.value, self._clock()):
                    self._evacuate_hosts(answer.cell, hosts)

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
