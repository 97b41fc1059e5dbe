"""Remove a cell whose database will never answer again, with an account of what it leaves behind.

In this order, each step in transactions of its own, so that an interrupted removal is completed by another one: the cell takes no
more builds; operations that lose one of two bodies come to an end with the other one; what has a claim there and was not handed
over goes elsewhere; builds that were end as ERROR, servers are deleted; and when nothing is left, the cell is forgotten with its
hosts in one transaction that sees to it.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from cells.administration import CellChange, change_cell
from cells.cell import Cell
from db.api.claims.claims import Ledger
from db.api.deployment.cell_mappings import HasServers
from db.api.operations import thaw
from db.api.reconcile import cell_removal
from db.api.reconcile.cell_removal import CellClaim, CellContents, Resident
from db.sql import ready
from objects import errors
from objects.base import Object
from objects.cell import CellMapping, CellState
from objects.operation import OperationState

EMPTYING_ROUNDS_LIMIT = 20
"""Times that what arrives in the cell meanwhile is looked for again: only what was on its way can, and soon nothing is."""
_SAID = re.compile(r"\(1\d\d\d, |FATAL:")
"""What a server has said itself, in the words of MariaDB and PostgreSQL, and not who looked for it: so it is there."""
_GONE = re.compile(r"\(1049, |database .* does not exist")
"""But that it does not have the database."""


LOST = "What held it was lost, and has been removed."
"""The fault of servers that end with their cell. Tenants read it, so it names no cell."""


class RemovalEntry(Object, frozen=True, kw_only=True):
    """One line of the account. ``outcome`` says what becomes of it.

    ``kind``: a ``server``, a ``build`` not handed over, a ``claim`` that nothing stands on, a ``host``, a project's ``quota``.
    """

    kind: str
    id: str
    name: str = ""
    project: str = ""
    state: str = ""
    host: str = ""
    amounts: str = ""
    outcome: str


def silence_of(cell: Cell) -> str | None:
    """Why the cell's database does not answer; None if it does. Raises Conflict where its server does, and lets nobody in."""
    try:
        cell.read(ready.check_answer)
    except errors.CellUnavailable as error:
        reason = str(error)
        if _SAID.search(reason) and not _GONE.search(reason):
            raise errors.Conflict(f"{reason}; its server is alive: 'cell update' gives the cell a login that works") from None
        return reason
    return None


def remove_cell(ledger: Ledger, mapping: CellMapping, *, dead: bool, dry_run: bool = False) -> list[RemovalEntry]:
    """Remove the cell, or only say what that would do; returns the account.

    ``dead``: its database does not answer (``silence_of``). Raises Conflict where it is not and something lives in the cell, and
    NotFound if somebody else removes it at the same time.
    """
    database = ledger.database
    estate = database.read(cell_removal.survey_cell, mapping.uuid, LOST)
    if not dead and (estate.residents or estate.guests):
        raise HasServers(
            f"Cell {mapping.name!r} answers, and {len(estate.residents)} servers and {len(estate.guests)} other claims are there: "
            "delete the servers and then the cell; --offline is for a cell whose database is lost"
        )
    account = Account()
    account.add_contents(estate)
    if dry_run:
        return account.list_entries()
    if mapping.state is CellState.ENABLED:
        change_cell(database, mapping.uuid, CellChange(state=CellState.DISABLED))
    # what could contradict these is lost with the cell
    frozen = sorted({r.operation.operation.uuid for r in estate.residents if r.operation and r.operation.operation.frozen})
    database.write(thaw.unfreeze_operations, frozen, database.current_time())
    if leaving := [r.operation for r in estate.residents if r.operation is not None and _leaves_live(r)]:
        for start in range(0, len(leaving), cell_removal.SERVERS_PER_TRANSACTION):
            ledger.write(cell_removal.ask_twins, mapping.uuid, leaving[start : start + cell_removal.SERVERS_PER_TRANSACTION])
        raise errors.Conflict(
            f"{len(leaving)} servers of cell {mapping.name!r} were being migrated live to other cells, which are now asked whether "
            "they have arrived: run the command again once 'operation list' does not show them any more"
        )
    for last in (*[False] * (EMPTYING_ROUNDS_LIMIT - 1), True):
        _empty_cell(ledger, mapping.uuid, estate)
        try:
            database.write(cell_removal.forget_cell, mapping.uuid, failed_with=LOST)
        except errors.Conflict:  # something was handed over, claimed or deleted while the rest was looked at
            if last:
                raise
            estate = database.read(cell_removal.survey_cell, mapping.uuid, LOST)
            account.add_contents(estate)
        else:
            break
    return account.list_entries()


