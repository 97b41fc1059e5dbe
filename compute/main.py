"""Compose the agent of one host: the only place where its parts meet."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from compute.agent import Agent
from compute.audit import GuestAudit
from compute.checked import CheckedDriver
from compute.driver import ComputeDriver, Guest, builder_of, host_of
from compute.drivers import load
from compute.entries import Entries
from compute.guests import Guests
from compute.opts import ComputeSettings
from compute.reports import Reporter
from compute.rounds import Round, Rounds
from compute.stats import StatsSender
from compute.tracker import ResourceTracker
from compute.unknown import UnknownGuestsSender
from objects import errors
from objects.build import BuildOrders, DeleteOrder
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.process import About
from rpc.cell_conductor import CellConductorClient
from rpc.compute import serve
from rpc.scheduler import SchedulerClient
from rpc.server import VERSION as MESSAGES
from rpc.transport import Bus
from service.periodic import Every
from service.release import release

LOG = logging.getLogger(__name__)

BINARY = "superconductor-compute"
VERSION = 1
"""The agent's service version: rises when it speaks something that older cell conductors or conductors do not."""

FAREWELL = 2.0
"""Seconds, beyond the time to drain, that the last reports of a stopping agent may take."""


class AgentEndpoint:
    """What the bus may call on this host."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        """Build these instances here. Doubled and stale orders are ignored."""
        del context  # the orders carry all there is to know
        self._agent.build(orders)

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        """Leave no guest of these instances, and report each one gone."""
        del context
        self._agent.delete(orders)


class ComputeService:
    """One agent. ``bus`` is its cell's and stays the caller's to close; so does a ``reporter`` that several agents share.

    Raises Misconfigured where the host has guests that were built under another name of it.

    ``stop`` lets what was begun come to its end within the drain time-out. Leaving it out, as ``kill -9`` does, loses nothing:
    guests stay, and the next start reports them and hands back what was building.
    """

    def __init__(
        self, settings: ComputeSettings, bus: Bus, *, driver: ComputeDriver | None = None, reporter: Reporter | None = None
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._driver = CheckedDriver(driver if driver is not None else load(settings))
        try:
            check_name(settings.host, self._driver.guests())
        except errors.Misconfigured:
            self._driver.close()
            raise
        self.builder = builder_of(settings.host)
        self._context = RequestContext(request_id=f"req-{self.builder}", is_admin=True)
        self._client = CellConductorClient(bus, timeout=settings.call_timeout)
        self._shared = reporter is not None
        self._reporter = reporter or make_reporter(settings, bus)
        self._tracker = ResourceTracker([_offer(node, settings) for node in self._driver.nodes()], settings.failed_build_half_life)
        entries = Entries(settings.host, self.builder, self._tracker, time.time)
        guests = Guests(entries)
        self._agent = Agent(settings, self._driver, entries, self._reporter)
        self._audit = GuestAudit(self._agent, guests, self._driver, self._client, self._context)
        stats = StatsSender(
            SchedulerClient(bus),
            self._context,
            self._tracker,
            lambda: self._agent.queued_builds,
            settings.stats_full_interval,
            guests.unknown_guests if settings.unknown_guests != "keep" else dict,
        )
        unknown = UnknownGuestsSender(self._client, self._context, guests, settings.stats_full_interval)
        rounds = [
            Round("Stats", settings.stats_interval, stats.send),
            Round("Unknown guests", settings.stats_interval, unknown.send),
            Round("Audit", settings.audit_interval, self._audit.run, due=time.monotonic() + settings.audit_interval),
        ]
        self._rounds = Rounds(settings.host, self._beat, self._first, rounds)
        self._heartbeat_due = Every(settings.report_interval)
        self._stopping = False
        self._began = time.monotonic()

    def start(self) -> None:
        """Report the guests that are there, take orders, and keep looking for the cell conductor. Does not wait for any of it."""
        if not self._shared:
            self._reporter.start()
        guests = self._driver.guests()
        LOG.info("Host %s starts as %s with %d guests", self._settings.host, self.builder, len(guests))
        self._agent.found(guests)
        self._server = serve(self._bus, self._settings.host, AgentEndpoint(self._agent), threads=self._settings.dispatch_threads)
        self._rounds.start()

    def check(self) -> None:
        """Raise Unreachable while the bus does not bring it any orders."""
        self._server.check()

    def stop(self, timeout: float | None = None) -> None:
        """Say so, hand over what was not begun, finish the rest within ``timeout`` seconds, let go of the host.

        ``timeout`` None is the drain time-out. What could not be finished is cancelled and reported, for which there are
        ``FAREWELL`` seconds more. With a ``timeout`` of 0 nothing waits, for answers neither.
        """
        end = time.monotonic() + (self._settings.drain_timeout if timeout is None else timeout)
        farewell = FAREWELL if timeout is None or timeout > 0.0 else 0.1
        self._stopping = True
        self._announce()
        self._server.stop()
        self._agent.hand_over()
        self._agent.drain(max(0.0, end - time.monotonic()))
        self._rounds.stop()
        if not self._reporter.flush(self._settings.host, max(0.0, end - time.monotonic()) + farewell):
            LOG.warning("Host %s stops with reports unanswered: its next start makes them again", self._settings.host)
        self._announce()  # the first one may have been overtaken by a heartbeat on its way
        if not self._shared:
            self._reporter.stop()
        self._agent.stop()
        self._driver.close()
        LOG.info("Host %s has stopped", self._settings.host)

    def _first(self) -> None:
        """What must have worked once before anything else by the clock makes sense."""
        self._audit.run()
        self._report_state()
        self._introduce()

    def _introduce(self) -> None:
        with contextlib.suppress(errors.Unsupported):  # a conductor of an older release asks for no more
            self._client.introduce(self._context, self._settings.host, BINARY, _about(), time.monotonic() - self._began)

    def _beat(self) -> None:
        try:
            self._agent.keep_up()
        finally:  # a host that cannot keep up with one build is not dead
            if self._heartbeat_due():
                self._report_state()

    def _report_state(self) -> None:
        self._client.report_state(self._context, self._settings.host, BINARY, VERSION, stopping=self._stopping)

    def _announce(self) -> None:
        """The host takes no more orders. Where nobody hears it, its silence will tell."""
        try:
            self._report_state()
        except errors.SuperconductorError as error:
            LOG.warning("Host %s could not say that it stops: %s", self._settings.host, error)


def check_name(host: str, guests: Sequence[Guest]) -> None:
    """Raise Misconfigured if guests were built here under another host name: to the cell, this would be another host with them.

    A guest remembers the name in its builder, which every driver stores with it.
    """
    built = Counter(name for guest in guests if (name := host_of(guest.builder)) and name != host)
    if built:
        name, count = built.most_common(1)[0]
        raise errors.Misconfigured(
            f"{count} guests here were built by host '{name}', and [compute] host is '{host}': set it back to '{name}'. To rename "
            "the host, delete these guests or move them to other hosts first."
        )


def make_reporter(settings: ComputeSettings, bus: Bus) -> Reporter:
    """A reporter for one agent, or to be shared (and started and stopped by whoever shares it) by agents on one bus."""
    context = RequestContext(request_id="req-reports", is_admin=True)
    client = CellConductorClient(bus, timeout=settings.call_timeout)
    return Reporter(client, context, window=settings.report_window, longest_pause=settings.report_retry_max)


def _about() -> About:
    return About(release=release(), messages=MESSAGES, pid=os.getpid())


def _offer(node: ComputeNode, settings: ComputeSettings) -> ComputeNode:
    """The driver knows the hardware; what of it is offered is the operator's to say."""
    return msgspec.structs.replace(
        node,
        cpu_allocation_ratio=settings.cpu_allocation_ratio,
        ram_allocation_ratio=settings.ram_allocation_ratio,
        disk_allocation_ratio=settings.disk_allocation_ratio,
        reserved_memory_mb=settings.reserved_memory_mb,
        reserved_disk_gb=settings.reserved_disk_gb,
    )
