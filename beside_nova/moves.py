"""Which moves would empty the most hosts. Nothing is moved."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from beside_nova import readers
from beside_nova.engine import ClaimedBody, DisplacedServers, MovableServers, checked_job, rebalance
from beside_nova.records import NovaInstance
from beside_nova.request import NotJudged
from beside_nova.servers import find_flavors, find_instances, place_requests, request_of_flavor, requests_of_servers
from beside_nova.site import NovaSite
from beside_nova.state import NovaState
from objects.context import RequestContext
from objects.inventory import Slot
from objects.rebalance import Rebalance
from objects.spec import RequestSpec

CONTEXT = RequestContext(request_id="", is_admin=True)
MOVABLE_STATES = frozenset({"active", "stopped"})
"""States from which Nova migrates a server; ``active`` ones live."""


def plan_rebalance(site: NovaSite, state: NovaState, flavor_names: Sequence[str], at_most: float) -> Rebalance:
    """The moves of at most ``at_most`` per cent of all servers that empty the most hosts.

    ``flavor_names``: of which it is told how many more fit before and after. Raises NotFound and Invalid for these.
    """
    specs = [request_of_flavor(site, state, flavor).spec for flavor in find_flavors(state, flavor_names)]
    jobs = [checked_job(CONTEXT, spec, ()) for spec in specs]
    table, driver, moment = state.table, site.make_driver(), state.plan_context()
    with table.lock:
        servers = int(table.instances[: table.size][table.cell[: table.size] >= 0].sum())
        allowed = min(int(servers * at_most / 100), rebalance.server_limit(table))
        inventories = table.inventory[rebalance.source_rows(table, moment, allowed)].tolist()
        most = rebalance.emptied_bound(table, allowed)
        before = rebalance.fleet_state(table, driver, jobs, moment)
    movable, places = _movable_servers(site, state, inventories)
    movers = rebalance.movers_of(CONTEXT, movable)
    for movers_of_host in movers.values():
        for mover in movers_of_host:
            mover.job.places = dict(places.get(mover.body.uuid, {}))
    rebalancer = rebalance.Rebalancer(table, driver, moment, movable.claims.slots, inventories, movers, allowed)
    rebalancer.run()
    with table.lock, rebalancer.show_plan():
        after = rebalance.fleet_state(table, driver, jobs, moment)
        plan = rebalancer.plan_so_far
        hosts = tuple(table.hosts[row] for row in plan.rows)
    return Rebalance(
        servers=servers,
        allowed=allowed,
        moves=plan.moves,
        hosts=hosts,
        bound=most,
        before=before,
        after=after,
        considered=len(movable.claims.bodies),
        kept=rebalance.kept_of(movable),
    )


def _movable_servers(
    site: NovaSite, state: NovaState, inventories: Sequence[int]
) -> tuple[MovableServers, dict[str, dict[str, str]]]:
    """The servers on these providers, and by server the hosts of those that its hints name."""
    consumers = state.databases.placement.read(readers.consumers_of_providers, inventories)
    instances = find_instances(state, consumers)
    requests_by_server = requests_of_servers(site, state, instances)
    judged = {uuid: request for uuid, request in requests_by_server.items() if not isinstance(request, NotJudged)}
    placed = dict(zip(judged, place_requests(state, judged.values()), strict=True))
    homes = {view.cell.name: uuid for uuid, view in state.cells.items()}
    bodies: list[ClaimedBody] = []
    specs: dict[str, RequestSpec] = {}
    reasons: dict[str, str] = {}
    slots: dict[tuple[str, str], Slot] = {}
    for uuid, numbers in consumers.items():
        instance, request = instances.get(uuid), requests_by_server.get(uuid)
        name = instance.name if instance is not None else ""
        bodies.append(ClaimedBody(uuid=uuid, server_uuid=uuid, name=name, batch_id=uuid, inventory_id=min(numbers)))
        if instance is None or request is None:
            reasons[uuid] = "the claim of a migration, or of no server"
        elif isinstance(request, NotJudged):
            reasons[uuid] = request.as_text
        elif reason := _reason_to_stay(instance, numbers):
            reasons[uuid] = reason
        else:
            specs[uuid] = msgspec.structs.replace(request.spec, force_hosts=(), force_nodes=(), ignore_hosts=())
            slots |= {(slot.instance_uuid, slot.host): slot for slot in placed[uuid].slots}
    movable = MovableServers(
        claims=DisplacedServers(bodies=tuple(bodies), specs=specs, slots=tuple(slots.values())),
        specs=specs,
        hosts={uuid: (instances[uuid].host, homes[instances[uuid].cell]) for uuid in specs},
        live=frozenset(uuid for uuid in specs if instances[uuid].vm_state == "active"),
        kept=reasons,
    )
    return movable, {uuid: dict(one.places) for uuid, one in placed.items()}


def _reason_to_stay(instance: NovaInstance, numbers: set[int]) -> str:
    """Why a server is not moved now; empty if it can be."""
    if len(numbers) > 1:
        return "it has claims on several hosts"
    if instance.task_state:
        return f"it is {instance.task_state}"
    return "" if instance.vm_state in MOVABLE_STATES else f"it is {instance.vm_state}"
