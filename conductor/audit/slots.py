"""Compare the slots of server groups with the claims of their members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db.api.claims import claim_repair
from db.audit import groups
from db.audit.groups import ClaimedMember
from objects.inventory import Slot

STRAY = "slot without member"
MISSING = "member without its slot"
HELD = "slot held for a build that is over"


def list_pages(places: Places) -> Iterator[AuditPage]:
    for read in (groups.slots_after, groups.grouped_after):
        yield from pages_of(lambda after, read=read: places.api.read(read, after, AUDIT_PAGE_SIZE))  # type: ignore[misc]  # mypy cannot infer it


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    slots = places.api.read(groups.list_slots, page.keys)
    members = places.api.read(groups.members_by_uuid, page.keys)
    built = places.api.read(groups.list_built, page.keys)
    claiming = places.api.read(groups.list_claiming, page.keys)
    findings: list[Finding] = []
    real: dict[str, set[str]] = defaultdict(set)
    for slot in slots:
        uuid, member = slot.instance_uuid, members.get(slot.instance_uuid)
        description = f"{uuid} in group {slot.group_uuid} on {slot.host}"
        if uuid not in claiming or (member is not None and not _belongs_to_group(slot, member)):
            findings.append(Finding(kind=STRAY, key=uuid, what=description, repair="removed", safe=True))
        elif slot.held and uuid in built:
            findings.append(Finding(kind=HELD, key=uuid, what=description, repair="freed", safe=True))
        elif not slot.held:
            real[uuid].add(slot.host)
    for uuid, member in sorted(members.items()):
        if member.host not in real[uuid]:
            description = f"{uuid} in group {member.group_uuid} on {member.host}"
            cell = places.name_of(member.cell_uuid)
            findings.append(Finding(kind=MISSING, key=uuid, what=description, cell=cell, repair="given its slot", safe=True))
    return findings


def _belongs_to_group(slot: Slot, member: ClaimedMember) -> bool:
    return slot.group_uuid == member.group_uuid and (slot.held or slot.host == member.host)


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    places.ledger.write(claim_repair.mend_slots, sorted({finding.key for finding in findings}))
