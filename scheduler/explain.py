"""What is kept of a decision, so that it can be explained, and taken again, later."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from objects.decision import Candidate, Choice, Decision
from scheduler import engine
from scheduler.drivers.base import Driver
from scheduler.job import Job, Moment
from scheduler.request import Request
from scheduler.table import HostTable

TOP = 5
"""Best hosts that are kept with their scores."""


def decision_of(
    decision_id: str,
    job: Job,
    request: Request,
    table: HostTable,
    driver: Driver,
    moment: Moment,
) -> Decision:
    """The record of a job that has been placed or refused."""
    refused = job.short is not None
    counts = job.counts if refused else (job.survey.counts if job.survey else ())
    hosts = len(table)
    return Decision(
        id=decision_id,
        batch_id=job.spec.batch_id,
        request_id=job.context.request_id,
        at=moment.wall,
        driver=driver.name,
        hosts=hosts,
        filters=counts,
        candidates=tuple(_candidates(job.survey, request, table)) if job.survey else (),
        choices=tuple(_choices(job, table)),
        cells=dict(moment.ages),
        seed=request.seed,
        message=driver.refusal(counts, hosts, job.short or 0, len(job.standing.needed)) if refused else "",
        elapsed_ms=round((time.perf_counter() - job.started) * 1000, 3),
    )


def _candidates(survey: engine.Survey, request: Request, table: HostTable) -> Iterator[Candidate]:
    """The best hosts for the first instance, best first."""
    scores = survey.scores
    best = np.argpartition(scores, -TOP)[-TOP:] if scores.size > TOP else np.arange(scores.size)
    best = best[np.argsort(-scores[best], kind="stable")]
    parts = engine.weights(table, request, survey.parts, survey.rows[best])
    for position, (row, score) in enumerate(zip(survey.rows[best].tolist(), scores[best].tolist(), strict=True)):
        yield Candidate(
            host=table.hosts[row],
            node=table.nodes[row],
            cell=table.cells[int(table.cell[row])].name,
            score=round(score, 6),
            parts={name: round(values[position], 6) for name, values in parts.items()},
        )


def _choices(job: Job, table: HostTable) -> Iterator[Choice]:
    for uuid in job.uuids:
        row = job.rows.get(uuid)
        if uuid in job.standing.needed and row is None:
            yield Choice(instance_uuid=uuid, host=None)
        elif row is not None:
            yield Choice(
                instance_uuid=uuid,
                host=table.hosts[row],
                node=table.nodes[row],
                cell=table.cells[int(table.cell[row])].name,
                alternates=tuple(table.hosts[other] for other in job.alternates.get(uuid, ())),
            )
        elif uuid in job.standing.kept:
            kept, *others = job.standing.kept[uuid]
            yield Choice(instance_uuid=uuid, host=kept.host, node=kept.node, alternates=tuple(other.host for other in others))
