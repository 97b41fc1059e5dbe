"""Operations at each of their states when backups are taken, and whatever happens to their servers afterwards.

    python -m tests.faults.restored_operations                          every case, one line for each that goes wrong
    python -m tests.faults.restored_operations resize --processes 2     those whose names contain this, in two processes
    python -m tests.faults.restored_operations --one-in 40              one case in 40

A case is an operation, its state at the backup, what happens after the backup, how old that is when it is restored, and of which
databases it is: the API database, the cells, or all. Then the steps of the guide are taken. The verdict counts guests, disks and
what guests have written.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cells import comparison
from compute.disks import read_disk
from conductor import adopt_guest, restored_cell
from conductor.audit.audit import Audit
from conductor.audit.places import Places
from db.api.claims.claims import Ledger
from db.api.operations import steps
from db.api.rows import incarnation
from db.cell import purge
from objects import errors
from objects.flavor import Flavor
from objects.instance import State
from objects.operation import OperationArgs
from objects.operation import OperationKind as Kind
from objects.operation import OperationState as At
from objects.task import NewImage, Power
from tests.faults.schedule_judge import Look
from tests.support import fleet
from tests.support.stepped_parts import HOMES, HOSTS
from tests.support.stepped_world import CONTEXT, SteppedWorld

WEEK_S = 7 * 86400.0
PATIENCE_S = 3600.0
"""Seconds in which an operation should end, as ``[api] move_timeout`` has it."""
ROUNDS = 12
"""Sweeps within which all must have come to rest."""
REPAIRS = 5
STEPS_TO_STATE = 20_000

LARGE = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=1024, root_gb=1)
LARGEST = Flavor(flavor_id="largest", name="largest", vcpus=2, memory_mb=1536, root_gb=1)

IN_PLACE = {
    Kind.STOP: (At.TASK,),
    Kind.REBUILD: (At.TASK,),
    Kind.CREATE_IMAGE: (At.TASK,),
    Kind.SHELVE: (At.TASK, At.SHELVED, At.STARTING),
    Kind.SOFT_DELETE: (At.SOFT_DELETED, At.STARTING),
}
MOVES = {
    Kind.MIGRATE: (At.PLACING, At.HOLDING, At.BUILDING, At.UNDOING, At.STARTING),
    Kind.RESIZE: (At.PLACING, At.HOLDING, At.BUILDING, At.VERIFY, At.REVERTING, At.UNDOING, At.STARTING),
    Kind.LIVE_MIGRATE: (At.PLACING, At.BUILDING, At.SENDING, At.UNDOING),
    Kind.EVACUATE: (At.PLACING, At.HOLDING, At.BUILDING),
    Kind.UNSHELVE: (At.PLACING, At.HOLDING, At.BUILDING),
}
STATES = IN_PLACE | MOVES
EVENTS = (
    *("nothing", "ended", "failed", "confirmed", "reverted", "restored", "deleted", "deleted at once", "stopped"),
    *("moved again", "moved twice", "live again", "moving", "moving live", "resized", "shelved", "soft-deleted"),
)
AGES = {"api": ("a minute", "a week", "purged"), "cells": ("a minute", "a week"), "both": ("a minute", "a week")}
"""By which databases are restored, how old the backup is. ``purged``: a week, and the cells have forgotten what was deleted."""


class Case(NamedTuple):
    kind: Kind
    state: At
    event: str
    age: str
    lost: str = "api"

    def __str__(self) -> str:
        of = "" if self.lost == "api" else f", {self.lost}"
        return f"{self.kind} in {self.state}, then {self.event}, {self.age}{of}"


def cases() -> Iterator[Case]:
    """All that can happen."""
    for kind, states in STATES.items():
        for state in states:
            for event in EVENTS:
                if _can_happen(kind, state, event):
                    yield from (Case(kind, state, event, age, lost) for lost, ages in AGES.items() for age in ages)


def _can_happen(kind: Kind, state: At, event: str) -> bool:
    if event in ("confirmed", "reverted"):
        return kind is Kind.RESIZE and state not in (At.UNDOING, At.STARTING, At.REVERTING)
    if event == "restored":
        return state in (At.SHELVED, At.SOFT_DELETED)
    if event == "failed":
        return kind.is_move and state in (At.PLACING, At.HOLDING, At.BUILDING)
    off = kind in (Kind.STOP, Kind.SHELVE, Kind.SOFT_DELETE) and state is not At.STARTING
    return not (off and event in ("stopped", "live again", "moving live")) and not (
        kind in (Kind.SHELVE, Kind.SOFT_DELETE) and state is not At.STARTING and event in ("shelved", "soft-deleted")
    )


MENDED = (
    *(Case(kind, At.PLACING, "failed", age, "both") for kind in (Kind.MIGRATE, Kind.RESIZE) for age in AGES["both"]),
    *(Case(Kind.RESIZE, At.REVERTING, event, age, "both") for event in ("ended", "soft-deleted") for age in AGES["both"]),
    Case(Kind.LIVE_MIGRATE, At.PLACING, "failed", "a minute", "both"),
    Case(Kind.UNSHELVE, At.PLACING, "failed", "a minute", "both"),
    *(Case(Kind.EVACUATE, At.PLACING, "failed", "a minute", lost) for lost in ("api", "both")),
)
"""Cases that went wrong once: these run every time."""


class Truth(NamedTuple):
    """What there was when the API database was lost. ``rests``: nothing was under way."""

    deleted: bool
    body: str
    host: str | None
    power: Power | None
    writes: int
    images: frozenset[str]
    rests: bool


class RestoredRegion:
    """A region whose API database is lost and put back."""

    def __init__(self, path: Path) -> None:
        self.world = SteppedWorld(path)
        self.world.restores = True
        self._backups = {name: sqlite3.connect(":memory:") for name in self.world.files.raw}

    def close(self) -> None:
        for backup in self._backups.values():
            backup.close()
        self.world.close()

    def run(self, case: Case) -> list[str]:
        """What went wrong in this case."""
        self.world.reset()
        shutil.rmtree(self.world.path / "images", ignore_errors=True)
        (self.world.path / "images").mkdir()
        self._look_at_marks()
        [server] = self.world.boot(1, size=fleet.flavor(vcpus=1, memory_mb=512, root_gb=1), force_hosts=("a1",))
        self._rest()
        self.world.write_disks("a1")
        if case.kind is Kind.UNSHELVE:
            assert self.world.operate(server, Kind.SHELVE)
            self._rest()
        self._begin(server, case)
        for name, backup in self._backups.items():
            self.world.files.raw[name].backup(backup)
        self._happen(server, case)
        if case.kind is Kind.EVACUATE and case.event != "nothing":
            self.world.heal()
            self._rest()
        for host in HOMES:
            self.world.write_disks(host)
        truth = self._truth(server)
        self._lose(case)
        return list(self._judge(server, case, truth))

    # -- up to the backup ----------------------------------------------------------------------------------------------------------

    def _begin(self, server: str, case: Case) -> None:
        """Ask for the operation, and let it come to its state."""
        kind, asked = case.kind, dict[str, Any]()
        if kind is Kind.RESIZE:
            asked["flavor"] = LARGE
        if kind is Kind.REBUILD:
            asked["args"] = OperationArgs(image_id="another")
        if kind is Kind.CREATE_IMAGE:
            asked["args"] = OperationArgs(image=NewImage(name="image", owner="p"))
        if kind.is_move:
            asked["args"] = OperationArgs(cross_cell=True)
        if kind is Kind.EVACUATE:
            self.world.cut_power("a1")
            self.world.call_dead("a1", True)
        assert self.world.operate(server, kind, **asked), kind
        if case.state in (At.UNDOING, At.REVERTING) or (case.state is At.STARTING and kind.is_move):
            before = At.VERIFY if kind is Kind.RESIZE and case.state is not At.UNDOING else At.BUILDING
            self._until(server, before)
            if before is At.VERIFY:
                assert self.world.answer(server, confirm=False)
            else:
                self._give_up(server)
        elif case.state is At.STARTING:
            before = At.SHELVED if kind is Kind.SHELVE else At.SOFT_DELETED
            self._until(server, before)
            self._start_again(server, before)
        self._until(server, case.state)

    def _give_up(self, server: str) -> None:
        ledger, now = Ledger(self.world.files.databases["api"], "operator"), time.time()
        assert ledger.write(steps.give_up, {self._operation(server): "Enough."}, now).operations

    def _operation(self, server: str) -> str:
        found = self.world.files.raw["api"].execute("SELECT uuid FROM operations WHERE open_for = ?", (server,))
        return str(found.fetchone()[0])

    def _start_again(self, server: str, state: At) -> None:
        api = self.world.files.databases["api"]
        uuid = self._operation(server)
        assert api.write(steps.start_again, [uuid], state, time.time()).operations
        self.world._bell.operate(CONTEXT, [uuid])

    def _state(self, server: str) -> str | None:
        found = self.world.files.raw["api"].execute("SELECT state FROM operations WHERE open_for = ?", (server,)).fetchone()
        return found[0] if found else None

    def _until(self, server: str, state: At) -> None:
        """One step after the other, until the operation is in this state."""
        for _ in range(STEPS_TO_STATE):
            if self._state(server) == state:
                return
            if not self._step():
                self._sweep()
        raise AssertionError(f"{server} does not come to {state}: {self._state(server)}")

    def _step(self) -> bool:
        """The next thing that can happen; whether there was any."""
        world = self.world
        for agent in world.agents():
            if agent.owes:
                agent.begin("report")
        if world.network.answers:
            world.network.bring(0)
            return True
        if ready := world.network.deliverable():
            world.carry(*ready[0])
            return True
        if runnable := [task for task in world.tasks if not task.waits]:
            world.go(runnable[0])
            return True
        if waiting := world.network.waiting():
            waiting[0].end(None, timed_out=True)
            return True
        return False

    def _sweep(self) -> None:
        seen: set[str] = set()
        for owner, process in list(self.world.processes.items()):
            kind = owner.partition("-")[0]
            if kind not in seen:
                seen.add(kind)
                for name in process.work:
                    if name != "beat":
                        process.begin(name)

    # -- after the backup ----------------------------------------------------------------------------------------------------------

    def _happen(self, server: str, case: Case) -> None:
        world, event = self.world, case.event
        if event == "nothing":
            return
        if event == "failed":
            world.strike(server)
        if event == "deleted at once":
            assert world.delete(server)
        self._rest()
        waits = self._state(server)
        if event in ("ended", "failed", "deleted at once"):
            return
        if event == "reverted" and waits == At.VERIFY:
            assert world.answer(server, confirm=False)
            self._rest()
            return
        if waits == At.VERIFY and event != "deleted":
            assert world.answer(server, confirm=True)
        elif waits in (At.SHELVED, At.SOFT_DELETED) and event != "deleted":
            self._start_again(server, At(waits or ""))
        self._rest()
        if event not in ("confirmed", "deleted") and Look(world).shown(server).state == "shelved":
            assert world.operate(server, Kind.UNSHELVE)
            self._rest()
        self._happen_more(server, event)

    def _happen_more(self, server: str, event: str) -> None:
        world, args = self.world, OperationArgs(cross_cell=True)
        if event == "deleted":
            assert world.delete(server)
        for _ in range({"moved again": 1, "moved twice": 2}.get(event, 0)):
            assert world.operate(server, Kind.MIGRATE, args=args)
            self._rest()
        kinds = {
            "stopped": Kind.STOP,
            "shelved": Kind.SHELVE,
            "soft-deleted": Kind.SOFT_DELETE,
            "live again": Kind.LIVE_MIGRATE,
            "moving": Kind.MIGRATE,
            "moving live": Kind.LIVE_MIGRATE,
            "resized": Kind.RESIZE,
        }
        if event in kinds:
            flavor = {"flavor": LARGEST} if kinds[event] is Kind.RESIZE else {}
            assert world.operate(server, kinds[event], **({"args": args} if kinds[event].is_move else {}), **flavor)
        if event in ("moving", "moving live"):
            self._until(server, At.BUILDING if event == "moving" else At.SENDING)
            return
        self._rest()

    def _rest(self) -> None:
        """Everything that is under way comes to its end."""
        self.world.drain()
        for _ in range(ROUNDS):
            self.world.round()
            if not self._unrest():
                return

    def _unrest(self) -> list[Any]:
        raw = self.world.files.raw
        waiting = "('verify', 'soft-deleted', 'ended')"
        found = raw["api"].execute(f"SELECT uuid, state, frozen FROM operations WHERE state NOT IN {waiting}").fetchall()
        found += raw["api"].execute("SELECT instance_uuid FROM build_requests").fetchall()
        found += raw["api"].execute("SELECT instance_uuid FROM instance_mappings WHERE deleted AND state <> 'deleted'").fetchall()
        for cell in HOSTS:
            moving = "state NOT IN ('active', 'error', 'deleted') OR (state = 'active' AND task_state IN ('ordered', 'running'))"
            found += raw[cell].execute(f"SELECT uuid FROM instances WHERE {moving}").fetchall()
        return found

    def _truth(self, server: str) -> Truth:
        look = Look(self.world)
        shown = look.shown(server)
        row = look.row_of(shown)
        disk = self._disk(row.host, shown.uuid) if row is not None else None
        guests = look.guests[shown.uuid]
        return Truth(
            deleted=shown.deleted,
            body=shown.uuid,
            host=row.host if row is not None else None,
            power=Power(guests[0].power) if guests else None,
            writes=disk.writes if disk is not None else -1,
            images=self._images(),
            rests=not self._unrest(),
        )

    def _disk(self, host: str | None, body: str) -> Any:
        return read_disk(str(self.world.path / "hosts"), host or "", body)

    def _images(self) -> frozenset[str]:
        """Snapshots and images that something needs."""
        raw, folder = self.world.files.raw["api"], self.world.path / "images"
        useless = {row[0] for row in raw.execute("SELECT image_id FROM image_removals")}
        return frozenset(file.name for file in (*folder.glob("*-*"), *folder.glob("added/*-*"))) - useless

    # -- the restore ---------------------------------------------------------------------------------------------------------------

    def _look_at_marks(self) -> None:
        self.world.sweep("super", "restored")

    def _lose(self, case: Case) -> None:
        """The databases are what they were at the backup."""
        world, raw = self.world, self.world.files.raw
        raw["api"].execute("UPDATE incarnation SET mark = 100, changed_at = 0")
        self._look_at_marks()
        for owner in [owner for owner in world.processes if owner.startswith(("super", "scheduler"))]:
            world.die(owner)
        for name, backup in self._backups.items():
            if case.lost == "both" or (name == "api") == (case.lost == "api"):
                backup.backup(raw[name])
        if case.age != "a minute" and case.lost != "cells":
            past = time.time() - WEEK_S
            raw["api"].execute("UPDATE incarnation SET changed_at = ?", (past,))
            raw["api"].execute("UPDATE operations SET updated_at = ?, deadline = ?", (past, past + PATIENCE_S))
            raw["api"].execute("UPDATE build_requests SET deadline = ?", (past + PATIENCE_S,))
        if case.age == "purged":
            for cell in HOSTS:
                world.files.databases[cell].write(purge.purge_rows, time.time() + 1.0)
        if case.lost != "api":
            self._restart_cells(case)
        world.registry.refresh_cells()
        if case.lost == "both":
            self._report_guests()
            self._adopt()
            self._say_restored()
        for role in ("super", "scheduler"):
            world.start(role)

    def _restart_cells(self, case: Case) -> None:
        """The conductors of the cells start with their backups, and agents start anew, as in the guide."""
        world, raw = self.world, self.world.files.raw
        for cell, hosts in HOSTS.items():
            if case.age == "a week":
                past = time.time() - WEEK_S
                raw[cell].execute("UPDATE instances SET updated_at = ?", (past,))
                raw[cell].execute("UPDATE builds SET deadline = ?, sent_at = ?", (past + PATIENCE_S, past))
                raw[cell].execute("UPDATE tasks SET sent_at = ?", (past,))
            for owner in [owner for owner in world.processes if owner.startswith(f"{cell}-") or owner in hosts]:
                world.die(owner)
            for name in (cell, *hosts):
                world.start(name)
        for host in set(HOMES) - world.dead:  # the backup may call hosts dead that have come back
            world.call_dead(host, False)

    def _report_guests(self) -> None:
        """Agents that have started report their guests, and those that their cell does not know."""
        for agent in self.world.agents():
            for name in agent.work:
                agent.begin(name)
                self.world.drain()

    def _say_restored(self) -> None:
        """As ``db restored --api`` does: no mark shows that all databases are of the same old moment."""
        api = self.world.files.databases["api"]
        now = api.read(incarnation.read)
        assert now is not None
        assert api.write(incarnation.close, now.uuid, "an operator says so")
        ledger = Ledger(api, "db restored")
        restored_cell.reconcile_all(self.world.registry, ledger)
        comparison.compare_cells(self.world.registry, ledger, now.uuid, images=self.world.images)
        restored_cell.hold_others(self._places())

    def _judge(self, server: str, case: Case, truth: Truth) -> Iterator[str]:
        world = self.world
        before = world.files.raw["api"].execute("SELECT uuid FROM incarnation").fetchone()
        if case.kind is Kind.EVACUATE:
            world.heal()
        world.drain()
        for _ in range(ROUNDS):
            world.round()
            running = self._running(server)
            if len(running) > 1 and not (case.kind is Kind.EVACUATE and case.event == "nothing"):
                yield f"two guests run: {running}"
                return
            if not self._unrest():
                break
        if case.lost == "api":
            if world.files.raw["api"].execute("SELECT uuid FROM incarnation").fetchone() == before:
                yield "the restore was not noticed"
            yield from self._judge_server(server, case, truth)
        else:
            self._adopt()
            self._rest()
        yield from self._repaired(server, case, truth)
        yield from self._judge_images(server, case, truth)

    def _adopt(self) -> None:
        """As ``guest list`` and ``guest adopt`` do."""
        places = self._places()
        places.begin_check()
        for found in adopt_guest.list_unknown(places).values():
            for reported in found:
                with suppress(errors.Conflict):  # the record forbids it
                    adopt_guest.adopt_guest(places, reported.guest.uuid, reported.host, None)

    def _places(self) -> Places:
        api = self.world.files.databases["api"]
        return Places(api, Ledger(api, "operator"), self.world.registry, overdue=-1.0, images=self.world.images)

    def _repaired(self, server: str, case: Case, truth: Truth) -> Iterator[str]:
        """The guide's last step: ``verify --repair`` until nothing is left but what a person has to decide."""
        for _ in range(REPAIRS):
            audit = Audit(self._places())
            found = audit.check_all()
            if not any(found.values()):
                break
            audit.repair_findings(found)
            self._rest()
        else:
            left = [str(finding) for some in found.values() for finding in some]
            if case.event != "shelved" and case.lost != "both":  # other records tell of such a server
                yield f"verify finds {left}"
        if (unrest := self._unrest()) and case.lost != "both":
            yield f"it comes to no rest: {unrest}"
        if len(running := self._running(server)) > 1:
            yield f"two guests run: {running}"
        yield from self._judge_server(server, case, truth) if case.lost != "both" else self._judge_hosts(server, case, truth)

    def _judge_hosts(self, server: str, case: Case, truth: Truth) -> Iterator[str]:
        """Only hosts know what has happened since: the server is the newest disk, and nothing else of it runs."""
        if truth.deleted or truth.host is None:
            return
        now, look = self._truth(server), Look(self.world)
        shown = look.shown(server)
        if now.writes < truth.writes and not _loses_writes(case, shown.state):
            yield f"its disk has {now.writes} writes of {truth.writes}: {truth}, {now}, {shown}, {look.operations[server]}"
        if truth.rests and not _left_no_trace(case) and (now.body, now.host) != (truth.body, truth.host):
            yield f"it was {truth}, and is {now}: {look.operations[server]}"

    def _judge_images(self, server: str, case: Case, truth: Truth) -> Iterator[str]:
        if lost := truth.images - {file.name for file in (self.world.path / "images").rglob("*-*")}:
            now, goes_on = self._truth(server), case.event in ("nothing", "moving") or _left_no_trace(case)
            if not (goes_on and now.host is not None and now.writes >= truth.writes):
                yield f"images are lost: {lost}"

    def _running(self, server: str) -> list[tuple[str, str]]:
        look = Look(self.world)
        return [(g.host, body.uuid) for body in look.bodies[server] for g in look.guests[body.uuid] if g.runs] + [
            (g.host, uuid) for uuid, every in look.guests.items() for g in every if g.runs and uuid not in look.mappings
        ]

    def _judge_server(self, server: str, case: Case, truth: Truth) -> Iterator[str]:
        look = Look(self.world)
        shown = look.shown(server)
        row, now = look.row_of(shown), self._truth(server)
        operations = look.operations[server]
        if truth.deleted and case.age == "purged" and shown.state in ("error", "deleted") and not any(look.guests.values()):
            return  # nothing tells that it was deleted
        if truth.deleted:
            if not shown.deleted or any(look.guests.values()):
                yield f"it was deleted, and is {shown}, {row}, {operations}, guests {dict(look.guests)}"
            return
        if truth.host is None:  # shelved: there is no guest
            if case.event != "shelved" and shown.state not in ("shelved", "active"):
                yield f"it was shelved, and is {shown}, {operations}"
            return
        if case.event == "nothing" and case.kind is Kind.SHELVE and shown.state == "shelved":
            return
        if now.writes < truth.writes and not _loses_writes(case, shown.state):
            yield f"its disk has {now.writes} writes of {truth.writes}: {truth}, {now}, {shown}, {operations}"
        is_known = case.event not in ("nothing", "soft-deleted") and not _left_no_trace(case)
        if shown.deleted or shown.state != "active" or row is None or row.state != State.ACTIVE:
            yield f"it is {shown}, {row}, {operations}"
        elif case.event == "resized" and [each.state for each in operations if each.outcome is None] != [At.VERIFY]:
            yield f"its resize does not wait for its user: {shown}, {row}, {operations}"
        elif truth.rests and is_known and (now.body, now.host, now.power) != (truth.body, truth.host, truth.power):
            yield f"it was {truth}, and is {now}: {operations}"