def _empty_cell(ledger: Ledger, cell_uuid: str, estate: CellContents) -> None:
    """Everything that lives in the cell ends or goes elsewhere, a page in a transaction."""
    now = ledger.database.current_time()
    fates: dict[RemovalFate, list[str]] = {fate: [] for fate in RemovalFate}
    for resident in estate.residents:
        fates[fate_of(resident)].append(resident.uuid)
    requested = [guest.uuid for guest in estate.guests if guest.requested]
    left_behind = [guest.uuid for guest in estate.guests if not guest.requested]
    for fate, step in _STEPS.items():
        moving = [r.operation for r in estate.residents if r.operation is not None and fate_of(r) is fate]
        for start in range(0, len(moving), cell_removal.SERVERS_PER_TRANSACTION):
            ledger.write(step, cell_uuid, moving[start : start + cell_removal.SERVERS_PER_TRANSACTION], LOST, now)
    for page in _split_pages(requested):
        ledger.write(cell_removal.send_elsewhere, cell_uuid, page, now)
    for page in _split_pages(fates[RemovalFate.FAILED]):
        ledger.write(cell_removal.fail_builds, cell_uuid, page, LOST, now)
    for page in _split_pages(fates[RemovalFate.DELETED]):
        ledger.write(cell_removal.delete_servers, cell_uuid, page, LOST, now)
    for page in _split_pages(fates[RemovalFate.CONFIRMED]):
        ledger.write(cell_removal.confirm_deletes, cell_uuid, page, now)
    for page in _split_pages(left_behind):
        ledger.write(cell_removal.release_orphans, page)


def _split_pages(uuids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(uuids), cell_removal.SERVERS_PER_TRANSACTION):
        yield uuids[start : start + cell_removal.SERVERS_PER_TRANSACTION]


# -- the account -------------------------------------------------------------------------------------------------------------------


class RemovalFate(enum.StrEnum):
    """What becomes of a server of the cell, as the account says it."""

    DELETED = "deleted"
    FAILED = "ended in ERROR"
    CONFIRMED = "its delete is confirmed"
    GIVEN_UP = "its operation is given up"
    REPLACED = "replaced by the body that its operation made"
    SHELVED = "it is shelved, and leaves its host"
    TURNED_BACK = "its server is again what it was before its operation"
    ASKED = "the cell that it is migrated to live is asked first"


_STEPS = {
    RemovalFate.GIVEN_UP: cell_removal.give_up,
    RemovalFate.REPLACED: cell_removal.go_on,
    RemovalFate.SHELVED: cell_removal.offload_servers,
    RemovalFate.TURNED_BACK: cell_removal.turn_back,
}
_WAITING = (OperationState.VERIFY, OperationState.REVERTING)


def fate_of(resident: Resident) -> RemovalFate:
    """A build ends in ERROR: whoever asked for it is told, and an all-or-nothing batch fails as a whole. Others are deleted."""
    if resident.deleted and resident.fault != LOST:
        return RemovalFate.CONFIRMED
    if fate := _fate_of_move(resident):
        return fate
    if not resident.deleted and (resident.state == "building" or (resident.state == "error" and resident.fault == LOST)):
        return RemovalFate.FAILED
    return RemovalFate.DELETED


