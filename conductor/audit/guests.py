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


def pages(places: Places) -> Iterator[AuditPage]:
    for cell in places.builders:
        yield from pages_of(partial(_next, places, cell.uuid), cell.uuid)


def _next(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.ask(cell_uuid, cell_rows.nodes_after, after, AUDIT_PAGE_SIZE)


def look(places: Places, page: AuditPage) -> list[Finding]:
    """Compare nodes whose agent reported lately and whose rows have not changed lately: a change is reported with a delay."""
    agents = places.ask(page.cell_uuid, cell_rows.agents, page.keys, AGENT_BINARY)
    population = places.ask(page.cell_uuid, cell_rows.population, page.keys)
    nodes = places.ask(page.cell_uuid, cell_rows.nodes, page.keys)
    if agents is None or population is None or nodes is None:
        return []
    found: list[Finding] = []
    for node in nodes:
        agent = agents.get(node.host)
        rows = population.get((node.host, node.node), Population())
        at_rest = rows.moving == 0 and rows.changed_at < places.late_in(page.cell_uuid)
        if agent is None or agent.forced_down or agent.age > places.overdue or not at_rest:
            continue
        make = partial(Finding, key=node.host, scope=page.cell_uuid, cell=places.name(page.cell_uuid))
        what = f"{node.running_vms} guests and {rows.active} ACTIVE rows on {node.host}"
        if node.running_vms > rows.active:
            advice = "those that stay are in 'superconductor guest list'"
            found.append(make(kind=UNKNOWN, what=what, advice=advice))
        elif node.running_vms < rows.active:
            advice = "the agent's log names them: delete these servers, or restore their guests"
            found.append(make(kind=MISSING, what=what, advice=advice))
    return found


def repair(places: Places, findings: Sequence[Finding]) -> None:
    """Nothing: only the transaction of an agent's report decides whether a guest may stay."""
