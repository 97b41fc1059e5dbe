"""The composition roots of the super conductor and of a cell's conductor."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from cells.registry import CellRegistry
from conductor.agent_identity import IdentityCheck
from conductor.audit.background import BackgroundAudit
from conductor.audit.places import Places
from conductor.build import Builder
from conductor.cell_conductor import CellConductor
from conductor.context import ConductorContext
from conductor.delete import Deleter
from conductor.due_work import DueWork
from conductor.evacuate import LOOK_INTERVAL_S, DeadHostSweep
from conductor.expire_holds import HoldSweep
from conductor.feed_follower import FeedFollowers, FeedSettings
from conductor.gathered_beats import GatheredBeats
from conductor.guest_reader import GuestReader
from conductor.image_rows import complete_rows
from conductor.operate import Operator
from conductor.opts import ConductorSettings, MapHosts
from conductor.queue_metrics import CellQueue, OperationMetrics, QueueMetrics
from conductor.restored import RestoreWatch
from conductor.roll_back import BatchSweep
from conductor.silence import SilenceWatch
from conductor.super_conductor import SuperConductor
from conductor.sweep_cell import CellSweep
from conductor.sweep_queue import QueueSweep
from conductor.tidy import DeadLetterSweep, ImageSweep, SecretSweep, forget_deleted, reap_claims, tidy_database
from db.api.claims.claims import Ledger
from db.sql.engine import ApiDatabase, CellDatabase
from images.drop import DropFolders, open_drop
from images.store import open_store
from objects import errors
from rpc import cell_conductor, super_conductor
from rpc.compute import ComputeClient
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus
from service.batching import RoundBatcher
from service.pace import Pace
from service.periodic import Periodic
from service.rate_limited_log import RateLimitedLog
from service.vault import Vault

LOG = logging.getLogger(__name__)

SERVER = socket.gethostname()

TIDY_INTERVAL_S = 3600.0
OPERATE_PACE_S = 0.02
"""Minimum seconds between two rounds of operations that cells have told of."""
IDLE_MARKS_FACTOR = 3
"""While there are no requests, marks rise once in so many ``idle_interval``: a restore then loses nothing that one could show."""
PAUSE_ROUNDS = 4
"""Rounds for which a super conductor leaves a cell's feed to another one."""

P = ParamSpec("P")
T = TypeVar("T")


class SuperConductorService:
    """The API level's conductor: serves topic ``super-conductor`` and runs the API level's sweeps.

    It is the ``WorkSignals`` of its parts.
    """

    def __init__(
        self, settings: ConductorSettings, registry: CellRegistry, api_database: ApiDatabase, bus: Bus, vault: Vault | None = None
    ) -> None:
        self._bus = bus
        self._settings = settings
        owner = f"{SERVER}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        ledger = Ledger(api_database, f"conductor {owner}")
        images = open_store(settings.images_folder)
        drop = open_drop(settings.images_drop_folder, images)
        self._restored = RestoreWatch(api_database, ledger, registry, images, IDLE_MARKS_FACTOR * settings.idle_interval)
        context = ConductorContext(ledger, registry, restored=self._restored, vault=vault, images=images, signals=self)
        scheduler = SchedulerClient(bus, timeout=settings.lease_seconds)  # a repeated request gets the same answer
        builder = Builder(context, scheduler, owner=owner, lease_seconds=settings.lease_seconds, retry_pause=settings.retry_pause)
        deleter = Deleter(api_database, registry, settings.resend_age, context.aside)
        confirm, offload = settings.auto_confirm, settings.shelved_offload_time
        self._operator = Operator(context, deleter, builder, auto_confirm=confirm, shelved_offload_time=offload, drop=drop)
        self._operations = RoundBatcher("operate", self._operator.advance_servers, pace=OPERATE_PACE_S)
        self._builds = RoundBatcher("build", builder.build_notified, pace=settings.build_batch_window, workers=settings.workers)
        guests = GuestReader(api_database, registry, settings.service_down_time)
        self._endpoint = SuperConductor(self, deleter, guests)
        self._metrics = QueueMetrics(api_database), OperationMetrics(api_database)
        self._lookout = DueWork(
            api_database,
            registry.epochs,
            self,
            sweep_interval=settings.sweep_interval,
            lease_seconds=settings.lease_seconds,
            resend_age=settings.resend_age,
        )
        self._followers = FeedFollowers(context, _feed_settings(settings, self._lookout.epochs_age))
        self._queue = QueueSweep(api_database, builder, settings.workers, settings.sweep_interval / 2, settings.reap_interval)
        self._cells = self._lookout.add_sweep(self._followers)
        dead_hosts = DeadHostSweep(ledger, registry, settings.service_down_time)
        self._dead_hosts = Periodic("dead hosts", LOOK_INTERVAL_S, dead_hosts.evacuate_dead)
        self._loops = self._make_loops(context, builder, deleter, drop)

    def _make_loops(
        self, context: ConductorContext, builder: Builder, deleter: Deleter, drop: DropFolders | None
    ) -> list[Periodic]:
        """The sweeps that the lookout wakes, and the loops that have a pace of their own."""
        settings, lookout = self._settings, self._lookout
        api_database, ledger, registry = context.database, context.ledger, context.registry
        images, aside = context.images, context.aside
        batch_pace = Pace(settings.feed_interval, lookout.fallback_interval)
        loops = [
            Periodic("restored databases", self._restored.pace, self._restored.watch_marks, at_once=False),
            Periodic("leases", settings.lease_seconds / 3, builder.driving.renew_leases, at_once=False),
            lookout.add_sweep(self._queue),
            lookout.add_sweep(HoldSweep(context)),
            lookout.add_sweep(deleter),
            lookout.add_sweep(self._operator),
            lookout.add_sweep(SecretSweep(api_database)),
            lookout.add_sweep(SilenceWatch(api_database, registry)),
            lookout.add_sweep(DeadLetterSweep(context)),
            lookout.add_sweep(ImageSweep(context, drop, settings.reap_interval)),
            lookout.add_sweep(BatchSweep(api_database, registry, settings.sweep_interval, aside, batch_pace), batch_pace),
            self._cells,
            Periodic("lookout", lookout.pace, lookout.look_for_work),
            Periodic("tidy", TIDY_INTERVAL_S, partial(tidy_database, api_database, settings.decision_age, settings.token_age)),
            Periodic("reaper", settings.reap_interval, partial(reap_claims, api_database, ledger, aside)),
        ]
        if images is not None:
            loops.append(Periodic("image rows", TIDY_INTERVAL_S, partial(complete_rows, api_database, images)))
        if settings.audit_interval:
            places = Places(api_database, ledger, registry, overdue=settings.step_time, images=images)
            audit = BackgroundAudit(places, settings.step_time)
            loops.append(Periodic("audit", settings.audit_interval, audit.audit_once, at_once=False))
        if settings.evacuate_dead_hosts:
            loops.append(self._dead_hosts)
        if settings.purge_age:
            forget = partial(forget_deleted, registry, api_database, settings.purge_age)
            loops.append(Periodic("purge", TIDY_INTERVAL_S, forget, at_once=False))
        return loops

    def start(self) -> None:
        with contextlib.suppress(errors.DatabaseUnavailable):  # the sweep tries again
            self._restored.watch_marks()
        self._server = super_conductor.serve_topic(self._bus, SERVER, self._endpoint, threads=self._settings.workers)
        for loop in self._loops:
            loop.start()

    def check_bus(self) -> None:
        """Raise Unreachable while the bus delivers no doorbells."""
        self._server.check_listening()

    def stop(self) -> None:
        """Take no new work, and finish current work within a few seconds. Other conductors continue interrupted work."""
        self._server.stop()
        for loop in self._loops:
            loop.stop()
        self._followers.stop()
        self._queue.stop()
        self._builds.stop()
        self._operations.stop()

    # -- signals of its parts ------------------------------------------------------------------------------------------------------

    def build_batches(self, batch_ids: Sequence[str]) -> None:
        self._builds.add_items(batch_ids)

    def advance_operations(self, operations: Collection[str]) -> None:
        self._operator.advance_operations(operations)

    def advance_servers(self, servers: Sequence[str]) -> None:
        self._operations.add_items(servers)

    def check_services(self) -> None:
        self._dead_hosts.wake_now()

    def note_request(self) -> None:
        self._lookout.pace.hurry_for()
        self._restored.pace.hurry_for()

    def hurry_cells(self, cell_uuids: Collection[str]) -> None:
        """Until the next two looks for busy cells."""
        if not self._followers.hurry_cells(cell_uuids, lasting=2 * self._settings.sweep_interval):
            self._cells.wake_now()  # one is new

    def follow_changes(self) -> None:
        self._cells.wake_now()
        self._followers.hurry_all()


