"""How many more servers fit, also after a loss, and where some would go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from beside_nova import readers
from beside_nova.decide import NovaOutcome, decide_request
from beside_nova.engine import (
    ClaimedBody,
    DisplacedServers,
    PlanContext,
    SchedulerDriver,
    by_size,
    capacity,
    checked_job,
    failure_simulation,
)
from beside_nova.request import NotJudged
from beside_nova.servers import find_flavors, find_instances, place_requests, request_of_flavor, requests_of_servers
from beside_nova.site import NovaSite
from beside_nova.state import NovaState
from objects import errors
from objects.base import Object
from objects.capacity import FlavorRoom, Loss, LossKind, LossOutcome
from objects.context import RequestContext
from objects.inventory import Slot
from objects.spec import RequestSpec

CONTEXT = RequestContext(request_id="", is_admin=True)


class CloudRoom(Object, frozen=True, kw_only=True):
    """``hosts``: those that cells report. ``left_out``: those of them on which no request is judged, by reason.

    ``loss``: of servers whose requests are judged; ``unjudged``: servers on what is lost whose requests are not, by reason.
    """

    flavors: tuple[FlavorRoom, ...]
    hosts: int
    left_out: dict[str, int]
    unjudged: dict[str, int]
    loss: LossOutcome | None = None


def count_room(
    site: NovaSite, state: NovaState, flavor_names: Sequence[str], project_id: str = "", lost: Loss | None = None
) -> CloudRoom:
    """How many more servers of each flavor fit. ``lost``: as if this were lost, and its servers placed elsewhere first.

    Raises NotFound for unknown flavors and places, Invalid for flavors that cannot be judged, and TooCostly if too much is lost.
    """
    flavors = find_flavors(state, flavor_names)
    specs = [request_of_flavor(site, state, flavor, project_id=project_id).spec for flavor in flavors]
    driver, moment = site.make_driver(), state.plan_context()
    if lost is None:
        with state.table.lock:
            return CloudRoom(
                flavors=_room_of_flavors(state, driver, moment, specs),
                hosts=len(state.table),
                left_out=state.left_out_by_reason(),
                unjudged={},
            )
    with state.table.lock:
        gone = failure_simulation.rows_of(state.table, lost)
    if not gone.size:
        raise errors.NotFound(f"There is no {lost.kind} {lost.name} with hosts")
    hosts, numbers = [state.table.hosts[row] for row in gone.tolist()], state.table.inventory[gone].tolist()
    displaced, unjudged = _displaced_servers(site, state, numbers)
    kinds = failure_simulation.kinds_of(CONTEXT, displaced, lost, hosts)
    remaining = [failure_simulation.spec_without_lost(spec, lost, hosts) for spec in specs]
    with state.table.lock, state.table.take_tentatively():
        outcome = failure_simulation.place_bodies(state.table, driver, moment, kinds, displaced.slots, gone)
        return CloudRoom(
            flavors=_room_of_flavors(state, driver, moment, remaining),
            hosts=len(state.table),
            left_out=state.left_out_by_reason(),
            loss=outcome,
            unjudged=unjudged,
        )


def try_request(
    site: NovaSite, state: NovaState, flavor_name: str, count: int, group_uuid: str = "", **conditions: Any
) -> NovaOutcome:
    """Where ``count`` new servers would go. ``conditions``: fields of Nova's RequestSpec.

    Raises NotFound for an unknown flavor or group, and Invalid for a request that cannot be judged.
    """
    [flavor] = find_flavors(state, [flavor_name])
    groups = state.databases.api.read(readers.list_groups, None, group_uuid) if group_uuid else []
    if group_uuid and not groups:
        raise errors.NotFound(f"There is no server group {group_uuid}")
    judged = request_of_flavor(site, state, flavor, groups[0] if groups else None, **conditions)
    [placed] = place_requests(state, [judged])
    flavors = sorted((one for one in state.databases.api.read(readers.list_flavors) if not one.disabled), key=by_size)
    return decide_request(state.table, site.make_driver(), state.plan_context(), placed, count, flavors)


def loss_of(kind: str, name: str, state: NovaState) -> Loss:
    """Raises Invalid for an unknown kind. A cell is named by its name or UUID."""
    if kind not in list(LossKind):
        raise errors.Invalid(f"--after-losing: {kind!r} is not one of {', '.join(LossKind)}")
    if kind == LossKind.CELL:
        name = next((uuid for uuid, view in state.cells.items() if view.cell.name == name), name)
        if name not in state.cells:
            raise errors.NotFound(f"There is no cell {name}")
    return Loss(kind=LossKind(kind), name=name)


def _room_of_flavors(
    state: NovaState, driver: SchedulerDriver, moment: PlanContext, specs: Sequence[RequestSpec]
) -> tuple[FlavorRoom, ...]:
    requests = [(spec, checked_job(CONTEXT, spec, ()).make_request(state.table, moment)) for spec in specs]
    return tuple(
        capacity.flavor_room(state.table, spec.flavor.name, capacity.host_room(state.table, driver, request))
        for spec, request in requests
    )


def _displaced_servers(site: NovaSite, state: NovaState, numbers: Sequence[int]) -> tuple[DisplacedServers, dict[str, int]]:
    """The servers with claims on these providers, and how many are not judged, by reason."""
    consumers = state.databases.placement.read(readers.consumers_of_providers, numbers)
    if len(consumers) > failure_simulation.SERVERS_LIMIT:
        raise errors.TooCostly(f"More than {failure_simulation.SERVERS_LIMIT} servers would have to go elsewhere")
    instances = find_instances(state, consumers)
    requests = requests_of_servers(site, state, instances)
    unjudged: dict[str, int] = {}
    bodies: list[ClaimedBody] = []
    specs: dict[str, RequestSpec] = {}
    slots: dict[tuple[str, str], Slot] = {}
    for placed in place_requests(state, (one for one in requests.values() if not isinstance(one, NotJudged))):
        slots |= {(slot.instance_uuid, slot.host): slot for slot in placed.slots}
    for uuid, instance in instances.items():
        request = requests[uuid]
        if isinstance(request, NotJudged):
            reason = ", ".join(request.reasons)
            unjudged[reason] = unjudged.get(reason, 0) + 1
            continue
        specs[uuid] = msgspec.structs.replace(request.spec, force_hosts=(), force_nodes=(), ignore_hosts=())
        number = min(consumers[uuid])
        bodies.append(ClaimedBody(uuid=uuid, server_uuid=uuid, name=instance.name, batch_id=uuid, inventory_id=number))
    if others := len(consumers.keys() - instances.keys()):
        unjudged["it is the claim of a migration, or of no server"] = others
    return DisplacedServers(bodies=tuple(bodies), specs=specs, slots=tuple(slots.values())), unjudged
