"""Plan a request as for a claim, and tell the plan instead of claiming it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from objects.decision import Decision
from objects.dry_run import DryRun, PlannedServer
from objects.inventory import Placement
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.engine.job import Job
from scheduler.engine.survey import TIE_NOISE
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Floats, tally

TIES_COUNTED = 100
"""Maximum number of equally good hosts that an answer counts."""


class DryRunPlanner(ClaimPlanner):
    """The planner of claims, for a transaction that writes nothing. ``answers``: one for each job, once ``finish_plan`` was called.

    A job has no answer if it was lost, failed, or waits for hosts that this process has not heard of yet.
    """

    answers: tuple[DryRun | None, ...] = ()

    def finish_plan(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        with self._table.lock:
            finished = super().finish_plan()
            self._make_requests()
            self.answers = tuple(self._answer_job(job, request) for job, request in zip(self._jobs, self._requests, strict=True))
            return finished

    def _answer_job(self, job: Job, request: Request) -> DryRun | None:
        if job.decision is None or job.premature:
            return None
        scores = self._scores_by_server(job, request)
        planned = {placement.instance_uuid: placement.selections[0] for placement in job.placements}
        servers: list[PlannedServer] = []
        for choice in job.decision.choices:
            parts = scores.get(choice.instance_uuid, {})
            chosen = planned.get(choice.instance_uuid)
            servers.append(
                PlannedServer(
                    instance_uuid=choice.instance_uuid,
                    host=choice.host,
                    node=choice.node,
                    cell=choice.cell,
                    availability_zone=chosen.availability_zone if chosen is not None else None,
                    score=round(sum(parts.values()), 6),
                    parts=parts,
                    alternates=choice.alternates,
                    numa_nodes=chosen.numa_nodes if chosen is not None else (),
                )
            )
        decision = msgspec.structs.replace(job.decision, id="")
        return DryRun(decision=decision, servers=tuple(servers), one_of=self._one_of(job) if planned else 0)

    def _scores_by_server(self, job: Job, request: Request) -> dict[str, dict[str, float]]:
        """What each weigher adds for each placed server. Cell-wide weighers count no servers of the batch."""
        if job.survey is None or not job.rows:
            return {}
        before: Counter[int] = Counter()
        more: list[int] = []
        for row in job.rows.values():
            more.append(before[row])
            before[row] += 1
        hosts = Hosts(self._table, request, np.array(list(job.rows.values()), np.int64), np.array(more, np.int64))
        added: dict[str, Floats] = {}
        for part in job.survey.parts:
            raw = part.weigher.weigh(hosts, request)
            if raw is not None:
                added[part.weigher.name] = part.scores_of(hosts, raw)
        return {
            uuid: {name: round(float(parts[position]), 6) for name, parts in added.items()}
            for position, uuid in enumerate(job.rows)
        }

    def _one_of(self, job: Job) -> int:
        """From how many hosts that of the first server was drawn: those as good as the best, and those of ``host_subset_size``."""
        if job.survey is None:
            return 0
        _, scores = job.survey.best_rows(TIES_COUNTED)
        equal = int(tally(scores >= scores[0] - TIE_NOISE)) if scores.size and self._driver.shuffle else 1
        return max(equal, min(self._driver.subset, scores.size))
