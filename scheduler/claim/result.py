"""Turn a job that was placed or refused into placements and a decision record."""

from __future__ import annotations

from uuid import UUID, uuid4, uuid5

import numpy as np

from objects.group import GroupPolicy
from objects.inventory import Placement
from objects.selection import HostCapacity, Selection
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.explain.decision_record import decision_of
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.host_table import HostTable

_WAITING = UUID("7d0bd3ea-52a4-4a3c-9f0a-0b0c2b6b7f4e")


def conclude_job(job: Job, request: Request, table: HostTable, driver: SchedulerDriver, moment: PlanContext) -> None:
    """Give the job its placements, unless it was refused, and its decision."""
    decision_id = _waiting_id(job) if job.waiting_reason else str(uuid4())
    if job.is_open:
        group = job.spec.group
        holds = group is not None and group.policy is GroupPolicy.ANTI_AFFINITY
        placements: list[Placement] = []
        for uuid, row in job.rows.items():
            others = job.alternates.get(uuid, [])
            selections = [
                _make_selection(table, request, chosen, job.spec.fences[uuid], decision_id, job.numa_nodes.get((uuid, chosen), ()))
                for chosen in (row, *others)
            ]
            placements.append(
                Placement(
                    instance_uuid=uuid,
                    inventory_id=table.inventory.item(row),
                    selections=tuple(selections),
                    held=tuple(table.hosts[other] for other in others) if holds else (),
                )
            )
        job.placements = tuple(placements)
    job.decision = decision_of(decision_id, job, request, table, driver, moment)


def _waiting_id(job: Job) -> str:
    """An id that stays the same while the same servers wait, so that the new decision overwrites the last one.

    No other transaction writes it meanwhile, because the servers' requests are locked.
    """
    return str(uuid5(_WAITING, job.standing.needed[0]))


def _make_selection(
    table: HostTable, request: Request, row: int, fence: int, decision_id: str, numa_nodes: tuple[int, ...]
) -> Selection:
    if table.current_aggregates.lowering:
        hosts = Hosts(table, request, np.array([row]))
        capacities = {resource: float(hosts.capacity_of(resource)[0]) for resource in ("vcpus", "memory_mb", "disk_gb")}
    else:
        capacities = {
            "vcpus": table.cap_vcpus.item(row),
            "memory_mb": table.cap_memory_mb.item(row),
            "disk_gb": table.cap_disk_gb.item(row),
        }
    return Selection(
        host=table.hosts[row],
        node=table.nodes[row],
        cell_uuid=table.cells[table.cell.item(row)].uuid,
        limits=HostCapacity(
            **capacities,
            resources={name: int(table.classes[name].cap[row]) for name in request.resources},
            numa_nodes=numa_nodes,
        ),
        availability_zone=table.zones[table.zone.item(row)],
        fence=fence,
        decision_id=decision_id,
    )
