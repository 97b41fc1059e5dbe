"""The scheduler's calls: choose hosts for batches and claim them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from db.api.claims import claims, group_slots
from db.api.claims import displaced as displaced_servers
from db.api.claims.claiming import EVERYTHING, Ask, Claimed
from db.api.operations import movable
from db.api.rows import epochs
from db.api.rows.ledger import Stamp
from db.sql.connection import ApiTransaction
from objects import errors, hints
from objects.capacity import Capacity, Loss
from objects.choice import Choice, refusal_choice
from objects.context import RequestContext
from objects.dry_run import DryRun
from objects.flavor import Flavor
from objects.inventory import Slot
from objects.rebalance import Rebalance
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.claim import recheck
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.claim.stripes import Stripes
from scheduler.engine import capacity
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import CLAIM_ATTEMPTS, Job, PlanContext, checked_job
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.table_updater import TOPOLOGY_EPOCHS
from scheduler.view import FleetReader
from scheduler.what_if import failure_simulation, rebalance
from scheduler.what_if.dry_run import DryRunPlanner
from service import metrics
from service.batching import GroupCommit
from service.logs import log_step
from service.retry import pause_after

LOG = logging.getLogger(__name__)

CONFLICT_PAUSE_S, LONGEST_CONFLICT_PAUSE_S = 0.01, 0.08
"""Longest pause before the second try, doubled with each further one. Full jitter: two batches in conflict do not meet again."""
HOSTS_WAIT_PAUSE_S = 0.2
"""Seconds between two attempts while a batch waits for hosts that this process has not heard of yet."""


class SchedulerManager:
    """Serves the topic ``scheduler``. Concurrent calls share a transaction, in which each batch succeeds or fails by itself."""

    def __init__(
        self,
        settings: SchedulerSettings,
        driver: SchedulerDriver,
        table: HostTable,
        cursor: Cursor,
        ledger: claims.Ledger,
        fleet: FleetReader,
    ) -> None:
        """``fleet``: reads the fleet into ``table``."""
        self._settings = settings
        self._driver = driver
        self._table = table
        self._cursor = cursor
        self._ledger = ledger
        self._fleet = fleet
        self._started = time.monotonic()
        self._stripes = Stripes()
        self.conflicts = 0
        """How often a planned host turned out to be full or locked by another transaction."""
        self._schedule: GroupCommit[Sequence[Job], None] = GroupCommit(
            self._schedule_all, window=settings.claim_window, transient=(errors.Transient, claims.Raced)
        )

    def keep_surveys(self) -> None:
        """Bring what is kept of earlier surveys up to date, beside decisions. Only one thread may call it."""
        self._driver.shapes.keep_up(self._table)

    def reload_settings(self, settings: SchedulerSettings, driver: SchedulerDriver) -> None:
        """Use these settings, and this driver with its filters and weighers, from the next transaction on."""
        self._settings, self._driver = settings, driver

    def select_destinations(
        self, context: RequestContext, request_spec: RequestSpec, instance_uuids: Sequence[str]
    ) -> list[list[Selection]]:
        """Claim a host for every instance, or for none.

        Returns a list for each instance, in the order of ``instance_uuids``: the claimed host, then unclaimed alternates in its
        cell. An instance that is no longer leased under ``request_spec.fences`` gets an empty list; the others are not affected.
        If ``request_spec.min_count`` instances find a host, the others get an empty list too. A repeated call returns the same
        claims. For a move, the one uuid is the operation's, not the server's.

        Raises NoValidHost with the id of the stored decision, CellUnavailable if cells that could take the batch are out of reach,
        Invalid for a malformed call, Conflict if other transactions took the hosts in all tries or hosts are held for retries or
        moves, and DatabaseUnavailable.
        """
        job = checked_job(context, request_spec, instance_uuids)
        job.places = self._hosts_of_hints(request_spec)
        self._recheck_claims(job)
        self._schedule_jobs([job], is_patient=True)
        self._log_decision(job)
        return job.selections_or_raise()

    def select_for_each(self, context: RequestContext, request_specs: Sequence[RequestSpec]) -> list[Choice]:
        """The same for several batches in one transaction, each with all instances of its fences. Answers are in request order.

        A batch that finds no host because this process does not know the whole fleet yet gets Conflict, so that it does not delay
        the others.
        """
        choices: dict[int, Choice] = {}
        jobs: dict[int, Job] = {}
        for number, spec in enumerate(request_specs):
            batch_context = msgspec.structs.replace(
                context, request_id=spec.request_id, project_id=spec.project_id, user_id=spec.user_id
            )
            try:
                jobs[number] = checked_job(batch_context, spec, list(spec.fences))
                jobs[number].places = self._hosts_of_hints(spec)
                self._recheck_claims(jobs[number])
            except errors.SuperconductorError as error:
                choices[number] = refusal_choice(error)
        self._schedule_jobs([job for number, job in jobs.items() if number not in choices])
        for number, job in jobs.items():
            if number not in choices:
                choices[number] = self._choice_of(job)
        return [choices[number] for number in range(len(request_specs))]

    def dry_run(self, context: RequestContext, request_spec: RequestSpec) -> DryRun:
        """Decide about all instances of ``request_spec.fences`` as ``select_destinations`` does, and carry nothing out.

        The planner is the one that plans claims. Its transaction locks and writes no row.

        Raises what ``select_destinations`` does, but for a refusal: that is an answer. Nobody waits for hosts that this process has
        not heard of yet: Conflict.
        """
        job = checked_job(context, request_spec, list(request_spec.fences))
        job.places = self._hosts_of_hints(request_spec)
        for look in (False, True, True):
            topology, now = self._fleet.topology_epochs(look=look), self._plan_context()
            planner = DryRunPlanner(self._table, self._stripes.with_stripe(self._driver, now.mono), self._cursor, [job], now)
            try:
                self._ledger.database.read(claims.rehearse_claim, [job.claim_request], planner, topology)
            except claims.Outdated:
                continue
            if job.error is not None:
                raise job.error
            [answer] = planner.answers
            if answer is None:
                raise errors.Conflict("not all hosts are known yet; ask again")
            return answer
        raise errors.Conflict("cells, host mappings or aggregates keep changing; ask again")

    def refusal_of_image(self, context: RequestContext, request_spec: RequestSpec, instance_uuid: str) -> str:
        """Why the host of an instance does not run the image of ``request_spec``; empty if it does. Its claim stays as it is.

        Raises NoValidHost for an image that no host can run, and Conflict if this process does not know the host.
        """
        job = checked_job(context, msgspec.structs.replace(request_spec, move=None), ())  # one that made this body is over
        self._fleet.topology_epochs(look=True)
        claimed = self._ledger.database.read(claims.list_claimed, [instance_uuid])
        now = self._plan_context()
        for _, inventory, _ in claimed:
            with self._table.lock:
                reason = recheck.refusal_of_image(self._table, self._driver, now, job, inventory)
            if reason is not None:
                return reason
        raise errors.Conflict(f"Nothing is known of the host of instance {instance_uuid} now; ask again in a moment")

    def capacity(self, context: RequestContext, request_specs: Sequence[RequestSpec], lost: Loss | None = None) -> Capacity:
        """How many more servers fit on the hosts as they are now. Writes nothing, and waits for nobody.

        ``lost``: count as if its hosts were lost and their servers placed elsewhere first.

        Raises NoValidHost for specs that no host can meet, TooCostly if too much is lost, and DatabaseUnavailable.
        """
        self._fleet.topology_epochs(look=True)
        with self._table.lock:
            gone = failure_simulation.rows_of(self._table, lost) if lost is not None else np.zeros(0, np.int64)
            hosts, inventories = [self._table.hosts[row] for row in gone.tolist()], self._table.inventory[gone].tolist()
        database, kinds, slots = self._ledger.database, list[failure_simulation.Kind](), tuple[Slot, ...]()
        if lost is not None:
            displaced = database.read(displaced_servers.read, inventories, failure_simulation.SERVERS_LIMIT)
            kinds, slots = failure_simulation.kinds_of(context, displaced, lost, hosts), displaced.slots
            for kind in kinds:
                kind.job.places = self._hosts_of_hints(kind.job.spec)
            request_specs = [failure_simulation.spec_without_lost(spec, lost, hosts) for spec in request_specs]
        jobs = [checked_job(context, spec, ()) for spec in request_specs]
        self._read_claims()
        now, driver = self._plan_context(), self._driver
        with self._table.lock:
            with self._table.take_tentatively():
                outcome = (
                    failure_simulation.place_bodies(self._table, driver, now, kinds, slots, gone) if lost is not None else None
                )
                requests = [job.make_request(self._table, now) for job in jobs]
                alone = [capacity.host_room(self._table, driver, request) for request in requests]
                rooms = [
                    capacity.flavor_room(self._table, job.spec.flavor.name, room_alone)
                    for job, room_alone in zip(jobs, alone, strict=True)
                ]
                sets = capacity.sets_room(self._table, driver, requests, alone) if len(requests) > 1 else None
            return Capacity(
                flavors=tuple(rooms),
                sets=sets,
                hosts=len(self._table),
                cells=dict(now.ages),
                host_limit=capacity.HOST_LIMIT,
                early=now.young,
                loss=outcome,
            )

    def rebalance(self, context: RequestContext, request_specs: Sequence[RequestSpec], at_most: float) -> Rebalance:
        """The moves of at most ``at_most`` per cent of all servers that empty the most hosts, greedily. Writes nothing.

        ``request_specs``: servers of which it tells how many fit before and after; none: one of the project's largest flavor.

        Raises NoValidHost for specs that no host can meet, and DatabaseUnavailable.
        """
        self._fleet.topology_epochs(look=True)
        self._read_claims()
        now = self._plan_context()
        with self._table.lock:
            is_in_cell = self._table.cell[: self._table.size] >= 0
            servers = int(self._table.instances[: self._table.size][is_in_cell].sum())
            allowed = min(int(servers * at_most / 100), rebalance.server_limit(self._table))
            inventories = self._table.inventory[rebalance.source_rows(self._table, now, allowed)].tolist()
            most = rebalance.emptied_bound(self._table, allowed)
        database = self._ledger.database
        movable_servers = database.read(movable.read, inventories, 2 * rebalance.SERVERS_LIMIT)
        movers = rebalance.movers_of(context, movable_servers)
        for movers_of_host in movers.values():
            for mover in movers_of_host:
                mover.job.places = self._hosts_of_hints(mover.job.spec)
        specs = request_specs or [_new_server(context, flavor) for flavor in self._fleet.usable_flavors(context.project_id)[:1]]
        jobs = [checked_job(context, spec, ()) for spec in specs]
        rebalancer = rebalance.Rebalancer(
            self._table, self._driver, now, movable_servers.claims.slots, inventories, movers, allowed
        )
        with self._table.lock:
            before = rebalance.fleet_state(self._table, self._driver, jobs, now)
        rebalancer.run()
        with self._table.lock, rebalancer.show_plan():
            after = rebalance.fleet_state(self._table, self._driver, jobs, now)
            plan = rebalancer.plan_so_far
            hosts = tuple(self._table.hosts[row] for row in plan.rows)
        return Rebalance(
            servers=servers,
            allowed=allowed,
            moves=plan.moves,
            hosts=hosts,
            bound=most,
            before=before,
            after=after,
            considered=len(movable_servers.claims.bodies),
            kept=rebalance.kept_of(movable_servers),
            early=now.young,
        )

    def _schedule_jobs(self, jobs: Sequence[Job], *, is_patient: bool = False) -> None:
        """Schedule the jobs, and those that lose their hosts to others again.

        ``is_patient``: jobs wait up to ``warm_up`` seconds for hosts that this process has not heard of yet.
        """
        patient_until = time.monotonic() + self._settings.warm_up
        for tries in range(CLAIM_ATTEMPTS):
            if not jobs:
                return
            if tries:
                time.sleep(pause_after(tries, CONFLICT_PAUSE_S, LONGEST_CONFLICT_PAUSE_S, spread=1.0))
            self._schedule(jobs)
            while is_patient and time.monotonic() < patient_until:
                early = [job for job in jobs if job.premature and job.error is None]
                if not early:
                    break
                self._fleet.hurry_cells()
                time.sleep(HOSTS_WAIT_PAUSE_S)
                self._schedule(early)
            jobs = [job for job in jobs if job.lost and job.error is None]

    def _choice_of(self, job: Job) -> Choice:
        """The batch's answer. A SuperconductorError is an answer too.

        Any other exception fails the call; the caller then asks for each batch separately.
        """
        self._log_decision(job)
        try:
            return Choice(selections=tuple(map(tuple, job.selections_or_raise())))
        except errors.SuperconductorError as error:
            return refusal_choice(error)

    def _recheck_claims(self, job: Job) -> None:
        """Exclude the hosts of the job's held claims that would not be chosen for them now: these claims are then replaced.

        Raises Conflict if that may only seem so, because this process has not heard of all hosts yet.
        """
        if not job.spec.rechecks_claims:
            return
        database, group = self._ledger.database, job.spec.group
        claimed = database.read(claims.list_claimed, job.uuids)
        if not claimed:
            return
        self._fleet.topology_epochs(look=True)
        slots = database.read(group_slots.read, [group]) if group is not None else []
        self._read_claims()
        now = self._plan_context()
        with self._table.lock:
            refusing = recheck.refusing_hosts(self._table, self._driver, now, job, claimed, slots)
        if refusing and now.young:
            raise errors.Conflict(f"batch {job.spec.batch_id}: not all hosts are known yet; ask again")
        if refusing:
            LOG.info("batch %s: hosts that were held for it do not take it any more: %s", job.spec.batch_id, ", ".join(refusing))
            excluded = (*job.spec.excluded_hosts, *refusing)
            job.spec = msgspec.structs.replace(job.spec, excluded_hosts=excluded)

    def _read_claims(self) -> None:
        """Enter the claims that were committed since the last look, by other schedulers and by conductors that release them."""
        with self._table.lock:
            position = self._cursor.recent_position()
        log = self._ledger.database.read(claims.changed_since, *position)
        with self._table.lock:
            self._table.set_inventories(log.rows, time.monotonic())
            self._cursor.note_rows(log.rows)

    def _hosts_of_hints(self, spec: RequestSpec) -> Mapping[str, str]:
        """The hosts of the servers that hints name, by uuid."""
        named = [
            uuid for name in (hints.SAME_HOST, hints.DIFFERENT_HOST) for uuid in hints.server_uuids(spec.scheduler_hints, name)
        ]
        return self._ledger.database.read(claims.hosts_of, spec.project_id, named) if named else {}

    def _schedule_all(self, calls: Sequence[Sequence[Job]]) -> list[Exception | None]:
        """Run all jobs. Jobs for the same instance, as when a conductor repeats a call under way, run one after the other."""
        waiting = [job for jobs in calls for job in jobs]
        while waiting:
            together: list[Job] = []
            taken: set[str] = set()
            later: list[Job] = []
            for job in waiting:
                if taken.isdisjoint(job.uuids):
                    taken.update(job.uuids)
                    together.append(job)
                else:
                    later.append(job)
            self._claim_jobs(together)
            waiting = later
        return [None] * len(calls)

    def _claim_jobs(self, jobs: Sequence[Job]) -> None:
        asks = [job.claim_request for job in jobs]
        known = sum(job.conflicts for job in jobs)
        for last in (False, False, True):
            topology = self._fleet.topology_epochs(look=False)
            now = self._plan_context(topology)
            attempt = ClaimPlanner(self._table, self._stripes.with_stripe(self._driver, now.mono), self._cursor, jobs, now)
            try:
                if last:  # it keeps changing
                    claimed = self._ledger.write(self._claim_undisturbed, asks, attempt)
                else:
                    claimed = self._ledger.write(claims.claim_hosts, asks, attempt, topology)
            except claims.Raced:
                if last:
                    raise
            except claims.Outdated:
                self._fleet.topology_epochs(look=True)
            else:
                attempt.enter_committed(claimed.inventories)
                conflicts = sum(job.conflicts for job in jobs) - known
                self.conflicts += conflicts
                metrics.CONFLICTS.inc(conflicts)
                own_writer = claimed.inventories[0].writer if claimed.inventories else None
                self._stripes.note_writers(attempt.rivals, own_writer, now.mono, conflict=conflicts > 0)
                return

    def _claim_undisturbed(self, tx: ApiTransaction, stamp: Stamp, asks: Sequence[Ask], planner: ClaimPlanner) -> Claimed:
        """Claim on the topology as it is, which nobody can change meanwhile."""
        epochs.hold_epochs(tx, TOPOLOGY_EPOCHS)
        self._fleet.topology_epochs(look=True)
        return claims.claim_hosts(tx, stamp, asks, planner)

    def _plan_context(self, known: Mapping[str, int] = EVERYTHING) -> PlanContext:
        mono, view = time.monotonic(), self._fleet.current_view()
        return PlanContext(
            mono=mono,
            wall=self._ledger.database.current_time(),
            alive_since=mono - self._settings.service_down_time,
            young=mono - max(view.read_at, self._started) < self._settings.warm_up,
            mapped_since=mono - self._settings.warm_up,
            ages=view.ages,
            began=self._started,
            epochs=known,
            reading=view.reading,
            flavors=self._fleet.usable_flavors,
        )

    def _log_decision(self, job: Job) -> None:
        decision = job.decision
        if decision is not None and job.is_final:
            metrics.DECISIONS.labels("partial" if job.partial else "refused" if decision.is_refused else "placed").inc()
            metrics.DECISION.observe(decision.elapsed_ms / 1000)
            metrics.CLAIMS.inc(len(job.placements))
            self._fleet.hurry_cells({choice.cell for choice in decision.choices if choice.cell} or None)
            for choice in decision.choices:
                verb = "selected" if choice.host else "refused"
                about = (choice.instance_uuid, job.spec.request_id)
                log_step(LOG, verb, *about, cell=choice.cell, host=choice.host, decision=decision.id)
            placed = f"{len(job.placements)} placed"
            outcome = f"{placed}; {decision.message}" if job.partial else decision.message or placed
            LOG.info("batch %s (%s): %s, decision %s", job.spec.batch_id, job.context.request_id, outcome, decision.id)


def _new_server(context: RequestContext, flavor: Flavor) -> RequestSpec:
    """The request of one server of the caller."""
    return RequestSpec(
        batch_id=context.request_id.removeprefix("req-"),
        request_id=context.request_id,
        project_id=context.project_id,
        user_id=context.user_id,
        name="rebalance",
        flavor=flavor,
    )
