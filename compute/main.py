"""Compose the agent of one host from its parts."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from compute.agent import Agent
from compute.audit import PERIODS_OF_SETTLED, GuestAudit
from compute.driver import ComputeDriver, Guest, builder_of, host_of
from compute.driver_checks import CheckedDriver
from compute.guests import Guests
from compute.heartbeats import Heartbeats
from compute.opts import ComputeSettings
from compute.reports import Reporter
from compute.rounds import AgentThreads, Round, Rounds
from compute.simulated import SimulatedDriver
from compute.stats import StatsSender
from compute.tracker import ResourceTracker
from compute.unknown import UnknownGuestsSender
from compute.work_table import Entries
from objects import errors
from objects.build import BuildOrders, DeleteOrder
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind, ConsoleListener
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from objects.messages_version import SPAN
from objects.process import AGENT_BINARY, About
from objects.task import TaskOrder
from rpc.cell_conductor import CellConductorClient
from rpc.compute import ComputeEndpoint, serve
from rpc.scheduler import SchedulerClient
from rpc.server import TopicServer
from rpc.transport import Bus
from service import health, room
from service.release import release

LOG = logging.getLogger(__name__)

VERSION = 5
"""The agent's service version. Raise it when the agent sends something that older cell conductors or conductors do not know, or
answers something that older agents do not. 2: it answers calls (``rpc.compute.ANSWERING_VERSION``). 3: it reports ``power``. 4: it
connects to consoles (``rpc.compute.CONNECTING_VERSION``). 5: it tells the diagnostics of guests
(``rpc.compute.DIAGNOSING_VERSION``).
"""

KEEP_UP_INTERVAL_S = 1.0
"""Seconds between two looks at builds, destroys and tasks under way."""

AUDIT, NODES = "Audit", "Nodes"
"""The names of the rounds that compare guests with the cell's records, and read what the host offers."""

FINAL_REPORTS_TIMEOUT_S = 2.0
"""Seconds, beyond the drain time-out, that the last reports of a stopping agent may take."""


class AgentEndpoint:
    """The methods that the bus may call on this host."""

    def __init__(self, agent: Agent, taken: Callable[[], None]) -> None:
        """``taken`` is called after orders were taken."""
        self._agent = agent
        self._taken = taken

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        """Build these instances here. Duplicate and stale orders are ignored."""
        del context  # the orders hold everything needed
        self._agent.build(orders)
        self._taken()

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        """Leave no guest of these instances, and report each one gone."""
        del context
        self._agent.delete(orders)
        self._taken()

    def do_tasks(self, context: RequestContext, orders: Sequence[TaskOrder]) -> None:
        """Carry out these tasks on guests here, those that the cell grants."""
        del context
        self._agent.do_tasks(orders)
        self._taken()

    def console_output(self, context: RequestContext, uuid: str, lines: int | None) -> str:
        """Return the end of a guest's console output."""
        del context
        return self._agent.console_output(uuid, lines)

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float
    ) -> ConsoleListener:
        """Open a way to a guest's console."""
        del context
        return self._agent.open_console(uuid, kind, path_digest, lifetime)

    def diagnostics(self, context: RequestContext, uuid: str) -> Diagnostics:
        """Return what the hypervisor knows of a guest."""
        del context
        return self._agent.diagnostics(uuid)