def _feed_settings(settings: ConductorSettings, epochs_age: float) -> FeedSettings:
    return FeedSettings(
        settle_age=settings.resend_age,
        map_hosts=settings.map_hosts != MapHosts.FALSE,
        identified_only=settings.map_hosts == MapHosts.AUTO,
        pause_rounds=PAUSE_ROUNDS,
        other_cell_timeout=settings.other_cell_timeout,
        idle_epochs_age=epochs_age,
        interval=settings.feed_interval,
        idle_interval=settings.idle_interval,
    )


class _OwnCell:
    """The conductor's own cell, as an ``OrderSender``."""

    def __init__(self, name: str, bus: Bus) -> None:
        self.name = name
        self.compute: ComputeClient | None = ComputeClient(bus)
        self.complaints = RateLimitedLog(LOG)

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)


class CellConductorService:
    """One cell's conductor: serves topic ``cell-conductor`` and runs the cell's sweeps. It knows only its own cell."""

    def __init__(
        self,
        settings: ConductorSettings,
        name: str,
        cell_database: CellDatabase,
        bus: Bus,
        vault: Vault | None = None,
        *,
        heartbeat_pace: float = 0.0,
    ) -> None:
        """``heartbeat_pace``: seconds for which heartbeats that change nothing are gathered."""
        sender = _OwnCell(name, bus)
        self._bus = bus
        self._settings = settings
        pace = Pace(settings.sweep_interval, settings.idle_interval)
        self._heartbeats = GatheredBeats(cell_database, sender, heartbeat_pace) if heartbeat_pace else None
        self._endpoint = CellConductor(
            cell_database,
            sender,
            vault,
            settings.host_limits,
            heartbeats=self._heartbeats,
            pace=pace,
            down_time=settings.service_down_time,
        )
        self._border = IdentityCheck(self._endpoint, settings.agent_users_of(bus.virtual_host))
        sweep = CellSweep(
            cell_database,
            sender,
            self._endpoint,
            resend_age=settings.resend_age,
            down_time=settings.service_down_time,
            feed_age=settings.feed_age,
        )
        self._metrics = CellQueue(name, cell_database)
        self._sweep = Periodic(f"sweep-{name}", pace, sweep.sweep_cell)

    def start(self) -> None:
        self._server = cell_conductor.serve_topic(self._bus, SERVER, self._border, threads=self._settings.workers)
        self._sweep.start()

    def check_bus(self) -> None:
        """Raise Unreachable while the bus delivers no reports."""
        self._server.check_listening()

    def stop(self) -> None:
        self._server.stop()
        self._sweep.stop()
        if self._heartbeats is not None:
            self._heartbeats.stop()
