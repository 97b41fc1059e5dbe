"""Compose the agent of one host from its parts."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from compute import machine
from compute.admission import AgentAdmission
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
from rpc.compute import ComputeEndpoint, serve_topic
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus
from service import health, room
from service.release import installed_release

LOG = logging.getLogger(__name__)

VERSION = 5
"""The agent's service version. Raise it when the agent sends something that older cell conductors or conductors do not know, or
answers something that older agents do not. 2: it answers calls (``rpc.compute.ANSWERING_VERSION``). 3: it reports ``power``. 4: it
connects to consoles (``rpc.compute.CONNECTING_VERSION``). 5: it tells the diagnostics of guests
(``rpc.compute.DIAGNOSING_VERSION``).
"""

KEEP_UP_INTERVAL_S = 1.0
"""Seconds between two looks at builds, destroys and tasks under way."""

AUDIT, NODES, INTRODUCTION = "Audit", "Nodes", "Introduction"
"""The names of the rounds that compare guests with the cell's records, read what the host offers, and say what the agent is."""

ADMISSION_WAIT_S = 5.0
"""Seconds that the start of an agent takes at most until its cell has admitted it. Then it goes on in the background."""

FINAL_REPORTS_TIMEOUT_S = 2.0
"""Seconds, beyond the drain time-out, that the last reports of a stopping agent may take."""


