"""Compare host mappings with the cells' agents and compute nodes, and inventories with the capacities of the nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from db.api.claims import inventories
from db.api.deployment import host_mappings
from db.audit import cell_rows, hosts
from objects.cell import HostMapping
from objects.compute_node import ComputeNode
from objects.inventory import Inventory
from objects.process import AGENT_BINARY
from objects.selection import HostCapacity

UNMAPPED = "host without mapping"
CONFLICT = "host in two cells"
ELSEWHERE = "host in another cell than mapped"
NO_CELL = "host mapped to a cell that does not exist"
UNHEARD = "mapped host that its cell does not know"
NO_AGENT = "compute node without agent"
OFFER = "inventory unlike the compute node"
NAMESAKE = "compute node named as another cell's"


def list_pages(places: Places) -> Iterator[AuditPage]:
    """Mapped hosts, and hosts of agents and nodes in the cells. A host named in several of these is checked several times."""
    yield from pages_of(lambda after: places.api.read(hosts.hosts_after, after, AUDIT_PAGE_SIZE))
    for cell in places.building_cells:
        yield from (_page_anywhere(page) for page in pages_of(partial(_next_agents, places, cell.uuid)))
        yield from (_page_anywhere(page) for page in pages_of(partial(_next_nodes, places, cell.uuid)))


def _page_anywhere(page: AuditPage) -> AuditPage:
    return AuditPage(keys=page.keys)


def _next_agents(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.read_cell(cell_uuid, cell_rows.agents_after, after, AUDIT_PAGE_SIZE, AGENT_BINARY)


def _next_nodes(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.read_cell(cell_uuid, cell_rows.nodes_after, after, AUDIT_PAGE_SIZE)


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    reporting: dict[str, list[str]] = defaultdict(list)
    nodes: dict[str, list[ComputeNode]] = {}
    for cell in places.building_cells:
        agents = places.read_cell(cell.uuid, cell_rows.agents_by_host, page.keys, AGENT_BINARY)
        known = places.read_cell(cell.uuid, cell_rows.list_nodes, page.keys)
        if agents is not None and known is not None:
            nodes[cell.uuid] = known
            for host in agents:
                reporting[host].append(cell.uuid)
    mapped = places.api.read(hosts.mappings_by_host, page.keys)
    offered = places.api.read(hosts.offers_by_node, page.keys)
    findings = [finding for host in page.keys for finding in _judge_host(places, host, mapped.get(host), reporting[host], nodes)]
    for cell_uuid, known in nodes.items():
        findings += _judge_nodes(places, cell_uuid, known, reporting)
        own_hosts = [node for node in known if node.host in mapped and mapped[node.host].cell_uuid == cell_uuid]
        new = [key for node in own_hosts if (key := (node.host, node.node)) not in offered]
        owners = places.api.read(inventories.owners_elsewhere, new, cell_uuid) if new else {}
        findings += _judge_offers(places, cell_uuid, own_hosts, offered, owners)
    return findings


def _judge_host(
    places: Places, host: str, mapping: HostMapping | None, cells: Sequence[str], nodes: Mapping[str, object]
) -> Iterator[Finding]:
    names = " and ".join(sorted(places.name_of(uuid) for uuid in cells))
    if len(cells) > 1:
        advice = "rename one of them, or stop its agent there"
        yield Finding(kind=CONFLICT, key=host, what=f"{host} reports in {names}", advice=advice)
    if mapping is None:
        if len(cells) == 1:
            is_complete = not places.unknown  # a silent cell may have a host of this name
            repair, advice = ("mapped to it", "") if is_complete else (None, "run 'superconductor host discover'")
            yield Finding(kind=UNMAPPED, key=host, what=host, cell=names, repair=repair, advice=advice, facts=(cells[0],))
        return
    home = mapping.cell_uuid
    if not places.is_known(home):
        yield Finding(kind=NO_CELL, key=host, what=f"{host} is mapped to {home}", advice="register that cell again")
    elif home in nodes and home not in cells:
        if cells:
            advice = "stop its agent there, or rename the host"
            yield Finding(kind=ELSEWHERE, key=host, what=f"{host} reports in {names}", cell=places.name_of(home), advice=advice)
        else:
            advice = "start its agent; nothing is placed there meanwhile"
            yield Finding(kind=UNHEARD, key=host, what=host, cell=places.name_of(home), advice=advice)


def _judge_nodes(
    places: Places, cell_uuid: str, known: Sequence[ComputeNode], reporting: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    for node in known:
        if cell_uuid not in reporting.get(node.host, ()):
            description = f"{node.node} of host {node.host}"
            advice = "start the host's agent; nothing is placed there meanwhile"
            yield Finding(kind=NO_AGENT, key=node.host, what=description, cell=places.name_of(cell_uuid), advice=advice)


def _judge_offers(
    places: Places,
    cell_uuid: str,
    known: Sequence[ComputeNode],
    offered: Mapping[tuple[str, str], Inventory],
    owners: Mapping[tuple[str, str], str],
) -> Iterator[Finding]:
    for node in known:
        if owner := owners.get((node.host, node.node)):
            description = f"{node.node} of host {node.host} has the name of a node of host {owner}"
            advice = f"give it another name; if the machine took that one's place, run 'superconductor host delete {owner}'"
            yield Finding(kind=NAMESAKE, key=node.host, what=description, cell=places.name_of(cell_uuid), advice=advice)
            continue
        row, offers = offered.get((node.host, node.node)), _capacity_text(node.total_capacity)
        if row is None:
            description = f"{node.node} of host {node.host} has none, and offers {offers}"
        elif (row.cell_uuid, _offered_capacity(row)) != (cell_uuid, node.total_capacity):
            has = _capacity_text(_offered_capacity(row))
            description = f"{node.node} of host {node.host} has {has} in cell {places.name_of(row.cell_uuid)}, and offers {offers}"
        else:
            continue
        fact = (cell_uuid,)
        cell = places.name_of(cell_uuid)
        yield Finding(kind=OFFER, key=node.host, what=description, cell=cell, repair="taken from the node", safe=True, facts=fact)


def _offered_capacity(row: Inventory) -> HostCapacity:
    return HostCapacity(vcpus=row.cap_vcpus, memory_mb=row.cap_memory_mb, disk_gb=row.cap_disk_gb, resources=row.cap_resources)


def _capacity_text(room: HostCapacity) -> str:
    custom = "".join(f", {amount} {name}" for name, amount in sorted(room.resources.items()))
    return f"{room.vcpus:g} vcpus, {room.memory_mb:g} MiB, {room.disk_gb:g} GiB{custom}"


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    new = [HostMapping(host=f.key, cell_uuid=str(f.facts[0])) for f in of_kind(findings, UNMAPPED)]
    if new:
        places.api.write(host_mappings.add_mappings, new, places.api.current_time())
    for cell_uuid in sorted({str(finding.facts[0]) for finding in of_kind(findings, OFFER)}):
        places.catch_up(cell_uuid)  # with the cursor, so that a stale applier writes no old capacity
