"""Servers with their requests and places, put together from the databases for a question."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from beside_nova import readers
from beside_nova.records import NovaCell, NovaGroup, NovaInstance
from beside_nova.request import JudgedRequest, NotJudged, RequestFilters, request_of_spec, request_of_text
from beside_nova.site import NovaSite
from beside_nova.state import NovaState
from objects import errors
from objects.flavor import Flavor
from objects.inventory import Slot

NO_REQUEST = NotJudged(("its request is not stored",))


class PlacedRequest(NamedTuple):
    """``slots``: where the members of its group are. ``places``: hosts of the servers that its hints name."""

    judged: JudgedRequest
    slots: tuple[Slot, ...] = ()
    places: Mapping[str, str] = {}


def request_filters(site: NovaSite, state: NovaState) -> RequestFilters:
    return RequestFilters(state.zone_names, state.disabled_hosts(), site.by_image_type, site.by_image_metadata)


def group_data(group: NovaGroup) -> dict[str, Any]:
    """The group as a request would have it."""
    rules = {"max_server_per_host": group.max_server_per_host}
    return {"uuid": group.uuid, "name": group.name, "policy": group.policy, "rules": rules, "members": list(group.members)}


def requests_of_servers(site: NovaSite, state: NovaState, uuids: Collection[str]) -> dict[str, JudgedRequest | NotJudged]:
    """The request of each of these servers. A stored request has its group's name only: members are those of now."""
    specs = state.databases.api.read(readers.list_request_specs, uuids)
    groups = state.databases.api.read(readers.list_groups, uuids)
    group_of = {member: group_data(group) for group in groups for member in group.members}
    filters = request_filters(site, state)
    return {uuid: request_of_text(specs[uuid], filters, group_of.get(uuid, {})) if uuid in specs else NO_REQUEST for uuid in uuids}


def request_of_flavor(
    site: NovaSite, state: NovaState, flavor: Flavor, group: NovaGroup | None = None, **conditions: Any
) -> JudgedRequest:
    """The request of a new server. ``conditions``: fields of Nova's RequestSpec. Raises Invalid if it cannot be judged."""
    sizes = {"vcpus": flavor.vcpus, "memory_mb": flavor.memory_mb, "root_gb": flavor.root_gb, "swap": flavor.swap_mb}
    of_flavor = {
        "flavorid": flavor.flavor_id,
        "name": flavor.name,
        "ephemeral_gb": flavor.ephemeral_gb,
        "extra_specs": flavor.extra_specs,
        **sizes,
    }
    data = {"instance_uuid": f"new server of {flavor.name}", "flavor": of_flavor, **conditions}
    judged = request_of_spec(data, request_filters(site, state), None if group is None else group_data(group))
    if isinstance(judged, NotJudged):
        raise errors.Invalid(f"Flavor {flavor.name} is {judged.as_text}")
    return judged


def place_requests(state: NovaState, judged: Iterable[JudgedRequest]) -> list[PlacedRequest]:
    """Look up where members and neighbours are, by their claims: they are known from the moment of the claim."""
    requests = list(judged)
    hosts = state.hosts_of_consumers({uuid for one in requests for uuid in (*one.members, *one.neighbours)})
    return [
        PlacedRequest(
            one,
            tuple(
                Slot(group_uuid=one.spec.group.uuid, instance_uuid=member, host=host)
                for member in one.members
                for host in sorted(hosts.get(member, ()))
            )
            if one.spec.group is not None
            else (),
            {uuid: min(hosts[uuid]) for uuid in one.neighbours if hosts.get(uuid)},
        )
        for one in requests
    ]


def find_flavors(state: NovaState, names: Iterable[str]) -> list[Flavor]:
    """The flavors with these names or IDs. Raises NotFound."""
    flavors = state.databases.api.read(readers.list_flavors)
    by_name = {flavor.name: flavor for flavor in flavors} | {flavor.flavor_id: flavor for flavor in flavors}
    if missing := [name for name in names if name not in by_name]:
        raise errors.NotFound(f"There is no flavor {missing[0]}")
    return [by_name[name] for name in names]


def find_instances(state: NovaState, uuids: Collection[str]) -> dict[str, NovaInstance]:
    """These servers as their cells have them. Raises what reading a cell raises."""
    cells = {cell.number: cell for cell in state.facts.cells}
    by_cell: dict[NovaCell, list[str]] = {}
    for uuid, number in state.databases.api.read(readers.cells_of_servers, uuids).items():
        if number in cells:
            by_cell.setdefault(cells[number], []).append(uuid)
    return {
        instance.uuid: instance
        for cell, servers in by_cell.items()
        for instance in state.database_of(cell).read(readers.list_instances, cell.name, servers)
    }
