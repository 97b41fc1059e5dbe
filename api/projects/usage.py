"""``/os-simple-tenant-usage``: the hours that servers of projects ran, and what they took meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import falcon

from api.http import call as calls
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.paging import next_link, page_of
from api.http.query_parameters import refuse_unknown_names
from api.http.schemas import BOOLEANS
from api.lookup.server_view import format_micro
from api.lookup.silence import Silences, Silent
from api.opts import ApiSettings
from db.api.servers import mappings
from db.api.servers.usage import Run, UsageQuery, list_runs
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors, phase
from objects.ids import checked_identifier
from objects.spec import RequestSpec

UNPAGED_LIMIT = 20_000
"""Servers that one answer without pages may sum up: it is made in memory."""

_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f")
_HOUR_S = 3600.0
_LIST = frozenset({"start", "end", "detailed", "limit", "marker"})
_ONE = frozenset({"start", "end", "limit", "marker"})


class TenantUsage:
    """Of all projects, and with suffix ``one`` of one project. The summaries tell it also while a cell is down."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, silences: Silences) -> None:
        self._settings = settings
        self._database = database
        self._silences = silences

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        if req.env["PATH_INFO"].endswith("/"):
            raise errors.NotFound("The usage of a project without an ID was asked for.")
        refuse_unknown_names(req, call, _LIST)
        detailed = _is_detailed(req)
        period, links = self._read_period(req, resp, call, None)
        send_json(
            resp,
            {"tenant_usages": [period.usage_document(project, detailed) for project in period.project_ids]}
            | _links_field("s", links),
        )

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """A project without servers in this time has an empty object."""
        call = calls.get_call(req)
        refuse_unknown_names(req, call, _ONE)
        checked_identifier("project_id", project_id)
        period, links = self._read_period(req, resp, call, project_id)
        shown = period.usage_document(project_id, detailed=True) if period.project_ids else {}
        send_json(resp, {"tenant_usage": shown} | _links_field("", links))

    def _read_period(
        self, req: falcon.Request, resp: falcon.Response, call: Call, project_id: str | None
    ) -> tuple[_Period, list[dict[str, str]]]:
        now = self._database.current_time()
        start, stop = _parse_period(req, now)
        limit, marker = UNPAGED_LIMIT, None
        if call.has_feature(Microversion.USAGE_PAGES):
            page = page_of(req, self._settings.max_limit)
            limit, marker = page.limit, page.marker
        query = UsageQuery(project_id=project_id, start=start, stop=min(stop, now), limit=limit + 1, marker=marker)
        try:
            every, silent = self._database.read_briefly(self._read, query, self._silences.observed_silences())
        except errors.NotFound as error:
            raise errors.Invalid(str(error)) from error
        self._silences.name_silent_cells(resp, call, silent)
        shown = every[:limit]
        links: list[dict[str, str]] = []
        if len(every) > limit:
            if not call.has_feature(Microversion.USAGE_PAGES):
                text = "Name a project, a shorter time, or use pages (limit, from microversion 2.40 on)."
                raise errors.Invalid(f"More than {UNPAGED_LIMIT} servers ran in this time. {text}")
            path = "os-simple-tenant-usage" if project_id is None else f"os-simple-tenant-usage/{project_id}"
            links = [next_link(req, path, shown[-1].server.uuid)] if shown else []
        specs = self._database.read_briefly(mappings.specs_by_batch, {run.server.batch_id for run in shown}) if shown else {}
        return _Period(start, query.stop, now, shown, specs), links

    def _read(self, tx: ApiTransaction, query: UsageQuery, met: Silent) -> tuple[list[Run], dict[str, float]]:
        return list_runs(tx, query), self._silences.read(tx, met, query.project_id)


class _Period:
    """What ran between two times, by project."""

    def __init__(self, start: float, stop: float, now: float, listed: Sequence[Run], specs: Mapping[str, RequestSpec]) -> None:
        self._start, self._stop, self._now = start, stop, now
        self._usages: dict[str, list[dict[str, Any]]] = {}
        for run in listed:
            self._usages.setdefault(run.server.project_id, []).append(self._server_usage(run, specs.get(run.server.batch_id)))

    @property
    def project_ids(self) -> list[str]:
        return list(self._usages)

    def usage_document(self, project_id: str, detailed: bool) -> dict[str, Any]:
        usages = self._usages[project_id]
        document: dict[str, Any] = {
            "tenant_id": project_id,
            "start": format_micro(self._start),
            "stop": format_micro(self._stop),
            "total_hours": sum(usage["hours"] for usage in usages),
            "total_vcpus_usage": _total_of(usages, "vcpus"),
            "total_memory_mb_usage": _total_of(usages, "memory_mb"),
            "total_local_gb_usage": _total_of(usages, "local_gb"),
        }
        return document | {"server_usages": usages} if detailed else document

    def _server_usage(self, run: Run, spec: RequestSpec | None) -> dict[str, Any]:
        """Without sizes if the request of the server cannot be read."""
        server = run.server
        stop = self._stop if run.ended is None else min(self._stop, run.ended)
        shown: dict[str, Any] = {
            "instance_id": server.uuid,
            "name": server.name,
            "tenant_id": server.project_id,
            "flavor": "" if spec is None else spec.flavor.name,
            "hours": max(0.0, stop - max(self._start, run.launched)) / _HOUR_S,
            "started_at": format_micro(run.launched),
            "ended_at": format_micro(run.ended),
            "state": _state_of(run),
            "uptime": max(0, int((self._now if run.ended is None else run.ended) - run.launched)),
        }
        if spec is not None:
            flavor = spec.flavor
            shown |= {"vcpus": flavor.vcpus, "memory_mb": flavor.memory_mb, "local_gb": flavor.root_gb + flavor.ephemeral_gb}
        return shown


def _total_of(usages: list[dict[str, Any]], name: str) -> float:
    return float(sum(usage.get(name, 0) * usage["hours"] for usage in usages))


def _state_of(run: Run) -> str:
    if run.ended is not None:
        return "terminated"
    return phase.vm_state_of(run.server) if phase.phase_of(run.server) is not None else "error"


def _is_detailed(req: falcon.Request) -> bool:
    """1 in the Compute API, but clients send True. Raises errors.Invalid for another word."""
    word = req.get_param("detailed") or "0"
    if word not in BOOLEANS:
        raise errors.Invalid(f"detailed: {word[:40]!r} is neither 1 nor 0")
    return BOOLEANS[word]


def _parse_period(req: falcon.Request, now: float) -> tuple[float, float]:
    """Start and end of the period. Raises errors.Invalid."""
    start, end = req.get_param("start"), req.get_param("end")
    first, last = _parse_time("start", start, now), _parse_time("end", end, now)
    if first > last or (first == last and start and end):
        raise errors.Invalid("Invalid start time. The start time cannot occur after the end time.")
    return first, last


def _parse_time(name: str, value: str | None, now: float) -> float:
    """A time of the query, which is UTC; without one, now."""
    if not value:
        return now
    for form in _FORMATS:
        try:
            return datetime.strptime(value, form).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError):
            continue
    raise errors.Invalid(f"{name}: {value[:40]!r} is not a time such as 2026-01-31T12:00:00")


def _links_field(plural: str, links: list[dict[str, str]]) -> dict[str, Any]:
    return {f"tenant_usage{plural}_links": links} if links else {}
