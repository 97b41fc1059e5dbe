"""Send the host's capacity and usage to the scheduler."""

from __future__ import annotations

import logging
import time
from collections import Counter

import msgspec

from compute.agent import Agent
from compute.guests import Guests
from compute.tracker import ResourceTracker
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from rpc.scheduler import SchedulerClient

LOG = logging.getLogger(__name__)

MIN_TIME_STEP_S = 1e-5
"""Minimum seconds between the times of two reports, even if the clock stood still or was set back."""


class StatsSender:
    """Remembers the last stats that were accepted, and sends only changes, each until it is accepted.

    ``guests``: if the cell has no record of some of them, the attributes of their nodes show how many; None: no attribute does.
    Every ``full_interval`` seconds all stats are sent, because the cell may have lost them (database restored, host deleted).
    """

    def __init__(
        self,
        scheduler: SchedulerClient,
        context: RequestContext,
        tracker: ResourceTracker,
        agent: Agent,
        guests: Guests | None,
        full_interval: float,
    ) -> None:
        self._scheduler = scheduler
        self._context = context
        self._tracker = tracker
        self._agent = agent
        self._guests = guests
        self._full_interval = full_interval
        self._taken: dict[str, ComputeNode] = {}
        self._full_at = 0.0
        self._reported_at = 0.0

    def send(self) -> None:
        """Send changes. Raises the errors of the call; the next call then sends the same again."""
        now = time.monotonic()
        if now >= self._full_at:
            self._taken.clear()
        unknown = self._guests.unknown_guests() if self._guests is not None else Counter[str]()
        for counted in self._tracker.report_nodes(self._agent.queued_builds):
            attributes = {"unknown_guests": unknown[counted.node]} if unknown.get(counted.node) else {}
            stats = msgspec.structs.replace(counted, attributes=counted.attributes | attributes)
            if self._taken.get(stats.node) != stats:
                self._reported_at = max(time.time(), self._reported_at + MIN_TIME_STEP_S)
                reported = msgspec.structs.replace(stats, reported_at=self._reported_at)
                self._scheduler.update_resource_stats(self._context, (stats.host, stats.node), reported)
                self._taken[stats.node] = stats
        if now >= self._full_at:
            self._full_at = now + self._full_interval