def _leaves_live(resident: Resident) -> bool:
    """Whether its guest may have gone over to another cell: only that cell can say."""
    opened = resident.operation
    if opened is None or resident.deleted or opened.operation.state is not OperationState.SENDING or opened.twin is None:
        return False
    return (
        opened.source is not None
        and opened.source.uuid == resident.uuid
        and opened.source.server.cell_uuid != opened.twin.server.cell_uuid
    )


def _fate_of_move(resident: Resident) -> RemovalFate | None:
    """What becomes of one of the two bodies of an operation, if the other one is elsewhere and may be the server."""
    opened = resident.operation
    if opened is None or resident.deleted or opened.source is None:
        return None
    if opened.operation.state is OperationState.SHELVED:
        return RemovalFate.SHELVED
    if opened.twin is None:
        return None
    source, twin, state = opened.source.server, opened.twin.server, opened.operation.state
    if source.cell_uuid == twin.cell_uuid:
        return None
    if _leaves_live(resident):
        return RemovalFate.ASKED
    if opened.twin.uuid == resident.uuid:
        if state in (OperationState.BUILDING, OperationState.SENDING):
            return RemovalFate.GIVEN_UP
        return RemovalFate.TURNED_BACK if state in _WAITING and not source.deleted else None
    is_made = twin.state == "active" and not twin.deleted
    return RemovalFate.REPLACED if is_made and state in (OperationState.BUILDING, OperationState.VERIFY) else None


class Account:
    """What was found, each thing once, as it was when it was seen first."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], RemovalEntry] = {}
        self._freed: dict[str, Counter[str]] = {}

    def add_contents(self, estate: CellContents) -> None:
        for resident in estate.residents:
            entry = _of_server(resident)
            if self._add_entry(entry) and entry.outcome == RemovalFate.DELETED and resident.charged is not None:
                cores, ram = resident.charged
                freed = self._freed.setdefault(resident.project_id, Counter())
                freed.update({"servers": 0 if resident.hidden else 1, "cores": cores, "MiB": ram})
        for guest in estate.guests:
            kind, outcome = ("build", "sent elsewhere") if guest.requested else ("claim", "released")
            self._add_entry(
                RemovalEntry(
                    kind=kind,
                    id=guest.uuid,
                    name=guest.name,
                    project=guest.project_id,
                    host=guest.claim.host,
                    amounts=_describe_amounts(guest.claim),
                    outcome=outcome,
                )
            )
        for host in estate.hosts:
            aggregates = estate.aggregates.get(host, ())
            outcome = f"forgotten, also in {', '.join(aggregates)}" if aggregates else "forgotten"
            self._add_entry(RemovalEntry(kind="host", id=host, host=host, outcome=outcome))

    def _add_entry(self, entry: RemovalEntry) -> bool:
        return self._entries.setdefault((entry.kind, entry.id), entry) is entry

    def list_entries(self) -> list[RemovalEntry]:
        """Servers, builds, claims and hosts, then the quota of each project that is freed."""
        quotas = [
            RemovalEntry(
                kind="quota",
                id=project,
                project=project,
                amounts=", ".join(f"{amount} {name}" for name, amount in freed.items()),
                outcome="freed",
            )
            for project, freed in sorted(self._freed.items())
        ]
        return [*self._entries.values(), *quotas]


def _of_server(resident: Resident) -> RemovalEntry:
    return RemovalEntry(
        kind="server",
        id=resident.uuid,
        name=resident.name,
        project=resident.project_id,
        state=resident.state,
        host=resident.host or "",
        amounts="" if resident.claim is None else _describe_amounts(resident.claim),
        outcome=str(fate_of(resident)),
    )


def _describe_amounts(claim: CellClaim) -> str:
    return f"{claim.vcpus} vCPUs, {claim.memory_mb} MiB, {claim.disk_gb} GiB"
