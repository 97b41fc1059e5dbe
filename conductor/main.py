"""The composition roots of the super conductor and of a cell's conductor."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import ParamSpec, TypeVar

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.agent_identity import Border
from conductor.audit.background import BackgroundAudit
from conductor.audit.places import Places
from conductor.build import Builder
from conductor.bury import Undertaker
from conductor.cell_conductor import CellConductor
from conductor.delete import Deleter
from conductor.due_work import Lookout
from conductor.evacuate import LOOK_INTERVAL_S, DeadHostSweep
from conductor.expire_holds import HoldSweep
from conductor.feed_follower import FeedFollower, FeedFollowers
from conductor.gathered_beats import GatheredBeats
from conductor.guest_reader import GuestReader
from conductor.image_rows import complete_rows
from conductor.operate import Operator
from conductor.opts import ConductorSettings, MapHosts
from conductor.quarantine import REFRESH_INTERVAL_S, SetAside
from conductor.queue_metrics import CellQueue, OperationMetrics, QueueMetrics
from conductor.restored import RestoreWatch
from conductor.roll_back import BatchSweep
from conductor.silence import SilenceWatch
from conductor.super_conductor import SuperConductor
from conductor.sweep_cell import CellSweep
from conductor.sweep_queue import QueueSweep
from conductor.tidy import erase_decided, forget_deleted, reap, remove_images, tidy
from db.api.claims.claims import Ledger
from db.api.queue.due import SweepsDue
from db.api.rows import incarnation
from db.sql.engine import ApiDatabase, CellDatabase
from images.drop import open_drop
from images.store import open_store
from objects import errors
from rpc import cell_conductor, super_conductor
from rpc.compute import ComputeClient
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus
from service.batching import RoundBatcher
from service.pace import Pace
from service.periodic import Every, Periodic
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
    """The API level's conductor: serves topic ``super-conductor`` and runs the API level's sweeps."""

    def __init__(
        self, settings: ConductorSettings, registry: CellRegistry, api_database: ApiDatabase, bus: Bus, vault: Vault | None = None
    ) -> None:
        owner = f"{SERVER}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        ledger = Ledger(api_database, f"conductor {owner}")
        aside = SetAside(api_database, "api")
        images = open_store(settings.images_folder)
        self._restored = RestoreWatch(api_database, ledger, registry, images)
        builder = Builder(
            api_database,
            registry,
            SchedulerClient(bus, timeout=settings.lease_seconds),  # a repeated request gets the same answer
            Undertaker(ledger, registry),
            owner=owner,
            lease_seconds=settings.lease_seconds,
            retry_pause=settings.retry_pause,
            vault=vault,
            aside=aside,
            restored=self._restored,
            operate=lambda found: operator.advance(found),
        )
        deleter = Deleter(api_database, registry, settings.resend_age, aside)
        images = open_store(settings.images_folder)
        drop = open_drop(settings.images_drop_folder, images)
        operator = Operator(
            ledger,
            registry,
            deleter,
            builder.schedule_and_build,
            auto_confirm=settings.auto_confirm,
            shelved_offload_time=settings.shelved_offload_time,
            vault=vault,
            aside=aside,
            drop=drop,
            restored=self._restored,
            images=images,
        )
        self._told = RoundBatcher("operate", operator.advance_servers, pace=OPERATE_PACE_S)
        holds = HoldSweep(ledger, aside, lambda: self._restored.known)
        batches = BatchSweep(api_database, registry, idle=settings.sweep_interval, aside=aside)
        lookout = Lookout(
            api_database,
            sweep_interval=settings.sweep_interval,
            lease_seconds=settings.lease_seconds,
            resend_age=settings.resend_age,
            busy=self._hurry_followers,
            epochs=registry.epochs,
        )
        marks = Pace(incarnation.MARK_INTERVAL_S, IDLE_MARKS_FACTOR * settings.idle_interval)

        def heard() -> None:
            lookout.pace.hurry()
            marks.hurry()

        def compare_marks() -> None:
            self._restored.look()
            if self._restored.known is None:
                marks.hurry()

        self._bus = bus
        self._settings = settings
        self._rung = RoundBatcher("build", builder.build_rung, pace=settings.round_pace, workers=settings.workers)
        guests = GuestReader(api_database, registry, settings.service_down_time)
        self._endpoint = SuperConductor(builder, deleter, self._rung.add, operator.advance, guests, heard)
        self._queue = QueueSweep(api_database, builder, settings.workers, settings.sweep_interval / 2, settings.reap_interval)
        self._waiting = QueueMetrics(api_database), OperationMetrics(api_database)

        dead_hosts = Periodic("dead hosts", LOOK_INTERVAL_S, DeadHostSweep(ledger, registry).look)

        def make_follower(cell: Cell, pace: Pace) -> FeedFollower:
            return FeedFollower(
                api_database,
                ledger,
                registry,
                cell,
                settings.resend_age,
                map_hosts=settings.map_hosts != MapHosts.FALSE,
                identified_only=settings.map_hosts == MapHosts.AUTO,
                pause_rounds=PAUSE_ROUNDS,
                aside=aside,
                operate=self._told.add,
                changed_services=dead_hosts.wake,
                other_cell_timeout=settings.other_cell_timeout,
                pace=pace,
                idle_epochs_age=lookout.epochs_age,
            )

        self._followers = FeedFollowers(registry, make_follower, settings.feed_interval, settings.idle_interval)
        self._cells = lookout.sweep("cells", self._followers.follow)
        silences = SilenceWatch(api_database, registry)
        refresh_now, remove_now = Every(REFRESH_INTERVAL_S), Every(settings.reap_interval)
        open_batches = Periodic("batches", Pace(settings.feed_interval, lookout.fallback_interval), lambda: look_at_batches())

        def look_at_batches() -> None:
            if batches.look():
                open_batches.pace.hurry()

        woken: dict[Periodic, Callable[[SweepsDue], bool]] = {
            lookout.sweep("queue", self._queue.sweep): lambda due: due.waiting or due.overdue,
            lookout.sweep("holds", holds.sweep): lambda due: due.expired,
            lookout.sweep("deletes", deleter.sweep): lambda due: due.deletes,
            lookout.sweep("operations", operator.sweep): lambda due: due.operations,
            lookout.sweep("secrets", lambda: erase_decided(api_database)): lambda due: due.secrets,
            lookout.sweep("silences", silences.look): lambda due: due.silences or registry.has_silent(),
            lookout.sweep("dead letters", builder.refresh): lambda due: (due.letters or aside.holds_letters) and refresh_now(),
            lookout.sweep("images", lambda: remove_images(api_database, images, drop)): lambda due: due.images and remove_now(),
            open_batches: lambda due: due.batches,
            self._cells: lambda _: False,
        }

        def epochs_changed() -> None:
            self._cells.wake()
            self._followers.hurry_all()

        self._sweeps = [
            Periodic("restored databases", marks, compare_marks, at_once=False),
            Periodic("leases", settings.lease_seconds / 3, builder.driving.renew, at_once=False),
            *woken,
            Periodic("lookout", lookout.pace, lambda: lookout.look(woken, epochs_changed)),
            Periodic("tidy", TIDY_INTERVAL_S, lambda: tidy(api_database, settings.decision_age, settings.token_age)),
            *([Periodic("image rows", TIDY_INTERVAL_S, lambda: complete_rows(api_database, images))] if images is not None else []),
            Periodic("reaper", settings.reap_interval, lambda: reap(api_database, ledger, aside)),
        ]
        if settings.audit_interval:
            places = Places(api_database, ledger, registry, overdue=settings.step_time, images=images)
            audit = BackgroundAudit(places, settings.step_time)
            self._sweeps.append(Periodic("audit", settings.audit_interval, audit.round, at_once=False))
        if settings.evacuate_dead_hosts:
            self._sweeps.append(dead_hosts)
        if settings.purge_age:
            forget = partial(forget_deleted, registry, api_database, settings.purge_age)
            self._sweeps.append(Periodic("purge", TIDY_INTERVAL_S, forget, at_once=False))

    def start(self) -> None:
        with contextlib.suppress(errors.DatabaseUnavailable):  # the sweep tries again
            self._restored.look()
        self._server = super_conductor.serve(self._bus, SERVER, self._endpoint, threads=self._settings.workers)
        for sweep in self._sweeps:
            sweep.start()

    def _hurry_followers(self, cell_uuids: Collection[str]) -> None:
        """Read the feeds of these cells often, until the next two looks for busy cells."""
        if not self._followers.hurry(cell_uuids, lasting=2 * self._settings.sweep_interval):
            self._cells.wake()  # one is new

    def check(self) -> None:
        """Raise Unreachable while the bus delivers no doorbells."""
        self._server.check()

    def stop(self) -> None:
        """Take no new work, and finish current work within a few seconds. Other conductors continue interrupted work."""
        self._server.stop()
        for sweep in self._sweeps:
            sweep.stop()
        self._followers.stop()
        self._queue.stop()
        self._rung.stop()
        self._told.stop()


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
        self._heartbeats = GatheredBeats(cell_database, heartbeat_pace) if heartbeat_pace else None
        self._endpoint = CellConductor(
            cell_database, sender, vault, settings.host_limits, heartbeats=self._heartbeats, heard=pace.hurry
        )
        self._border = Border(self._endpoint, settings.users(bus.vhost))
        sweep = CellSweep(
            cell_database,
            sender,
            self._endpoint,
            resend_age=settings.resend_age,
            down_time=settings.service_down_time,
            feed_age=settings.feed_age,
        )
        self._waiting = CellQueue(name, cell_database)

        def look() -> None:
            sweep.sweep()
            if sweep.is_busy:
                pace.hurry()

        self._sweep = Periodic(f"sweep-{name}", pace, look)

    def start(self) -> None:
        self._server = cell_conductor.serve(self._bus, SERVER, self._border, threads=self._settings.workers)
        self._sweep.start()

    def check(self) -> None:
        """Raise Unreachable while the bus delivers no reports."""
        self._server.check()

    def stop(self) -> None:
        self._server.stop()
        self._sweep.stop()
        if self._heartbeats is not None:
            self._heartbeats.stop()
