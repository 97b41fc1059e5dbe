"""Decide about a request on the table as it is, and claim nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from beside_nova.engine import (
    Hosts,
    HostTable,
    Members,
    PlanContext,
    Remedies,
    Request,
    SchedulerDriver,
    Survey,
    checked_job,
    find_remedies,
    narrow_hosts,
    survey,
)
from beside_nova.servers import PlacedRequest
from objects.base import Object
from objects.context import RequestContext
from objects.decision import Candidate, FilterCount
from objects.flavor import Flavor

CANDIDATES_SHOWN = 5


class NovaOutcome(Object, frozen=True, kw_only=True):
    """``hosts``: one for each server that would be placed. ``message``: why not all would; empty: all would.

    ``filters``: how many hosts each filter left; if some servers are placed and others not, for the first that is not.
    ``would_have_fitted``: the changes of which each alone would have been enough; None: not examined.
    """

    hosts: tuple[str, ...]
    message: str
    filters: tuple[FilterCount, ...]
    candidates: tuple[Candidate, ...]
    would_have_fitted: tuple[str, ...] | None = None
    would_have_fitted_together: tuple[str, ...] = ()
    largest_flavor: str = ""


def decide_request(
    table: HostTable,
    driver: SchedulerDriver,
    moment: PlanContext,
    placed: PlacedRequest,
    count: int = 1,
    flavors: Sequence[Flavor] = (),
) -> NovaOutcome:
    """Where ``count`` servers of the request would go now. ``flavors``: those that may be proposed, the largest first."""
    uuids = [f"{placed.judged.spec.batch_id} {number}" for number in range(count)]
    spec = msgspec.structs.replace(placed.judged.spec, num_instances=count, fences=dict.fromkeys(uuids, 1))
    job = checked_job(RequestContext(request_id="", project_id=spec.project_id), spec, uuids)
    job.places = dict(placed.places)
    members_to_place = {*uuids, placed.judged.spec.batch_id}
    slots = [slot for slot in placed.slots if slot.instance_uuid not in members_to_place]

    def new_request() -> Request:
        request = job.make_request(table, moment)
        request.members = Members(slots)
        return request

    with table.lock:
        request = new_request()
        with table.take_tentatively():
            surveyed = survey(table, driver, request, count)
            candidates = tuple(_best_candidates(table, request, surveyed))
            rows = driver.place_instances(table, request, surveyed, count)
            filters, message = surveyed.filter_counts, ""
            if len(rows) < count:
                if rows:
                    _, filters = narrow_hosts(driver.chain_for(request).all_filters, Hosts(table, request), request)
                message = driver.refusal_message(filters, len(table), len(rows), count)
        remedies = find_remedies(table, driver, new_request(), count, None, flavors) if message else Remedies()
        hosts = tuple(table.hosts[row] for row in rows)
    return NovaOutcome(
        hosts=hosts,
        message=message,
        filters=tuple(filters),
        candidates=candidates,
        would_have_fitted=None if remedies.relaxations is None else tuple(one.as_text for one in remedies.relaxations),
        would_have_fitted_together=tuple(pair.as_text for pair in remedies.pairs),
        largest_flavor=remedies.largest_flavor,
    )


def _best_candidates(table: HostTable, request: Request, surveyed: Survey) -> list[Candidate]:
    rows, scores = surveyed.best_rows(CANDIDATES_SHOWN)
    hosts = Hosts(table, request, rows)
    parts: dict[str, list[float]] = {}
    for part in surveyed.parts:
        raw = part.weigher.weigh(hosts, request)
        if raw is not None:
            parts[part.weigher.name] = part.scores_of(hosts, raw).tolist()
    return [
        Candidate(
            host=table.hosts[row],
            node=table.nodes[row],
            cell=table.cells[table.cell.item(row)].name,
            score=round(score, 6),
            parts={name: round(values[place], 6) for name, values in parts.items()},
        )
        for place, (row, score) in enumerate(zip(rows.tolist(), scores.tolist(), strict=True))
    ]
