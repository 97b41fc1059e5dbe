"""Place the servers of lost hosts elsewhere, tentatively. Greedy: the largest first, and no server moves to make room.

Every function needs the table's lock. The caller wraps placing in ``table.tentative()``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from db.api.claims.displaced import ClaimedBody, DisplacedServers
from objects import errors, stored
from objects.capacity import Loss, LossKind, LossOutcome, StrandedServer
from objects.context import RequestContext
from objects.inventory import Slot
from objects.spec import Image, RequestSpec, ServerProperties
from scheduler.engine import engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext, checked_job
from scheduler.engine.surveying import survey
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import Members
from scheduler.table.arrays import Ints
from scheduler.table.host_table import HostTable

SERVERS_LIMIT = 10_000
"""Maximum number of servers that a question may displace: placing them holds the table's lock."""
KINDS_LIMIT = 500
"""Maximum number of kinds of these servers. Servers of one kind are placed in one pass over the fleet."""


class Kind(NamedTuple):
    """Servers whose requests are alike, as a job that places as many of them as fit."""

    job: Job
    bodies: tuple[ClaimedBody, ...]


def rows_of(table: HostTable, lost: Loss) -> Ints:
    """The rows that are lost."""
    if lost.kind is LossKind.HOST:
        return np.array(table.rows_of.get(lost.name.lower(), ()), np.int64)
    if lost.kind is LossKind.CELL:
        return np.flatnonzero(table.home[: table.size] == table.cell_number(lost.name))
    if lost.kind is LossKind.RACK:
        names = table.current_aggregates.rack_layout.names
        rack = names.index(lost.name) if lost.name in names else len(names)
        return np.flatnonzero((table.racks_of(slice(table.size)) == rack) & (table.home[: table.size] >= 0))
    return np.flatnonzero((table.zone[: table.size] == table.zone_number(lost.name)) & (table.home[: table.size] >= 0))


def spec_without_lost(spec: RequestSpec, lost: Loss, hosts: Sequence[str]) -> RequestSpec:
    """The request, kept off what is lost by the filters that always run."""
    if lost.kind is LossKind.CELL:
        return msgspec.structs.replace(spec, excluded_cells=(*spec.excluded_cells, lost.name))
    return msgspec.structs.replace(spec, ignore_hosts=(*spec.ignore_hosts, *hosts))


def kinds_of(context: RequestContext, displaced: DisplacedServers, lost: Loss, hosts: Sequence[str]) -> list[Kind]:
    """The servers by kind, the largest first. Raises TooCostly for too many kinds."""
    alike: defaultdict[str, list[ClaimedBody]] = defaultdict(list)
    plain: dict[str, RequestSpec] = {}
    for body in displaced.bodies:
        spec = _plain_spec(displaced.specs[body.batch_id], body.image)
        key = stored.dump_value(spec)
        plain[key] = spec
        alike[key].append(body)
    if len(alike) > KINDS_LIMIT:
        raise errors.TooCostly(f"The servers are of more than {KINDS_LIMIT} kinds: ask what happens after losing less.")
    kinds: list[Kind] = []
    for key, bodies in alike.items():
        spec = msgspec.structs.replace(
            spec_without_lost(plain[key], lost, hosts),
            batch_id=bodies[0].batch_id,
            num_instances=len(bodies),
            fences={body.uuid: 1 for body in bodies},
        )
        kinds.append(Kind(checked_job(context, spec, list(spec.fences)), tuple(bodies)))
    return sorted(kinds, key=lambda kind: (kind.job.takes.vcpus, kind.job.takes.memory_mb), reverse=True)


def place_bodies(
    table: HostTable, driver: SchedulerDriver, moment: PlanContext, kinds: Sequence[Kind], slots: Sequence[Slot], lost: Ints
) -> LossOutcome:
    """Place what fits, and tell what does not. The table then shows what was placed."""
    names = {table.hosts[row].lower() for row in lost.tolist()}
    members: dict[str, Members] = {}
    stranded: list[StrandedServer] = []
    for job, bodies in kinds:
        request = job.make_request(table, moment)
        if job.spec.group is not None:
            group = job.spec.group.uuid
            remaining_slots = [slot for slot in slots if slot.group_uuid == group and slot.host.lower() not in names]
            request.members = members.setdefault(group, Members(remaining_slots))
        chosen = driver.place_instances(table, request, survey(table, driver, request, len(bodies)), len(bodies))
        if len(chosen) < len(bodies):
            _, counts = engine.narrow_hosts(driver.chain_for(request).all_filters, Hosts(table, request), request)
            reason = driver.refusal_message(counts, len(table), 0, 1)
            stranded += [_stranded_server(table, job, body, reason) for body in bodies[len(chosen) :]]
    servers = sum(len(kind.bodies) for kind in kinds)
    return LossOutcome(hosts=lost.size, servers=servers, placed=servers - len(stranded), stranded=tuple(stranded))


def _plain_spec(spec: RequestSpec, rebuilt_from: Image | None) -> RequestSpec:
    """The request of one new server with the conditions that an evacuation keeps, and nothing that tells it from others."""
    return RequestSpec(
        batch_id="",
        request_id="",
        project_id=spec.project_id,
        user_id="",
        name="",
        flavor=spec.flavor,
        image=rebuilt_from or spec.image,
        availability_zone=spec.availability_zone,
        group=spec.group,
        scheduler_hints=spec.scheduler_hints,
        properties=ServerProperties(),
    )


def _stranded_server(table: HostTable, job: Job, body: ClaimedBody, reason: str) -> StrandedServer:
    row = table.find_inventory(body.inventory_id)
    return StrandedServer(
        id=body.server_uuid,
        name=body.name,
        project_id=job.spec.project_id,
        flavor=job.spec.flavor.name,
        host=table.hosts[row] if row is not None else "",
        reason=reason,
    )
