"""Turn a job that was placed or refused into what is written and answered."""

from __future__ import annotations

import uuid

from objects.group import Policy
from objects.inventory import Placement
from objects.selection import Limits, Selection
from scheduler.drivers.base import Driver
from scheduler.explain import decision_of
from scheduler.job import Job, Moment
from scheduler.request import Request
from scheduler.table import HostTable


def conclude(job: Job, request: Request, table: HostTable, driver: Driver, moment: Moment) -> None:
    """Give the job its placements, unless it was refused, and its decision."""
    decision_id = str(uuid.uuid4())
    if job.short is None:
        job.placements = tuple(_placement(job, table, instance_uuid, row, decision_id) for instance_uuid, row in job.rows.items())
    job.decision = decision_of(decision_id, job, request, table, driver, moment)


def _placement(job: Job, table: HostTable, instance_uuid: str, row: int, decision_id: str) -> Placement:
    others = job.alternates.get(instance_uuid, [])
    group = job.spec.group
    holds = group is not None and group.policy is Policy.ANTI_AFFINITY
    fence = job.spec.fences[instance_uuid]
    return Placement(
        instance_uuid=instance_uuid,
        inventory_id=int(table.inventory[row]),
        selections=tuple(_selection(table, each, fence, decision_id) for each in (row, *others)),
        held=tuple(table.hosts[other] for other in others) if holds else (),
        evicted=job.evicted.get(instance_uuid, ()),
    )


def _selection(table: HostTable, row: int, fence: int, decision_id: str) -> Selection:
    limits = Limits(
        vcpus=float(table.cap_vcpus[row]), memory_mb=float(table.cap_memory_mb[row]), disk_gb=float(table.cap_disk_gb[row])
    )
    return Selection(
        host=table.hosts[row],
        node=table.nodes[row],
        cell_uuid=table.cells[int(table.cell[row])].uuid,
        limits=limits,
        availability_zone=table.zones[int(table.zone[row])],
        fence=fence,
        decision_id=decision_id,
    )