class ComputeService:
    """One agent. ``driver`` None: the simulated one. ``bus`` is its cell's.

    The caller closes the bus, and what several agents of one process share: ``reporter``, ``threads``, ``heartbeats``.

    Raises Misconfigured if the host has guests that were built under another host name, and HypervisorDown.

    ``stop`` lets running work finish within the drain time-out. Without it, as after ``kill -9``, nothing is lost: guests stay, and
    the next start reports them and hands back unfinished builds.
    """

    def __init__(
        self,
        settings: ComputeSettings,
        bus: Bus,
        *,
        driver: ComputeDriver | None = None,
        reporter: Reporter | None = None,
        threads: AgentThreads | None = None,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._driver = CheckedDriver(driver if driver is not None else SimulatedDriver(settings))
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
        self._tracker = ResourceTracker(self._nodes(), settings.failed_build_half_life)
        entries = Entries(settings.host, self.builder, self._tracker, time.time)
        guests = Guests(entries)
        self._agent = Agent(settings, self._driver, entries, self._reporter)
        self._audit = GuestAudit(
            self._agent, guests, self._driver, self._client, self._context, resumes=settings.resume_guests_on_start
        )
        stats = StatsSender(
            SchedulerClient(bus),
            self._context,
            self._tracker,
            lambda: self._agent.queued_builds,
            settings.stats_full_interval,
            guests.unknown_guests if settings.unknown_guests != "keep" else dict,
        )
        unknown = UnknownGuestsSender(self._client, self._context, guests, self._driver, settings.stats_full_interval)
        rounds = [
            Round("Hypervisor", settings.hypervisor_interval, self._look, from_start=True),
            Round("Stats", settings.stats_interval, stats.send, idle_interval=settings.stats_full_interval),
            Round("Unknown guests", settings.stats_interval, unknown.send, idle_interval=settings.stats_full_interval),
            Round(NODES, settings.stats_full_interval, self._offer_nodes, due=time.monotonic() + settings.stats_full_interval),
            Round(AUDIT, settings.audit_interval, self._compare, due=time.monotonic() + settings.audit_interval),
            # an earlier start's introduction may arrive after this one's, and stay on record
            Round(
                "Introduction", settings.stats_full_interval, self._introduce, due=time.monotonic() + settings.stats_full_interval
            ),
        ]
        self._heartbeats = heartbeats
        self._heartbeat_due = 0.0
        self._shares_threads = threads is not None
        self._threads = threads or AgentThreads(settings.host, len(rounds) + 1)
        self._rounds = Rounds(settings.host, self._beat, self._first, rounds, self._threads, self._is_idle)
        self._audits_left = 0
        """How many comparisons may yet leave out reading the records."""
        self._stopping = False
        self._said_down = False
        self._refusal = ""
        self._sign = health.HealthCheck(f"the hypervisor of host {settings.host}", lambda: self._agent.trouble)
        self._room = health.HealthCheck(f"the image store of host {settings.host}", lambda: room.trouble_of(settings.images_folder))
        self._welcome = health.HealthCheck(f"the release of host {settings.host}", lambda: self._refusal)
        self._began = time.monotonic()

    def start(self) -> None:
        """Report existing guests, take orders, and look for the cell conductor until it answers. Does not wait for any of
        these. Raises Misconfigured if the port for consoles cannot be opened.
        """
        self.prepare()
        self.begin(serve(self._bus, self._settings.host, self.endpoint(), threads=self._settings.dispatch_threads))

    def prepare(self) -> None:
        """The part of the start before the agent takes orders."""
        self._agent.start()
        if not self._shared:
            self._reporter.start()
        guests: list[Guest] = []
        with contextlib.suppress(errors.HypervisorDown):  # the audit finds them when it is back
            guests = self._driver.guests()
        LOG.info("Host %s starts as %s with %d guests", self._settings.host, self.builder, len(guests))
        self._agent.found(guests)
        health.BOARD.watch(self._sign)
        health.BOARD.watch(self._welcome)
        if self._settings.images_folder:
            health.BOARD.watch(self._room)

    def endpoint(self) -> ComputeEndpoint:
        """What is to be served as this host."""
        return AgentEndpoint(self._agent, self._rounds.wake)

    def begin(self, server: TopicServer) -> None:
        """The rest of the start. ``server``: it brings the orders to ``endpoint``, maybe those for other hosts as well."""
        self._server = server
        if not self._shares_threads:
            self._threads.start()
        if self._heartbeats is not None:
            self._heartbeats.add(self._settings.host, self._takes_none)
        self._rounds.start()
        self._driver.watch(lambda: self._rounds.hurry(AUDIT))

    @property
    def trouble(self) -> str:
        """Why the hypervisor cannot be used now; empty if it can."""
        return self._agent.trouble

    def check(self) -> None:
        """Raise Unreachable while the bus delivers no orders."""
        self._server.check()

    def stop(self, timeout: float | None = None) -> None:
        """Announce the stop, hand over builds that have not begun, finish the rest within ``timeout`` seconds, and release the
        host.

        ``timeout`` None: the drain time-out. Unfinished builds are cancelled and reported, within
        ``FINAL_REPORTS_TIMEOUT_S`` more. With a ``timeout`` of 0, nothing waits, not even for answers.
        """
        end = time.monotonic() + (self._settings.drain_timeout if timeout is None else timeout)
        final_timeout = FINAL_REPORTS_TIMEOUT_S if timeout is None or timeout > 0.0 else 0.1
        self._stopping = True
        if self._heartbeats is not None:
            self._heartbeats.remove(self._settings.host)
        health.BOARD.forget(self._sign)
        health.BOARD.forget(self._welcome)
        health.BOARD.forget(self._room)
        self._announce()
        self._server.stop()
        self._agent.hand_over()
        self._agent.drain(max(0.0, end - time.monotonic()))
        self._rounds.stop()
        if not self._shares_threads:
            self._threads.stop()
        if not self._reporter.flush(self._settings.host, max(0.0, end - time.monotonic()) + final_timeout):
            LOG.warning("Host %s stops with unanswered reports: its next start repeats them", self._settings.host)
        self._announce()  # an earlier heartbeat may have arrived after the first one
        if not self._shared:
            self._reporter.stop()
        self._agent.stop()
        self._driver.close()
        LOG.info("Host %s has stopped", self._settings.host)

    def _first(self) -> None:
        """Steps that must succeed once before the periodic rounds begin."""
        self._compare()
        self._introduce()
        self._report_state()

    def _introduce(self) -> None:
        """Raises Misconfigured if a conductor cannot work with this release. Until one can, the host takes no orders."""
        try:
            with contextlib.suppress(errors.Unsupported):  # a conductor of an older release needs no introduction
                self._client.introduce(self._context, self._settings.host, AGENT_BINARY, _about(), time.monotonic() - self._began)
        except errors.Misconfigured as error:
            self._refusal = str(error)
            self._report_state()
            raise
        self._refusal = ""

    def _beat(self) -> float:
        """Returns when it is next due, which is later while nothing is under way. Infinite: when something begins.

        ``Rounds`` calls it whenever a round is due, too.
        """
        try:
            self._agent.keep_up()
        finally:  # send a heartbeat even if keep_up fails: the host is not down
            now = time.monotonic()
            if self._heartbeats is not None:
                self._heartbeat_due = math.inf  # they are sent for all agents of this process
            elif now >= self._heartbeat_due:
                self._heartbeat_due = now + self._settings.report_interval
                self._report_state()
        return min(self._heartbeat_due, now + KEEP_UP_INTERVAL_S) if self._agent.is_busy else self._heartbeat_due

    def _is_idle(self) -> bool:
        """Whether the stats stay as they are until an order comes, or the driver or the cell says something else."""
        return not self._agent.is_busy and not self._tracker.has_failed

    def _look(self) -> None:
        """Tell the cell at once when the hypervisor goes down or is back. Compare all guests then: events may be lost."""
        self._agent.look()
        is_down = bool(self._agent.trouble)
        if is_down is self._said_down:
            return
        self._said_down = is_down
        if not is_down:
            self._audits_left = 0
            self._rounds.hurry(AUDIT)
            self._rounds.hurry(NODES)
        self._report_state()

    def _compare(self) -> None:
        """Unless nothing has changed since the records were last read, and that was lately."""
        if self._agent.trouble:
            return
        if self._audits_left and self._audit.is_settled():
            self._audits_left -= 1
            return
        self._audit.run()
        self._audits_left = PERIODS_OF_SETTLED - 1
        if not self._audit.found_nothing:
            self._rounds.wake()  # for what it may have begun

    def _nodes(self) -> list[ComputeNode]:
        return [_offer(node, self._settings) for node in self._driver.nodes()]

    def _offer_nodes(self) -> None:
        """Memory may be added to a host, or a disk may fail."""
        self._tracker.offer(self._nodes())
        self._rounds.wake()  # the stats may be others now

    def _report_state(self) -> None:
        self._client.report_state(self._context, self._settings.host, AGENT_BINARY, VERSION, stopping=self._takes_none())

    def _takes_none(self) -> bool:
        """Whether the host takes no orders now."""
        return self._stopping or bool(self._agent.trouble) or bool(self._refusal)

    def _announce(self) -> None:
        """Tell the cell that the host takes no more orders. If the message is lost, the missing heartbeats will show it."""
        try:
            self._report_state()
        except errors.SuperconductorError as error:
            LOG.warning("Host %s could not report that it stops: %s", self._settings.host, error)


def check_name(host: str, guests: Sequence[Guest]) -> None:
    """Raise Misconfigured if guests here were built under another host name: the cell would see a different host with these
    guests.

    The name is part of the guest's builder, which every driver stores with it.
    """
    built = Counter(name for guest in guests if (name := host_of(guest.builder)) and name != host)
    if built:
        name, count = built.most_common(1)[0]
        raise errors.Misconfigured(
            f"{count} guests here were built by host '{name}', and [compute] host is '{host}': set it to '{name}'. To rename "
            "the host, delete these guests or move them to other hosts first."
        )


def make_reporter(settings: ComputeSettings, bus: Bus) -> Reporter:
    """A reporter for one agent, or for several agents on one bus; the caller then starts and stops it."""
    context = RequestContext(request_id="req-reports", is_admin=True)
    client = CellConductorClient(bus, timeout=settings.call_timeout)
    return Reporter(client, context, window=settings.report_window, longest_pause=settings.report_retry_max)


def _about() -> About:
    return About(release=release(), messages=str(SPAN), pid=os.getpid(), version=VERSION)


def _offer(node: ComputeNode, settings: ComputeSettings) -> ComputeNode:
    """Apply the operator's reservations to what the driver reports.

    The driver proposes the reserved memory of a host whose operator has not set it.
    """
    reserved = settings.reserved_memory_mb
    return msgspec.structs.replace(
        node,
        reserved_memory_mb=node.reserved_memory_mb if reserved is None else reserved,
        reserved_disk_gb=settings.reserved_disk_gb,
    )