class AgentEndpoint:
    """The methods that the bus may call on this host."""

    def __init__(self, agent: Agent, rounds: Rounds) -> None:
        self._agent = agent
        self._rounds = rounds

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        """Build these instances here. Duplicate and stale orders are ignored."""
        del context  # the orders hold everything needed
        self._agent.build_guests(orders)
        self._rounds.wake_rounds()

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        """Leave no guest of these instances, and report each one gone."""
        del context
        self._agent.delete(orders)
        self._rounds.wake_rounds()

    def do_tasks(self, context: RequestContext, orders: Sequence[TaskOrder]) -> None:
        """Carry out these tasks on guests here, those that the cell grants."""
        del context
        self._agent.do_tasks(orders)
        self._rounds.wake_rounds()

    def introduce_again(self, context: RequestContext) -> None:
        """Say what this agent is, and learn whether its machine still runs as the host."""
        del context
        self._rounds.hurry_round(INTRODUCTION)

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
        return self._agent.read_diagnostics(uuid)


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
        self._machine = machine.identify(self._driver.instances_folder)
        self._context = RequestContext(request_id=f"req-{self.builder}", is_admin=True, machine=self._machine.id)
        self._client = CellConductorClient(bus, timeout=settings.call_timeout)
        self._shared = reporter is not None
        self._reporter = reporter or make_reporter(settings, bus)
        self._tracker = ResourceTracker(self._offered_nodes(), settings.failed_build_half_life)
        entries = Entries(settings.host, self.builder, self._tracker, time.time)
        guests = Guests(entries)
        self._agent = Agent(settings, self._driver, entries, self._reporter)
        self._audit = GuestAudit(
            self._agent, guests, self._driver, self._client, self._context, resumes=settings.resume_guests_on_start
        )
        self._began = time.monotonic()
        rounds = self._make_rounds(guests)
        self._heartbeats = heartbeats
        self._heartbeat_due = 0.0
        self._shares_threads = threads is not None
        self._threads = threads or AgentThreads(settings.host, len(rounds) + 1)
        self._rounds = Rounds(settings.host, self, rounds, self._threads)
        self._audits_left = 0
        """How many comparisons may yet leave out reading the records."""
        self._said_down = False
        self._is_served = False
        """Whether somebody else serves the host's topic."""
        self._admission = admission = AgentAdmission()
        self._checks = [
            health.HealthCheck(f"the hypervisor of host {settings.host}", lambda: self._agent.current_trouble),
            health.HealthCheck(f"the release of host {settings.host}", lambda: admission.refusal),
            health.HealthCheck(f"the name of host {settings.host}", lambda: admission.exclusion),
        ]
        if settings.images_folder:
            store = f"the image store of host {settings.host}"
            self._checks.append(health.HealthCheck(store, lambda: room.trouble_of(settings.images_folder)))

    def _make_rounds(self, guests: Guests) -> list[Round]:
        """The periodic work of the agent that may block."""
        settings, now, full_interval = self._settings, self._began, self._settings.stats_full_interval
        shown_guests = guests if settings.unknown_guests != "keep" else None
        stats = StatsSender(SchedulerClient(self._bus), self._context, self._tracker, self._agent, shown_guests, full_interval)
        unknown = UnknownGuestsSender(self._client, self._context, guests, self._driver, full_interval)
        return [
            Round("Hypervisor", settings.hypervisor_interval, self._look_at_hypervisor, from_start=True),
            Round("Stats", settings.stats_interval, stats.send, idle_interval=full_interval),
            Round("Unknown guests", settings.stats_interval, unknown.send, idle_interval=full_interval),
            Round(NODES, full_interval, self._offer_nodes, due=now + full_interval),
            Round(AUDIT, settings.audit_interval, self._compare_guests, due=now + settings.audit_interval),
            # an earlier start's introduction may arrive after this one's, and stay on record
            Round(INTRODUCTION, full_interval, self._introduce_agent, due=now + full_interval),
        ]

    def start(self) -> None:
        """Look for the cell conductor until it answers. Once it has admitted this machine as the host, report existing guests and
        take orders. Waits for that for ``ADMISSION_WAIT_S`` at most.

        Raises Misconfigured if the port for consoles cannot be opened.
        """
        self.prepare_start()
        self.begin_serving()
        self.wait_for_admission(ADMISSION_WAIT_S)

    def prepare_start(self) -> None:
        """The part of the start that sends nothing."""
        self._agent.start()
        if not self._shared:
            self._reporter.start()
        LOG.info("Host %s starts as %s with %d guests", self._settings.host, self.builder, len(self._guests()))
        for check in self._checks:
            health.BOARD.watch_part(check)

    def make_endpoint(self) -> ComputeEndpoint:
        """What is to be served as this host."""
        return AgentEndpoint(self._agent, self._rounds)

    def begin_serving(self, *, is_served: bool = False) -> None:
        """The rest of the start. ``is_served``: the caller serves ``make_endpoint`` with those of other hosts, and stops that."""
        self._is_served = is_served
        if not self._shares_threads:
            self._threads.start()
        self._rounds.start()
        self._driver.watch(lambda: self._rounds.hurry_round(AUDIT))

    def wait_for_admission(self, timeout: float) -> bool:
        """Wait until the cell has admitted or refused this agent; return whether it has."""
        return self._admission.decided.wait(timeout)

    @property
    def current_trouble(self) -> str:
        """Why the hypervisor cannot be used now; empty if it can."""
        return self._agent.current_trouble

    @property
    def exclusion(self) -> str:
        """Which other machine runs as the host; empty if none does."""
        return self._admission.exclusion

    @property
    def is_listening(self) -> bool:
        """Whether the agent listens to a topic of its own."""
        return self._admission.server is not None

    def check_bus(self) -> None:
        """Raise Unreachable while the bus delivers no orders, though the cell has admitted this machine."""
        server = self._admission.server
        if server is not None:
            server.check_listening()

    def stop(self, timeout: float | None = None) -> None:
        """Announce the stop, hand over builds that have not begun, finish the rest within ``timeout`` seconds, and release the
        host.

        ``timeout`` None: the drain time-out. Unfinished builds are cancelled and reported, within
        ``FINAL_REPORTS_TIMEOUT_S`` more. With a ``timeout`` of 0, nothing waits, not even for answers.
        """
        end = time.monotonic() + (self._settings.drain_timeout if timeout is None else timeout)
        final_timeout = FINAL_REPORTS_TIMEOUT_S if timeout is None or timeout > 0.0 else 0.1
        self._admission.stopping = True
        if self._heartbeats is not None:
            self._heartbeats.remove_agent(self._settings.host)
        for check in self._checks:
            health.BOARD.forget_part(check)
        self._announce_stop()
        self._admission.stop_orders()
        self._agent.hand_over()
        self._agent.drain_work(max(0.0, end - time.monotonic()))
        self._rounds.stop()
        if not self._shares_threads:
            self._threads.stop()
        if not self._reporter.flush_reports(self._settings.host, max(0.0, end - time.monotonic()) + final_timeout):
            LOG.warning("Host %s stops with unanswered reports: its next start repeats them", self._settings.host)
        self._announce_stop()  # an earlier heartbeat may have arrived after the first one
        if not self._shared:
            self._reporter.stop()
        self._agent.stop()
        self._driver.close()
        LOG.info("Host %s has stopped", self._settings.host)

    def take_first_steps(self) -> None:
        """Steps that must succeed once before the periodic rounds begin."""
        self._introduce_agent()
        self._serve()
        self._compare_guests()
        self._report_state()

    def _introduce_agent(self) -> None:
        """Raises Misconfigured if a conductor cannot work with this release. Until one can, the host takes no orders.

        Raises HostNameTaken if another machine runs as the host. Until the cell admits this one, it acts as the host no more.
        """
        uptime = time.monotonic() - self._began
        about = About(release=installed_release(), messages=str(SPAN), pid=os.getpid(), version=VERSION, machine=self._machine.name)
        try:
            with contextlib.suppress(errors.Unsupported):  # a conductor of an older release needs no introduction
                self._client.introduce(self._context, self._settings.host, AGENT_BINARY, about, uptime)
        except errors.HostNameTaken as error:
            self._leave(str(error))
            raise
        except errors.Misconfigured as error:
            self._admission.refusal = str(error)
            self._admission.decided.set()
            self._report_state()
            raise
        self._admission.refusal = ""

    def _serve(self) -> None:
        """The cell has admitted this machine as the host: report its guests and take orders."""
        self._admission.exclusion = ""
        self._agent.admit()
        guests = self._guests()
        with self._admission as admission:
            if admission.stopping or admission.takes_orders:
                return
            self._agent.report_found(guests)
            if self._heartbeats is not None:
                self._heartbeats.add_agent(self._settings.host, self._takes_none)
            if not self._is_served:
                threads = self._settings.dispatch_threads
                admission.server = serve_topic(self._bus, self._settings.host, self.make_endpoint(), threads=threads)
            admission.takes_orders = True
        admission.decided.set()

    def _leave(self, reason: str) -> None:
        """Another machine runs as the host: take no orders, report nothing and change no guest."""
        if not self._admission.exclusion:
            LOG.error("Host %s is refused: %s", self._settings.host, reason)
        self._admission.exclusion = reason
        if self._heartbeats is not None:
            self._heartbeats.remove_agent(self._settings.host)
        self._admission.stop_orders()
        self._agent.exclude(reason)
        self._rounds.begin_again()
        self._admission.decided.set()

    def _guests(self) -> Sequence[Guest]:
        """Those of the host; none while its hypervisor is down: the audit finds them when it is back."""
        try:
            return self._driver.guests()
        except errors.HypervisorDown:
            return []

    def beat_once(self) -> float:
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

    def is_idle(self) -> bool:
        """Whether the stats stay as they are until an order comes, or the driver or the cell says something else."""
        return not self._agent.is_busy and not self._tracker.has_failed

    def _look_at_hypervisor(self) -> None:
        """Tell the cell at once when the hypervisor goes down or is back. Compare all guests then: events may be lost."""
        self._agent.look_at_hypervisor()
        is_down = bool(self._agent.current_trouble)
        if is_down is self._said_down:
            return
        self._said_down = is_down
        if not is_down:
            self._audits_left = 0
            self._rounds.hurry_round(AUDIT)
            self._rounds.hurry_round(NODES)
        self._report_state()

    def _compare_guests(self) -> None:
        """Unless nothing has changed since the records were last read, and that was lately."""
        if self._agent.current_trouble:
            return
        if self._audits_left and self._audit.is_settled():
            self._audits_left -= 1
            return
        self._audit.run()
        self._audits_left = PERIODS_OF_SETTLED - 1
        if not self._audit.found_nothing:
            self._rounds.wake_rounds()  # for what it may have begun

    def _offered_nodes(self) -> list[ComputeNode]:
        """What the driver reports, less the operator's reservations.

        The driver proposes the reserved memory of a host whose operator has not set it.
        """
        memory_mb, disk_gb = self._settings.reserved_memory_mb, self._settings.reserved_disk_gb
        return [
            msgspec.structs.replace(
                node,
                reserved_memory_mb=node.reserved_memory_mb if memory_mb is None else memory_mb,
                reserved_disk_gb=disk_gb,
            )
            for node in self._driver.nodes()
        ]

    def _offer_nodes(self) -> None:
        """Memory may be added to a host, or a disk may fail."""
        self._tracker.set_nodes(self._offered_nodes())
        self._rounds.wake_rounds()  # the stats may be others now

    def _report_state(self) -> None:
        """Nothing about a host that another machine runs as."""
        if self._admission.exclusion:
            return
        self._client.report_state(self._context, self._settings.host, AGENT_BINARY, VERSION, stopping=self._takes_none())

    def _takes_none(self) -> bool:
        """Whether the host takes no orders now."""
        return self._admission.stopping or bool(self._agent.current_trouble) or bool(self._admission.refusal)

    def _announce_stop(self) -> None:
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