def _loses_writes(case: Case, state: str) -> bool:
    """Whether the operation that was open goes on, and replaces the disk by an older one, or puts it into the image store."""
    if case.event != "nothing":
        return False
    return state == "shelved" or case.state is At.REVERTING or case.kind in (Kind.EVACUATE, Kind.REBUILD)


def _left_no_trace(case: Case) -> bool:
    """Whether the move was given up before anything was staged, or asked of its source: no row and no host tells, so it is
    carried out again (``docs/decisions/0066``). An evacuation is not: that its host is back tells.
    """
    return case.event == "failed" and case.state is At.PLACING and case.kind is not Kind.EVACUATE


_REGIONS: list[RestoredRegion] = []
"""That of this process, as soon as it has run a case."""


def run(case: Case) -> tuple[Case, list[str]]:
    """The case, and what went wrong in it."""
    if not _REGIONS:
        logging.disable(logging.CRITICAL)
        _REGIONS.append(RestoredRegion(Path(tempfile.mkdtemp())))
    try:
        return case, _REGIONS[0].run(case)
    except Exception:  # noqa: BLE001 - a case that fails is told, and the others run
        _REGIONS.clear()
        return case, [traceback.format_exc()]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", default="", help="only cases whose names contain this")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="one case in N; their names decide which")
    asked = parser.parse_args(arguments)
    chosen = [case for case in cases() if asked.part in str(case) and zlib.crc32(str(case).encode()) % asked.one_in == 0]
    began, wrong = time.monotonic(), 0
    with multiprocessing.Pool(asked.processes) as pool:
        for case, found in pool.imap_unordered(run, chosen):
            if found:
                wrong += 1
                print(f"{case}:", *found, sep="\n    ", flush=True)
    print(f"{len(chosen)} cases, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
