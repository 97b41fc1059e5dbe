"""Make the record of a decision, so that it can be explained later."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence

from objects.basis import Basis
from objects.decision import Candidate, DecidedInstance, Decision, FilterCount, RecordedCount
from scheduler.engine.decision_inputs import shorten_number
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext, Remedies
from scheduler.framework.batch_request import Request
from scheduler.table.host_table import HostTable
from scheduler.weighers.affinity import ServerGroupSoftAffinityWeigher, ServerGroupSoftAntiAffinityWeigher
from scheduler.weighers.balance import BalanceWeigher
from scheduler.weighers.capacity import CPUWeigher, DiskWeigher, RAMWeigher
from scheduler.weighers.cells import CrossCellWeigher
from scheduler.weighers.leftover import LeftoverWeigher
from scheduler.weighers.load import BuildFailureWeigher, IoOpsWeigher, NumInstancesWeigher

CELLS_SHOWN = 20
"""Up to this many cells, the record names all."""
LATE_S = 60.0
"""Seconds since a cell was last heard of after which every record names it. Cells without new servers are read rarely."""
LOST_HOSTS_SHOWN = 20
"""Maximum number of hosts recorded that were lost to other claims."""
RECOMPUTED = frozenset(
    (
        RAMWeigher,
        CPUWeigher,
        DiskWeigher,
        NumInstancesWeigher,
        BuildFailureWeigher,
        IoOpsWeigher,
        BalanceWeigher,
        CrossCellWeigher,
        LeftoverWeigher,
        ServerGroupSoftAffinityWeigher,
        ServerGroupSoftAntiAffinityWeigher,
    )
)
"""Weighers whose weights follow from the columns and terms that are kept. Of other weighers the weights are kept."""


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
    counts = job.counts if refused else (job.survey.filter_counts if job.survey else ())
    hosts = len(table)
    candidates = _recorded_candidates(job, table)
    choices = tuple(_recorded_choices(job, table))
    remedies = job.remedies
    return Decision(
        id=decision_id,
        batch_id=job.spec.batch_id,
        request_id=job.context.request_id,
        at=moment.wall,
        driver=driver.name,
        hosts=hosts,
        filters=tuple(_recorded_counts(counts)),
        candidates=candidates,
        choices=choices,
        cells=_recorded_ages(moment.ages, {*(one.cell for one in candidates), *(one.cell for one in choices)}),
        seed=request.seed,
        message=_refusal_message(driver.refusal_message(counts, hosts, job.short or 0, len(job.standing.needed)), remedies)
        if refused
        else "",
        elapsed_ms=round((time.perf_counter() - job.started) * 1e6) / 1e3,
        conflicts=job.conflicts,
        taken=tuple(job.taken)[:LOST_HOSTS_SHOWN],
        relaxations=remedies.relaxations,
        waits=job.waiting_reason,
        pairs=remedies.pairs,
        largest_flavor=remedies.largest_flavor,
        unread_hints=driver.unread_hints(job.spec),
        basis=_decision_basis(job, table, driver, moment),
    )


def _recorded_counts(counts: Sequence[FilterCount]) -> Iterator[RecordedCount]:
    """The counts, with reasons for filters that refused hosts."""
    for count in counts:
        reason = count.reason if count.after < count.before else ""
        yield RecordedCount(name=count.name, before=count.before, after=count.after, reason=reason, partial=count.partial)


def _refusal_message(refusal: str, remedies: Remedies) -> str:
    """The refusal, and where no single change is enough what is. Without amounts, which would show how full hosts are."""
    if remedies.largest_flavor:
        refusal += f" The largest flavor that fits is {remedies.largest_flavor}."
    tenant_pair = next((pair for pair in remedies.pairs if pair.is_for_tenants), None)
    return refusal if tenant_pair is None else f"{refusal} It would have fitted {tenant_pair.plain_words}."


def _recorded_candidates(job: Job, table: HostTable) -> tuple[Candidate, ...]:
    """The best hosts for the first instance, best first, and the host it got if that is not among them."""
    first, inputs = job.first_kept, job.inputs
    if first is None or inputs is None:
        return ()
    candidates = first.candidate_records(table, range(first.shown_count))
    winner = next(iter(job.rows.values()), None)
    if winner is not None and winner not in first.rows[: first.shown_count]:
        winning_inputs = inputs if winner in inputs.rows else first
        candidates += winning_inputs.candidate_records(
            table, [position for position, row in enumerate(winning_inputs.rows) if row == winner]
        )
    return tuple(candidates)


def _decision_basis(job: Job, table: HostTable, driver: SchedulerDriver, moment: PlanContext) -> Basis | None:
    """What the hosts were chosen on; None if none was. Hosts that are candidates of the decision are not named again."""
    inputs, spec = job.inputs, job.spec
    if inputs is None or not job.rows:
        return None
    further = inputs.rows[inputs.shown_count if inputs is job.first_kept else 0 :]
    unreproducible = [part.weigher.name for part in inputs.parts if type(part.weigher) not in RECOMPUTED]
    return Basis(
        hosts=tuple(inputs.hosts),
        top=inputs.top,
        further=tuple((table.hosts[row], table.nodes[row], table.cells[table.cell.item(row)].name) for row in further),
        passing=inputs.passing,
        rows=() if driver.shuffle else tuple(inputs.rows),
        scales={part.weigher.name: (shorten_number(part.low), shorten_number(part.span), part.floored) for part in inputs.parts},
        raws={name: tuple(map(shorten_number, inputs.raws[name])) for name in unreproducible},
        multipliers={name: tuple(amounts) for name, amounts in inputs.multipliers.items()},
        limits={resource: tuple(amounts) for resource, amounts in inputs.limits.items()},
        members=tuple(inputs.members),
        resources={name: tuple(amounts) for name, amounts in inputs.resources.items()},
        settings=driver.kept_settings,
        excluded_cells=spec.excluded_cells,
        excluded_hosts=spec.excluded_hosts,
        ledger=tuple(job.ledger.items()),
        epochs=dict(moment.epochs),
        replaced=job.replaced,
        claimed=tuple(job.standing.kept),
        terms=inputs.terms,
    )


def _recorded_ages(ages: Mapping[str, float | None], named: Container[str | None]) -> dict[str, float | None]:
    """The ages of all cells if there are few; otherwise of those that the record names, and of late ones."""
    if len(ages) <= CELLS_SHOWN:
        return dict(ages)
    return {cell: age for cell, age in ages.items() if cell in named or age is None or age > LATE_S}


def _recorded_choices(job: Job, table: HostTable) -> Iterator[DecidedInstance]:
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
            kept_selection, *others = job.standing.kept[uuid]
            yield DecidedInstance(
                instance_uuid=uuid,
                host=kept_selection.host,
                node=kept_selection.node,
                cell=_cell_name(table, kept_selection.cell_uuid),
                alternates=tuple(other.host for other in others),
            )


def _cell_name(table: HostTable, cell_uuid: str) -> str:
    number = table.cell_number(cell_uuid)
    return table.cells[number].name if number >= 0 else cell_uuid
