"""Write leased requests into the cells of their hosts as STAGED instances: one transaction per cell, all at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from cells.bulkhead import PendingCall
from cells.cell import Cell
from conductor.cell_lookup import CellLookup
from conductor.placement import Placed, by_batch, by_cell
from conductor.requeue import Requeuer
from db.cell import staging
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase, Database
from objects import errors
from objects.spec import BootSecrets
from service import metrics
from service.bisect import isolate_failures
from service.logs import log_step
from service.vault import Vault

LOG = logging.getLogger(__name__)

STAGE_WAIT_S = 0.5
"""Seconds to wait for all cells to stage. Staged builds are then handed over without waiting for slower cells."""


class Stager:
    """Stages. A row that a cell refuses is set aside, and the others are written."""

    def __init__(self, database: ApiDatabase, cell_lookup: CellLookup, vault: Vault, unbuilt: Requeuer) -> None:
        self._database = database
        self._cell_lookup = cell_lookup
        self._vault = vault
        self._unbuilt = unbuilt

    def stage_placed(
        self, placed: Sequence[Placed], secrets: Mapping[str, BootSecrets | None]
    ) -> Iterator[tuple[list[Placed], list[Placed]]]:
        """Stage in one transaction per cell, all concurrently. ``secrets``: by batch ID.

        Yields (staged, refused): once for all cells that answer within ``STAGE_WAIT_S``, then once for each slower cell.
        Refused: the instances whose cell could not take them.
        """
        under_way = []
        for cell, members in by_cell(placed).items():
            under_way.append((cell, members, self._begin_stage(cell, members, secrets), time.monotonic()))
        end = time.monotonic() + STAGE_WAIT_S
        late = [pending for pending in under_way if not pending[2].ends_within(end - time.monotonic())]
        soon = [self._wait_staged(*pending, secrets) for pending in under_way if pending not in late]
        yield [p for staged, _ in soon for p in staged], [p for _, refused in soon for p in refused]
        for pending in late:
            yield self._wait_staged(*pending, secrets)

    def _wait_staged(
        self,
        cell: Cell,
        members: list[Placed],
        written: PendingCall[list[str]],
        began: float,
        secrets: Mapping[str, BootSecrets | None],
    ) -> tuple[list[Placed], list[Placed]]:
        """Wait for one cell's transaction; return (staged, refused)."""
        try:
            accepted = self._accepted_uuids(cell, members, written, secrets)
        except errors.Transient as error:
            cell.complaints("builds", logging.WARNING, "cell %s cannot take %d builds: %s", cell.name, len(members), error)
            return [], members
        finally:
            metrics.STAGE["stage"].observe(time.monotonic() - began)
        staged = [p for p in members if p.request.instance_uuid in accepted]
        if len(staged) < len(members):
            refused = [p.request.instance_uuid for p in members if p.request.instance_uuid not in accepted]
            self._cell_lookup.adopt_refused(cell, refused)
        for p in staged:
            log_step(LOG, "staged", p.request.instance_uuid, p.batch.spec.request_id, cell=cell.name, host=p.selection.host)
        return staged, []

    def _accepted_uuids(
        self, cell: Cell, members: list[Placed], written: PendingCall[list[str]], secrets: Mapping[str, BootSecrets | None]
    ) -> set[str]:
        """The UUIDs staged in the cell as requested. A row that the cell refuses is set aside, the others are written."""
        try:
            return set(written())
        except errors.Transient:
            raise
        except Exception as error:  # noqa: BLE001 - one row causes it: halves are retried, a row that fails alone is set aside
            if len(members) == 1:
                self._unbuilt.set_aside({members[0].request: error})
                return set()
        done = isolate_failures(lambda group: self._begin_stage(cell, group, secrets)(), members)
        self._unbuilt.set_aside({p.request: error for p, error in done.failed})
        return {uuid for uuids in done.results for uuid in uuids}

    def _begin_stage(
        self, cell: Cell, members: Sequence[Placed], secrets: Mapping[str, BootSecrets | None]
    ) -> PendingCall[list[str]]:
        parts: list[staging.StagedPart] = []
        for batch_id, its in by_batch(members).items():
            content = secrets.get(batch_id)
            sealed = self._vault.seal_secrets(cell.uuid, batch_id, content) if content is not None else None
            news = tuple(
                staging.NewInstance(
                    instance=p.staged_instance,
                    name=p.request.name,
                    launch_index=p.request.launch_index,
                    created_at=p.request.created_at,
                )
                for p in its
            )
            parts.append(staging.StagedPart(spec=its[0].batch.spec, news=news, sealed=sealed))
        return cell.begin_write(_stage_parts, cell.database, parts, self._database.current_time())


def _stage_parts(tx: CellTransaction, database: Database, parts: Sequence[staging.StagedPart], api_now: float) -> list[str]:
    """The transaction in a cell. Deadlines are converted to the clock of the cell's database: the remaining time stays the same."""
    now = database.current_time()
    later = now - api_now
    shifted = [
        msgspec.structs.replace(
            part,
            news=tuple(
                msgspec.structs.replace(new, instance=msgspec.structs.replace(new.instance, deadline=new.instance.deadline + later))
                for new in part.news
            ),
        )
        for part in parts
    ]
    return staging.stage_all(tx, shifted, now)
