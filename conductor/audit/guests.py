"""Compare the agents' guest counts with the rows of their nodes, for nodes without an operation in progress.

Agents report the number of their guests, not which ones. Each agent compares its guests with its cell's records itself: it destroys
those that may not stay, and names missing ones (``compute/audit.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db.audit import cell_rows
from db.audit.cell_rows import Population
from objects.process import AGENT_BINARY

UNKNOWN = "guests without rows"
MISSING = "rows without guests"


def list_pages(places: Places) -> Iterator[AuditPage]:
    for cell in places.building_cells:
        yield from pages_of(partial(_next_nodes, places, cell.uuid), cell.uuid)


def _next_nodes(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.read_cell(cell_uuid, cell_rows.nodes_after, after, AUDIT_PAGE_SIZE)


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    """Compare nodes whose agent reported lately and whose rows have not changed lately: a change is reported with a delay."""
    agents = places.read_cell(page.cell_uuid, cell_rows.agents_by_host, page.keys, AGENT_BINARY)
    population = places.read_cell(page.cell_uuid, cell_rows.population_by_node, page.keys)
    nodes = places.read_cell(page.cell_uuid, cell_rows.list_nodes, page.keys)
    if agents is None or population is None or nodes is None:
        return []
    findings: list[Finding] = []
    for node in nodes:
        agent = agents.get(node.host)
        rows = population.get((node.host, node.node), Population())
        at_rest = rows.moving == 0 and rows.changed_at < places.late_in(page.cell_uuid)
        if agent is None or agent.forced_down or agent.age > places.overdue or not at_rest:
            continue
        make = partial(Finding, key=node.host, scope=page.cell_uuid, cell=places.name_of(page.cell_uuid))
        description = f"{node.running_vms} guests and {rows.active} ACTIVE rows on {node.host}"
        if node.running_vms > rows.active:
            advice = "those that stay are in 'superconductor guest list'"
            findings.append(make(kind=UNKNOWN, what=description, advice=advice))
        elif node.running_vms < rows.active:
            advice = "the agent's log names them: delete these servers, or restore their guests"
            findings.append(make(kind=MISSING, what=description, advice=advice))
    return findings


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    """Nothing: only the transaction of an agent's report decides whether a guest may stay."""
