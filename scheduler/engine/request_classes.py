"""Surveys that are kept: a request that asks what an earlier one asked only looks at the hosts that have changed since.

Requests of one *shape* ask the same of every host: ``FIELDS`` says what. Members of a group and hosts that a request excludes are
not part of the shape.

Everything but ``Shapes.keep_up`` needs the table's lock.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial

from scheduler.engine.chain import Chain
from scheduler.engine.survey import Survey
from scheduler.engine.survey_cache import KeptRows
from scheduler.framework.batch_request import UNPACKED_POLICIES, Request
from scheduler.table.host_table import HostTable

KEPT_FROM = 16384
"""Hosts from which surveys are kept. A pass over fewer costs about as much as what it would save."""
KEPT_BYTES = 512 * 1024**2
"""Memory for the latest shapes: each takes nine bytes for each host."""
SHAPES_NOTED = 256
"""Latest shapes that were seen. Only what is asked for a second time is kept."""
RETRY_AFTER_S = 10.0
"""Seconds after which a survey that could not be made is tried again."""
KEPT_UP_S = 60.0
"""Seconds for which ``keep_up`` looks after a survey that nobody asks for."""
CHANGES_LEFT = 64
"""Changed rows that ``keep_up`` leaves to the next decision."""
PAGE_PAUSE_S = 0.001
"""Seconds between two holds, in which decisions that wait get the lock."""

FIELDS: dict[str, Callable[[Request], Hashable]] = {
    "amounts": lambda request: (request.vcpus, request.memory_mb, request.disk_gb),
    "resources": lambda request: tuple(sorted(request.resources.items())),
    "extra_specs": lambda request: tuple(sorted(request.spec.flavor.extra_specs.items())),
    "flavor_name": lambda request: request.spec.flavor.name,
    "image": lambda request: _image_key(request),
    "project_id": lambda request: request.spec.project_id,
    "zone": lambda request: request.zone,
    "unpacked_policy": lambda request: request.group_policy if request.group_policy in UNPACKED_POLICIES else None,
}
"""What a filter or weigher may name in ``reads``."""


def _image_key(request: Request) -> Hashable:
    image = request.spec.image
    return None if image is None else (image.id, tuple(sorted(image.properties.items())))


class Shapes:
    """The kept surveys of one driver, the latest last.

    As soon as a thread calls ``keep_up``, it makes them. Before that, and where there is none, the decision that needs one does.
    """

    def __init__(self, kept_from: int = KEPT_FROM) -> None:
        self._kept_from = kept_from
        self._cached: OrderedDict[Hashable, KeptRows] = OrderedDict()
        self._noted: OrderedDict[Hashable, float] = OrderedDict()  # when a survey may be made, at the earliest
        self._requested: dict[Hashable, KeptRows] = {}
        self._is_kept_up = False

    def cached_survey(self, table: HostTable, chain: Chain, request: Request, *, shuffle: bool) -> Survey | None:
        """None if a pass over the fleet is to answer: for a shape that is new, a refusal, and what cannot be kept."""
        if chain.reads is None or table.size < self._kept_from or not _is_plain(request):
            return None
        key = (chain.shared_filters, chain.shared_weighers, tuple(FIELDS[name](request) for name in chain.reads))
        rows = self._cached_rows(key, table, chain, request)
        return rows.survey_request(chain, request, request.seed if shuffle else None) if rows is not None else None

    def _cached_rows(self, key: Hashable, table: HostTable, chain: Chain, request: Request) -> KeptRows | None:
        rows = self._cached.get(key)
        if rows is not None:
            rows.asked_at = request.alive_since
            if rows.catch_up(table, request) and (self._is_kept_up or rows.scales_hold(request.alive_since)):
                self._cached.move_to_end(key)
                return rows if rows.passing_count else None
            del self._cached[key]
        elif not self._may_be_made(key, request):
            return None
        fresh = KeptRows(table, chain, request)
        if self._is_kept_up:
            self._requested.setdefault(key, fresh)
            return None
        for _ in fresh.build_rows():
            pass
        return fresh if self._keep_rows(key, fresh) else None

    def _may_be_made(self, key: Hashable, request: Request) -> bool:
        """Whether it was asked for before, and not found impossible just now."""
        earliest = self._noted.get(key)
        if earliest is None:
            self._noted[key] = request.alive_since
            if len(self._noted) > SHAPES_NOTED:
                self._noted.popitem(last=False)
            return False
        return request.alive_since >= earliest

    def _keep_rows(self, key: Hashable, fresh: KeptRows) -> bool:
        """Keep it if it could be made, and some host passes. Returns whether."""
        self._requested.pop(key, None)
        if not (fresh.is_made and fresh.passing_count and fresh.catch_up(fresh.table, fresh.current_request())):
            self._noted[key] = fresh.asked_at + RETRY_AFTER_S
            return False
        self._cached[key] = fresh
        self._cached.move_to_end(key)
        while len(self._cached) * fresh.memory_bytes > KEPT_BYTES and len(self._cached) > 1:
            self._cached.popitem(last=False)
        return True

    def keep_up(self, table: HostTable) -> None:
        """Make the surveys that were asked for, and keep the others up to date, so that decisions do not wait for it.

        For a thread of its own: takes the table's lock for a page of hosts at a time.
        """
        with table.lock:
            self._is_kept_up = True
            requested, cached = list(self._requested.items()), list(self._cached.items())
        for key, rows in requested:
            _in_pages(table, rows.build_rows())
            with table.lock:
                self._keep_rows(key, rows)
        for key, rows in cached:
            with table.lock:
                now = table.up_since
                is_due = self._cached.get(key) is rows and self._catch_up(table, rows, now)
            if is_due and not rows.check_scales(partial(_in_pages, table), now):
                fresh = rows.renewed_copy()
                _in_pages(table, fresh.build_rows())
                with table.lock:
                    self._keep_rows(key, fresh)

    @staticmethod
    def _catch_up(table: HostTable, rows: KeptRows, now: float) -> bool:
        """Spare the next decision what it would have to look at. Returns whether the scales are to be looked at."""
        is_asked_for = now - rows.asked_at <= KEPT_UP_S
        return is_asked_for and rows.catch_up(table, rows.current_request(), beyond=CHANGES_LEFT) and rows.is_due(now)


def _in_pages(table: HostTable, steps: Iterator[None]) -> None:
    """Take each of these steps in a hold of the lock of its own."""
    while True:
        with table.lock:
            if next(steps, steps) is steps:
                return
        time.sleep(PAGE_PAUSE_S)


def _is_plain(request: Request) -> bool:
    """Whether it makes none of the assumptions under which a refusal is looked into."""
    return not (request.returning_cells or request.any_cell or request.unheard_cells or request.yielding)
