"""Check servers that have had operations: where they point to, bodies that nothing needs, and operations that do not end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cells.thaw import Thaw
from conductor.audit import mend
from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from db.api.operations import operations as api_operations
from db.api.operations import steps
from db.api.operations.operations import Body, OpenOperation
from db.api.reconcile import operation_repair
from db.audit import operations, servers
from db.audit.operations import BodyRole
from db.audit.servers import Record
from objects import errors
from objects.operation import OperationState
from objects.task import Power
from objects.utc import to_utc
from objects.verdict import Fate

UNSAVED = "shelved server without its snapshot"
SPARE = "body that no server and no operation needs"
POINTER = "server that is a body which is gone"
HIDDEN = "body shown or hidden against its server's pointer"
HELD = "held server without an operation"
TWINLESS = "operation whose new body is gone"
LATE = "operation past its deadline"
FROZEN = "operation not compared since a restore"

PLACING = (OperationState.PLACING, OperationState.HOLDING, OperationState.BUILDING)
"""The states in which an operation can be given up."""
WAITING = (OperationState.VERIFY, OperationState.SHELVED)
"""The states that have no deadline."""
LOST = "The record of its new body was lost."


def list_pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: places.api.read(operations.bodies_after, after, AUDIT_PAGE_SIZE))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    roles = places.api.read(operations.list_roles, page.keys)
    findings = [finding for role in roles for finding in _judge_body(places, role)]
    findings += _judge_snapshots(
        places, [role.body for role in roles if role.body.server.is_shelved and not role.body.server.deleted]
    )
    # of each operation once: beside the home row
    open_ones = [role.operation for role in roles if role.operation is not None and role.home == role.body]
    bodies = places.api.read(operations.with_bodies, open_ones)
    _, records = places.api.read(servers.read_records, [role.operation.twin_uuid or "" for role in bodies])
    for role in bodies:
        findings += _judge_operation(places, role, records.get(role.operation.twin_uuid or ""))
    return findings


def _judge_body(places: Places, role: BodyRole) -> Iterator[Finding]:
    body, shown, server = role.body, role.shown, role.body.server
    if server.deleted:
        return
    make = partial(Finding, key=body.uuid, cell=places.name_of(server.cell_uuid))
    description = body.uuid if body.uuid == role.uuid_of_server else f"{body.uuid}, a body of {role.uuid_of_server}"
    if shown is None or shown.server.deleted:
        advice = "'superconductor db restored --api' points it to the body that runs, if it has one"
        yield make(kind=POINTER, what=f"{role.uuid_of_server}, whose body {body.uuid} is on record", advice=advice)
    elif not role.is_needed:
        if body.server.power is Power.INCOMING:
            advice = "left as it is: its server may have been migrated to it live; look which of the two guests runs"
            yield make(kind=SPARE, what=description, advice=advice)
        elif role.is_superseded:
            yield make(kind=SPARE, what=description, repair="deleted, with its guest", ends_guest=True)
        else:
            yield make(kind=SPARE, what=description, advice=f"left as it is: its server is {shown.uuid}, which is not ACTIVE")
    elif body.hidden is role.is_shown:
        yield make(kind=HIDDEN, what=description, repair="shown" if role.is_shown else "hidden", safe=True)
    elif operation_repair.is_stuck(role):
        yield make(kind=HELD, what=description, repair="started, once its other bodies have ended")


def _judge_snapshots(places: Places, shelved: Sequence[Body]) -> Iterator[Finding]:
    """Nothing is known of a store that cannot be used."""
    if places.images is None or not shelved:
        return
    snapshots = places.api.read(steps.snapshots_of, shelved)
    for body in shelved:
        snapshot = snapshots.get(body.uuid)
        try:
            if snapshot is not None and places.images.has_snapshot(snapshot):
                continue
        except errors.ServiceUnavailable as error:
            places.unknown["images"] = str(error)
            return
        advice = "restore it in the image store; without it the server cannot be unshelved, only deleted"
        yield Finding(
            kind=UNSAVED, key=body.uuid, what=f"{body.server.uuid}, whose snapshot is {snapshot or 'not known'}", advice=advice
        )


def _judge_operation(places: Places, opened: OpenOperation, twin: Record | None) -> Iterator[Finding]:
    operation = opened.operation
    make = partial(Finding, key=operation.server_uuid)
    description = f"{operation.uuid}, the {operation.kind} of {operation.server_uuid} in state {operation.state}"
    if operation.frozen is not None:
        yield from _judge_frozen(places, opened, partial(make, kind=FROZEN, what=description))
        return
    if operation.state in PLACING and _is_lost(places, operation.twin_uuid, twin):
        yield make(kind=TWINLESS, what=description, repair="given up", safe=True, facts=(operation.uuid,))
    elif operation.state not in WAITING and operation.deadline < places.overdue_before:
        due = to_utc(operation.deadline).strftime("%Y-%m-%dT%H:%M:%SZ")
        advice = "make sure that a super conductor and its cells run; see their logs and 'superconductor dead-letter list'"
        yield make(kind=LATE, what=f"{description}, should have ended at {due}", advice=advice)


def _judge_frozen(places: Places, opened: OpenOperation, make: partial[Finding]) -> Iterator[Finding]:
    for _, verdict in _new_thaw(places).list_verdicts([opened]):
        if verdict.fate is Fate.UNDECIDED:
            yield make(advice=verdict.reason)
        else:
            yield make(repair="compared, and continued or ended", safe=True, facts=(opened.operation.uuid,))


def _new_thaw(places: Places) -> Thaw:
    return Thaw(places.ledger, places.registry, places.images)


def _is_lost(places: Places, uuid: str | None, twin: Record | None) -> bool:
    """Whether nothing can become of a twin: it was deleted, or it is neither queued nor in a cell."""
    if twin is not None and (twin.requested or (twin.cell_uuid is not None and not twin.deleted)):
        return False
    if twin is not None and twin.deleted:
        return True
    return mend.handed_over(places, [uuid or ""]) == set()


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    now = places.api.current_time()
    if twinless := of_kind(findings, TWINLESS):
        places.ledger.write(steps.give_up, {str(finding.facts[0]): LOST for finding in twinless}, now)
    if frozen := [str(finding.facts[0]) for finding in of_kind(findings, FROZEN) if finding.repair]:
        _new_thaw(places).compare_page(places.api.read(api_operations.with_bodies, frozen))
    if turned := of_kind(findings, HIDDEN):
        places.api.write(operation_repair.follow_pointers, [finding.key for finding in turned])
    if spare := of_kind(findings, SPARE):
        deleted = places.ledger.write(operation_repair.delete_spare, [finding.key for finding in spare if finding.repair], now)
        for cell_uuid in sorted({cell for cell in deleted.values() if cell is not None}):
            mend.carry_deletes(places, cell_uuid, [uuid for uuid, cell in deleted.items() if cell == cell_uuid])
    if (held := of_kind(findings, HELD)) and not places.unknown:  # a cell that does not answer may have a body that runs
        places.api.write(operation_repair.start_held, [finding.key for finding in held], now)
