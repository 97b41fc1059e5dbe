"""Make the record of a decision, so that it can be explained later."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from math import floor

from objects.decision import Candidate, DecidedInstance, Decision
from scheduler.drivers.base import SchedulerDriver
from scheduler.plan.job import Job, PlanContext
from scheduler.plan.remedies import Remedies
from scheduler.plan.request import Request
from scheduler.plan.survey import Survey
from scheduler.table.host_table import HostTable

BEST_HOSTS_SHOWN = 5
"""Number of best hosts recorded with their scores."""
CELLS_SHOWN = 20
"""Up to this many cells, the record names all."""
LATE_S = 5.0
"""Seconds since a cell was last heard of after which every record names it."""
LOST_HOSTS_SHOWN = 20
"""Maximum number of hosts recorded that were lost to other claims."""


def decision_of(
    decision_id: str,
    job: Job,
    request: Request,
    table: HostTable,
    driver: SchedulerDriver,
    moment: PlanContext,
) -> Decision:
    """The record of a job that has been placed or refused."""
    refused = job.short is not None
    counts = job.counts if refused else (job.survey.counts if job.survey else ())
    hosts = len(table)
    candidates = _candidates(job, job.survey, table) if job.survey else ()
    choices = tuple(_choices(job, table))
    remedies = job.remedies
    return Decision(
        id=decision_id,
        batch_id=job.spec.batch_id,
        request_id=job.context.request_id,
        at=moment.wall,
        driver=driver.name,
        hosts=hosts,
        filters=counts,
        candidates=candidates,
        choices=choices,
        cells=_ages(moment.ages, {*(one.cell for one in candidates), *(one.cell for one in choices)}),
        seed=request.seed,
        message=_message(driver.refusal(counts, hosts, job.short or 0, len(job.standing.needed)), remedies) if refused else "",
        elapsed_ms=round((time.perf_counter() - job.started) * 1e6) / 1e3,
        conflicts=job.conflicts,
        taken=tuple(job.taken)[:LOST_HOSTS_SHOWN],
        relaxations=remedies.relaxations,
        waits=job.waits,
        pairs=remedies.pairs,
        largest_flavor=remedies.largest_flavor,
    )


def _message(refusal: str, remedies: Remedies) -> str:
    """The refusal, and where no single change is enough what is. Without amounts, which would show how full hosts are."""
    if remedies.largest_flavor:
        refusal += f" The largest flavor that fits is {remedies.largest_flavor}."
    told = next((pair for pair in remedies.pairs if pair.is_for_tenants), None)
    return refusal if told is None else f"{refusal} It would have fitted {told.plain_words}."


def _candidates(job: Job, survey: Survey, table: HostTable) -> tuple[Candidate, ...]:
    """The best hosts for the first instance, best first, and the host it got if that is not among them."""
    best, scored = survey.best(BEST_HOSTS_SHOWN)
    rows: list[int] = best.tolist()
    scores: list[float] = scored.tolist()
    winner = next(iter(job.rows.values()), None)
    if winner is not None and winner not in rows:
        its = survey.scores[survey.rows == winner]
        rows, scores = rows + [winner] * its.size, scores + its.tolist()
    parts = {name: [_rounded(part) for part in added] for name, added in survey.weights(rows).items()}
    return tuple(
        [
            Candidate(
                host=table.hosts[row],
                node=table.nodes[row],
                cell=table.cells[table.cell.item(row)].name,
                score=_rounded(scores[position]),
                parts={name: added[position] for name, added in parts.items()},
            )
            for position, row in enumerate(rows)
        ]
    )


def _ages(ages: Mapping[str, float | None], named: Container[str | None]) -> dict[str, float | None]:
    """The ages of all cells if there are few; otherwise of those that the record names, and of late ones."""
    if len(ages) <= CELLS_SHOWN:
        return dict(ages)
    return {cell: age for cell, age in ages.items() if cell in named or age is None or age > LATE_S}


def _rounded(number: float) -> float:
    """Round to 6 digits. ``round(number, 6)`` takes longer than everything else done for a candidate."""
    return floor(number * 1e6 + 0.5) / 1e6


def _choices(job: Job, table: HostTable) -> Iterator[DecidedInstance]:
    for uuid in job.uuids:
        row = job.rows.get(uuid)
        if uuid in job.standing.needed and row is None:
            yield DecidedInstance(instance_uuid=uuid, host=None)
        elif row is not None:
            yield DecidedInstance(
                instance_uuid=uuid,
                host=table.hosts[row],
                node=table.nodes[row],
                cell=table.cells[table.cell.item(row)].name,
                alternates=tuple(table.hosts[other] for other in job.alternates.get(uuid, ())),
            )
        elif uuid in job.standing.kept:
            kept, *others = job.standing.kept[uuid]
            yield DecidedInstance(
                instance_uuid=uuid,
                host=kept.host,
                node=kept.node,
                cell=_cell_name(table, kept.cell_uuid),
                alternates=tuple(other.host for other in others),
            )


def _cell_name(table: HostTable, cell_uuid: str) -> str:
    number = table.cell_number(cell_uuid)
    return table.cells[number].name if number >= 0 else cell_uuid
