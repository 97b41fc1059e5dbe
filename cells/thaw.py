"""Compare the frozen operations of a restored API database with the cells, and let them go on or end.

``cells/verdict.py`` decides about each, and ``db/api/operations/thaw.py`` writes that. All may be repeated, by several processes at
once.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from cells.catch_up import apply_rows
from cells.cell import Cell
from cells.emptying import HostCondition, conditions_by_host
from cells.fan_out import Answered, fan_out
from cells.registry import CellRegistry
from cells.verdict import Seen, judge_operation
from db.api.claims.claims import Ledger
from db.api.operations import operations, steps, thaw
from db.api.operations.operations import OpenOperation
from db.audit import cell_rows
from db.cell import rebuild, services
from images.store import FolderStore
from objects import errors, feed_check
from objects.instance import State
from objects.instance_row import InstanceRow
from objects.operation import OperationKind
from objects.process import AGENT_BINARY
from objects.shared_defaults import SERVICE_DOWN_TIME_S
from objects.verdict import Fate, OperationVerdict
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

PAGE_SIZE = 200
"""Operations compared with one read of each cell."""


class Thaw:
    """Compares frozen operations."""

    def __init__(self, ledger: Ledger, registry: CellRegistry, images: FolderStore | None = None) -> None:
        """``images``: the image store; None: what it has is not known."""
        self._ledger = ledger
        self._database = ledger.database
        self._registry = registry
        self._images = images
        self._complaints = RateLimitedLog(LOG)

    def compare_all(self) -> Counter[Fate]:
        """Compare every frozen operation; returns what came of how many."""
        fates: Counter[Fate] = Counter()
        after = ""
        while page := self._database.read(thaw.list_frozen, PAGE_SIZE, after):
            fates.update(self.compare_page(page))
            after = page[-1].operation.server_uuid
        return fates

    def compare_page(self, page: Sequence[OpenOperation]) -> Counter[Fate]:
        """Compare these, at most PAGE_SIZE. One that cannot be decided stays frozen, and stores why."""
        fates: Counter[Fate] = Counter()
        for opened, verdict in self.list_verdicts(page):
            operation = opened.operation
            fates[verdict.fate] += 1
            if verdict.fate is Fate.UNDECIDED:
                if verdict.reason != operation.frozen:
                    self._database.write(thaw.store_reason, operation.uuid, verdict.reason)
                text = "instance %s: its %s stays as it is: %s"
                self._complaints(operation.uuid, logging.WARNING, text, operation.server_uuid, operation.kind, verdict.reason)
                continue
            done = self._ledger.write(thaw.carry_out, operation.uuid, verdict, self._database.current_time())
            if done.operations:
                about = {"state": operation.state, "fate": verdict.fate}
                log_step(LOG, f"{operation.kind}: compared", operation.server_uuid, operation.request_id, **about)
        return fates

    def list_verdicts(self, page: Sequence[OpenOperation]) -> list[tuple[OpenOperation, OperationVerdict]]:
        """What is to become of these operations. What the cells' rows tell is applied first: steps rely on it."""
        readable = [opened for opened in page if not opened.operation.unreadable]
        rows, silent = self._rows_by_server({opened.operation.server_uuid for opened in readable})
        self._take_over(readable, silent)
        back = self._hosts_back(readable, silent)
        fresh = self._database.read(operations.with_bodies, [opened.operation.uuid for opened in readable])
        return [(opened, self._judge_operation(opened, rows, silent, back)) for opened in fresh]

    def _judge_operation(
        self,
        opened: OpenOperation,
        rows: Mapping[str, Mapping[str, InstanceRow]],
        silent: Mapping[str, str],
        back: Collection[str],
    ) -> OperationVerdict:
        seen = Seen(
            rows=rows.get(opened.operation.server_uuid, {}),
            silent=silent,
            image=self._has_image(opened),
            is_host_back=opened.operation.uuid in back,
        )
        return judge_operation(opened, seen)

    def _hosts_back(self, page: Sequence[OpenOperation], silent: dict[str, str]) -> list[str]:
        """The evacuations of hosts that would not be accepted now, because these are not dead. A cell may turn out to be silent."""
        by_cell: dict[str, list[OpenOperation]] = defaultdict(list)
        for opened in page:
            cell_uuid = opened.source.server.cell_uuid if opened.source is not None else None
            if opened.operation.kind is OperationKind.EVACUATE and cell_uuid is not None and cell_uuid not in silent:
                by_cell[cell_uuid].append(opened)
        back: list[str] = []
        for cell_uuid, evacuations in by_cell.items():
            try:
                seen = self._registry.get(cell_uuid).read(services.list_seen, AGENT_BINARY)
            except (errors.CellUnavailable, errors.NotFound) as error:
                silent[cell_uuid] = str(error)
                continue
            condition_by_host = conditions_by_host(seen, SERVICE_DOWN_TIME_S)
            back += [
                opened.operation.uuid
                for opened in evacuations
                if condition_by_host.get(opened.operation.source_host or "") is not HostCondition.DEAD
            ]
        return back

    def _has_image(self, opened: OpenOperation) -> bool | None:
        """Whether the store has what the operation writes there, or reads; None: it does not answer, or that is nothing."""
        operation = opened.operation
        if self._images is None:
            return None
        try:
            if operation.kind is OperationKind.SHELVE:
                return self._images.has_snapshot(operation.uuid)
            if operation.kind is OperationKind.UNSHELVE and opened.source is not None:
                snapshot = self._database.read(steps.snapshots_of, [opened.source]).get(opened.source.uuid)
                return None if snapshot is None else self._images.has_snapshot(snapshot)
            if operation.kind.makes_image:
                self._images.get_record(operation.uuid)
                return True
        except errors.NotFound:
            return False
        except errors.ServiceUnavailable as error:
            self._complaints("images", logging.WARNING, "the image store does not answer: %s", error)
        return None

    def _rows_by_server(self, servers: Iterable[str]) -> tuple[dict[str, dict[str, InstanceRow]], dict[str, str]]:
        """The rows of all bodies of these servers that were handed over to a cell, by server and body; and the silent cells."""
        ordered_servers = sorted(servers)
        silent = {uuid: str(reason) for uuid, reason in self._registry.reasons_by_uuid().items()}
        rows_of_servers: dict[str, dict[str, InstanceRow]] = defaultdict(dict)
        for answer in fan_out(self._registry.list_cells(), cell_rows.bodies_of_servers, ordered_servers):
            if not isinstance(answer, Answered):
                silent[answer.cell.uuid] = answer.reason
                continue
            for row in answer.value:
                if row.state is not State.STAGED:
                    rows_of_servers[row.uuid_of_server][row.uuid] = row
        return rows_of_servers, silent

    def _take_over(self, page: Sequence[OpenOperation], silent: dict[str, str]) -> None:
        """Apply the rows of the operations' bodies. A cell of which that fails is as silent as others."""
        by_cell: dict[str, list[str]] = defaultdict(list)
        for opened in page:
            for body in (opened.source, opened.twin):
                if body is not None and body.server.cell_uuid is not None and body.server.cell_uuid not in silent:
                    by_cell[body.server.cell_uuid].append(body.uuid)
        for cell_uuid, uuids in by_cell.items():
            try:
                self._apply_rows_of(self._registry.get(cell_uuid), uuids)
            except (errors.CellUnavailable, errors.NotFound, errors.Invalid) as error:
                silent[cell_uuid] = str(error)

    def _apply_rows_of(self, cell: Cell, uuids: Sequence[str]) -> None:
        if cell.current_mapping.is_cell0:
            return
        read = cell.read(rebuild.snapshot_of, sorted(uuids), cell.current_time())
        if not apply_rows(self._ledger, cell, [feed_check.checked_event(event) for event in read.events]):
            raise errors.CellUnavailable(f"the feed of cell '{cell.name}' is being read")
