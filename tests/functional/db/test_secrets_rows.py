"""Sealed rows on every server: kept with their batch, erased after it, and never from under a batch that is being staged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from db import secrets
from db.api.queue import builds
from db.api.queue.builds import HandOver
from db.cell import instances, staging
from db.cell.tables import build_secrets
from db.secrets import Kept
from db.sql.connection import ApiTransaction, Connection
from db.sql.engine import Database
from objects import lifecycle
from objects.instance import Failure, FailureClass, Instance, State
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, Queue, servers
from tests.support.databases import database_fixture, database_on

LONG = "api:" + "x" * 100_000
PATIENCE = 90.0


api = database_fixture(scope="function")


cell = database_fixture("cell", scope="function")


@pytest.fixture(params=["mariadb", "postgresql"])
def server_cell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with database_on(request.param, tmp_path, "cell") as made:
        yield made


def accept(database: Database, count: int = 1) -> RequestSpec:
    spec = fleet.spec()

    def write(tx: ApiTransaction) -> None:
        accept_batch(tx, spec, servers(count), now=NOW, deadline=FAR)
        secrets.keep_requests(tx, {spec.batch_id: LONG}, NOW)

    database.write(write)
    return spec


class TestQueued:
    def test_they_stay_while_the_batch_has_queued_requests(self, api: Database) -> None:
        queue = Queue(api)
        handed, deleted, waiting = accept(api, 2), accept(api), accept(api)
        assert api.read(secrets.of_request, handed.batch_id) == LONG
        assert api.read(secrets.list_decided) == []
        first, second = queue.lease(handed.batch_id)
        queue.hand_over({first: 1})
        assert api.read(secrets.list_decided) == []
        queue.bury({second: 1})
        (gone,) = queue.lease(deleted.batch_id)
        queue.delete(gone)
        assert sorted(api.read(secrets.list_decided)) == sorted([handed.batch_id, deleted.batch_id])
        api.write(secrets.erase_requests, api.read(secrets.list_decided))
        kept = [api.read(secrets.of_request, spec.batch_id) is not None for spec in (handed, deleted, waiting)]
        assert kept == [False, False, True]

    def test_a_hand_over_of_all_requests_erases_them(self, api: Database) -> None:
        queue, spec, other = Queue(api), accept(api, 2), accept(api, 2)
        for batch_id, fences in ((spec.batch_id, (1, 1)), (other.batch_id, (1, 0))):
            items = [
                HandOver(instance_uuid=uuid, fence=fence, cell_uuid="c", host="h1", node="h1", availability_zone=None)
                for uuid, fence in zip(queue.lease(batch_id), fences, strict=True)
            ]
            api.write(builds.hand_over, items, NOW, [batch_id])
        assert api.read(secrets.of_request, spec.batch_id) is None
        assert api.read(secrets.of_request, other.batch_id) == LONG, "one request was lost"


SPEC = fleet.spec()
OTHER = fleet.spec()


def new(uuid: str, fence: int = 1) -> staging.NewInstance:
    row = Instance(uuid=uuid, state=State.STAGED, fence=fence, host="h1", node="h1", deadline=FAR)
    return staging.NewInstance(instance=row, name=uuid, launch_index=0, created_at=NOW)


def stage(cell: Database, *uuids: str, spec: RequestSpec = SPEC, sealed: str | None = LONG) -> None:
    assert cell.write(staging.stage_instances, spec, [new(uuid) for uuid in uuids], NOW, sealed) == list(uuids)


def sweep(cell: Database) -> list[str]:
    return cell.write(secrets.erase_builds, cell.read(secrets.list_finished))


def move(cell: Database, uuid: str, state: State) -> None:
    """A STAGED build goes there by transitions of the protocol."""
    failure = Failure(kind=FailureClass.REQUEST, error="BuildAborted", message="no", at=NOW)
    steps = {
        State.SCHEDULED: [lambda row: lifecycle.activate_row(row, 1, cell0=False)],
        State.BUILDING: [lambda row: lifecycle.accept_order(row, "h1", 1, 1, "b")],
        State.ERROR: [lambda row: lifecycle.fail_attempt(row, "h1", 1, 1, "b", failure)],
        State.DELETED: [lambda row: lifecycle.delete(row, NOW)],
    }
    steps[State.ACTIVE] = [*steps[State.BUILDING], lambda row: lifecycle.confirm_active(row, "h1", 1, 1, "b", NOW)]
    steps[State.DELETING] = [*steps[State.BUILDING], *steps[State.DELETED]]
    for step in steps.get(state, []):
        cell.write(instances.transition_rows, [uuid], step, NOW)
    row = cell.read(instances.get, uuid)
    assert row is not None
    assert row.state is state


class TestBuilding:
    @pytest.mark.parametrize("state", [state for state in State if state is not State.UNKNOWN])  # which is never written
    def test_they_are_erased_when_the_batch_is_finished(self, cell: Database, state: State) -> None:
        stage(cell, "u1", "u2")
        stage(cell, "v1", spec=OTHER)
        move(cell, "u1", State.ACTIVE)
        move(cell, "u2", state)
        unfinished = state in (State.STAGED, State.SCHEDULED, State.BUILDING)
        assert sweep(cell) == ([] if unfinished else [SPEC.batch_id])
        assert cell.read(secrets.of_builds, ["u1", "u2", "v1", "unknown"]) == {
            "u1": Kept(batch_id=SPEC.batch_id, sealed=LONG if unfinished else None),
            "u2": Kept(batch_id=SPEC.batch_id, sealed=LONG if unfinished else None),
            "v1": Kept(batch_id=OTHER.batch_id, sealed=LONG),
        }
        assert sweep(cell) == []

    def test_a_tombstone_has_no_batch(self, cell: Database) -> None:
        cell.write(instances.delete, ["t1"], NOW)
        assert cell.read(secrets.of_builds, ["t1"]) == {}

    def test_what_the_settler_removed_leaves_nothing(self, cell: Database) -> None:
        stage(cell, "u1")
        cell.write(staging.remove_staged, ["u1"])
        assert sweep(cell) == [SPEC.batch_id]

    def test_staging_again_seals_again_or_writes_none(self, cell: Database) -> None:
        stage(cell, "u1")
        cell.write(staging.stage_instances, SPEC, [new("u1", fence=2)], NOW, "sealed again")
        assert cell.read(secrets.of_builds, ["u1"])["u1"].sealed == "sealed again"
        stage(cell, "v1", spec=OTHER, sealed=None)
        assert cell.read(secrets.of_builds, ["v1"])["v1"].sealed is None


class Paused:
    """A transaction in a thread of its own, that stops after its function until told to commit."""

    def __init__(self, database: Database, work: object) -> None:
        self.reached, self._go_on = threading.Event(), threading.Event()
        self.result: object = None
        self._thread = threading.Thread(target=self._run, args=(database, work))
        self._thread.start()

    def _run(self, database: Database, work: object) -> None:
        def body(tx: Connection) -> object:
            result = work(tx)  # type: ignore[operator]  # a test's shorthand
            self.reached.set()
            assert self._go_on.wait(PATIENCE)
            return result

        self.result = database.write(body)

    def commit(self) -> object:
        self._go_on.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.result

    @property
    def waits(self) -> bool:
        """Whether it is held up by another transaction."""
        return not self.reached.is_set()


class TestStagedWhileErasing:
    """Another instance of the batch comes into the cell (a retry of its lease) when the first ones are done."""

    def done_before(self, cell: Database) -> list[str]:
        stage(cell, "u1")
        move(cell, "u1", State.ACTIVE)
        found = cell.read(secrets.list_finished)
        assert found == [SPEC.batch_id], "the sweep has made up its mind"
        return found

    def kept(self, cell: Database) -> str | None:
        return cell.read(secrets.of_builds, ["u2"])["u2"].sealed

    def test_a_sweep_leaves_what_is_being_staged(self, server_cell: Database) -> None:
        found = self.done_before(server_cell)
        staging_ = Paused(server_cell, lambda tx: staging.stage_instances(tx, SPEC, [new("u2")], NOW, LONG))
        assert staging_.reached.wait(PATIENCE)
        assert server_cell.write(secrets.erase_builds, found) == []
        assert staging_.commit() == ["u2"]
        assert server_cell.write(secrets.erase_builds, found) == []
        assert self.kept(server_cell) == LONG

    def test_an_overtaken_sweep_looks_again_under_lock(self, server_cell: Database) -> None:
        found = self.done_before(server_cell)
        stage(server_cell, "u2")
        assert server_cell.write(secrets.erase_builds, found) == []
        assert self.kept(server_cell) == LONG

    def test_a_stage_meeting_a_sweep_writes_them_again(self, server_cell: Database) -> None:
        found = self.done_before(server_cell)
        erasing = Paused(server_cell, lambda tx: secrets.erase_builds(tx, found))
        assert erasing.reached.wait(PATIENCE)
        staging_ = Paused(server_cell, lambda tx: staging.stage_instances(tx, SPEC, [new("u2")], NOW, LONG))
        assert not staging_.reached.wait(0.5), "the row's lock holds it up"
        assert erasing.commit() == found
        assert staging_.reached.wait(PATIENCE)
        assert staging_.commit() == ["u2"]
        assert self.kept(server_cell) == LONG

    def test_many_rounds_of_both_lose_nothing(self, server_cell: Database) -> None:
        """Every committed stage finds its secrets, however the two interleave."""
        stop, missing = threading.Event(), []

        def erase() -> None:
            while not stop.is_set():
                sweep(server_cell)

        sweeper = threading.Thread(target=erase)
        sweeper.start()
        try:
            for number in range(60):
                uuid = f"r{number}"
                stage(server_cell, uuid)
                if server_cell.read(secrets.of_builds, [uuid])[uuid].sealed is None:
                    missing.append(uuid)
                move(server_cell, uuid, State.ACTIVE)
        finally:
            stop.set()
            sweeper.join(PATIENCE)
        assert missing == []
        assert wait_until(lambda: sweep(server_cell) == [] and not rows(server_cell), PATIENCE)


def rows(cell: Database) -> int:
    return cell.read(lambda tx: int(tx.execute(sa.select(sa.func.count()).select_from(build_secrets)).scalar_one()))
