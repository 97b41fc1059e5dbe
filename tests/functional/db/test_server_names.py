"""Unique names of servers: who gets a name that several ask for, when it is free again, and how older names are recorded."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.projects import quotas
from db.api.queue.accepting import NewBatch, NewServer, foresee_accept
from db.api.queue.accepting import accept_batch as accept_batches
from db.api.reconcile import purge
from db.api.rows import tables
from db.api.servers import edits
from db.api.servers import names as server_names
from db.api.servers.edits import Edit
from db.api.servers.names import SharedName
from objects import errors
from objects.quota import Admission, OwnLimits
from objects.server_name import NameScope, name_key
from tests.functional.db.test_server_edits import add_body, open_operation, point_to
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, Queue
from tests.support.transactions import run_threads

OFF, PROJECT, GLOBAL = NameScope
TAKEN = "already exists"
MAPPING = tables.instance_mappings


def batch(*names: str, scope: NameScope = PROJECT, project: str = "p1", name: str = "web", **terms: Any) -> NewBatch:
    servers = tuple(NewServer(uuid=str(uuid.uuid4()), name=each, launch_index=n) for n, each in enumerate(names))
    spec = fleet.spec(project_id=project, name=name, num_instances=len(names))
    return NewBatch(spec=spec, servers=servers, deadline=FAR, admission=Admission(unique_names=scope, **terms))


def accept(queue: Queue, asked: NewBatch, token: str | None = None) -> list[str]:
    accepted = queue.database.write(
        accept_batch, asked.spec, asked.servers, now=NOW, deadline=FAR, admission=asked.admission, token=token
    )
    return list(accepted.uuids)


def boot(queue: Queue, name: str, scope: NameScope = PROJECT, project: str = "p1") -> str:
    [server] = accept(queue, batch(name, scope=scope, project=project, name=name))
    return server


def rename(queue: Queue, server: str, name: str, scope: NameScope = PROJECT) -> None:
    queue.database.write(edits.change_server, server, lambda *_: Edit(name=name), project_id=None, now=NOW, unique_names=scope)


def keys(queue: Queue) -> dict[str, str]:
    """The keys that are recorded, by server."""
    query = sa.select(MAPPING.c.instance_uuid, MAPPING.c.name_key).where(MAPPING.c.name_key.is_not(None))
    return queue.database.read(lambda tx: {row.instance_uuid: row.name_key for row in tx.execute(query)})


def record(queue: Queue, scope: NameScope) -> tuple[int, list[SharedName]]:
    """How many keys changed, and the servers whose names others have."""
    changed, shared, after = 0, list[SharedName](), ""
    while (page := queue.database.write(server_names.record_page, scope, after)).last is not None:
        changed, shared, after = changed + page.changed, [*shared, *page.shared], page.last
    return changed, shared


def test_names_that_need_not_differ_go_unrecorded(queue: Queue) -> None:
    boot(queue, "web", OFF)
    rename(queue, boot(queue, "web", OFF), "db", OFF)
    assert keys(queue) == {}


def test_a_name_is_unique_per_project_ignoring_case(queue: Queue) -> None:
    server = boot(queue, "Straße")
    with pytest.raises(errors.Conflict, match="Instance STRASSE already exists"):
        boot(queue, "STRASSE")
    other = boot(queue, "straße", project="p2")
    assert keys(queue) == {server: name_key(PROJECT, "p1", "straße"), other: name_key(PROJECT, "p2", "straße")}
    assert queue.requests().keys() == {server, other}


def test_a_global_name_is_taken_in_every_project(queue: Queue) -> None:
    boot(queue, "web", GLOBAL)
    with pytest.raises(errors.Conflict, match=TAKEN):
        boot(queue, "WEB", GLOBAL, project="p2")


def test_a_batch_with_one_used_name_is_refused(queue: Queue) -> None:
    taken = boot(queue, "web-2")
    with pytest.raises(errors.Conflict, match="Instance web-2 already exists"):
        accept(queue, batch("web-1", "web-2", "web-3"))
    assert keys(queue).keys() == queue.mapped().keys() == {taken}
    assert len(accept(queue, batch("db-1", "db-2"))) == 2


def test_batches_of_one_transaction_have_different_names(queue: Queue) -> None:
    """Whoever shares a transaction is refused with the others, and then accepts each batch alone."""
    with pytest.raises(errors.Conflict, match=TAKEN):
        queue.database.write(accept_batches, [batch("web"), batch("db"), batch("Web")], NOW)
    assert queue.mapped() == {}
    done = queue.database.write(accept_batches, [batch("web"), batch("web", project="p2"), batch("db")], NOW)
    assert keys(queue).keys() == {accepted.uuids[0] for accepted in done}
    with pytest.raises(errors.Conflict, match=TAKEN):
        queue.database.write(accept_batches, [batch("other"), batch("DB")], NOW)


def test_a_batch_cut_to_one_has_plain_names(queue: Queue) -> None:
    queue.database.write(quotas.change_limits, "p1", OwnLimits(instances=1))
    asked = batch("web-1", "web-2", at_least=1)
    assert queue.database.read(foresee_accept, asked) == (1, [])
    [server] = accept(queue, asked)
    assert keys(queue) == {server: name_key(PROJECT, "p1", "web")}
    queue.database.write(quotas.change_limits, "p1", OwnLimits(instances=2))
    again = batch("web-1", "web-2", at_least=1)
    assert queue.database.read(foresee_accept, again) == (1, ["Instance web already exists."])
    with pytest.raises(errors.Conflict, match="Instance web already exists"):
        accept(queue, again)
    queue.database.write(quotas.forget_limits, "p1", ("instances",))


def test_what_is_foreseen_is_what_happens(queue: Queue) -> None:
    boot(queue, "web-3")
    assert queue.database.read(foresee_accept, batch("web-1", "web-2", "web-3")) == (3, ["Instance web-3 already exists."])
    assert queue.database.read(foresee_accept, batch("web-1", "web-2")) == (2, [])
    assert queue.database.read(foresee_accept, batch("web-3", scope=OFF)) == (1, [])


def test_a_repeated_request_succeeds_despite_its_used_name(queue: Queue) -> None:
    first = accept(queue, batch("web"), token="once")
    assert accept(queue, batch("web"), token="once") == first


@pytest.mark.parametrize("several", [False, True])
def test_of_concurrent_requests_one_gets_the_name(queue: Queue, several: bool) -> None:
    """Also if each asks for several names, in another order than the other."""
    for attempt in range(6):
        start = threading.Barrier(4)
        names = [f"{attempt}-{n}" for n in range(5 if several else 1)]
        won: list[str] = []

        def ask(number: int, start: threading.Barrier = start, names: list[str] = names, won: list[str] = won) -> None:
            asked = batch(*(names if number % 2 else reversed(names)))
            start.wait(20)
            won += accept(queue, asked)

        refused = run_threads(4, ask)
        assert [type(error) for error in refused] == [errors.Conflict] * 3, refused
        assert all(TAKEN in str(error) for error in refused)
        assert len(won) == len(names)


def test_a_concurrent_boot_or_rename_gets_the_name(queue: Queue) -> None:
    for attempt in range(6):
        name, server, start = f"n{attempt}", boot(queue, f"old{attempt}"), threading.Barrier(2)

        def ask(number: int, name: str = name, server: str = server, start: threading.Barrier = start) -> None:
            start.wait(20)
            if number:
                rename(queue, server, name)
            else:
                boot(queue, name)

        [refused] = run_threads(2, ask)
        assert TAKEN in str(refused)
        assert list(keys(queue).values()).count(str(name_key(PROJECT, "p1", name))) == 1


def test_a_rename_takes_one_name_and_frees_another(queue: Queue) -> None:
    server, other = boot(queue, "web"), boot(queue, "db")
    with pytest.raises(errors.Conflict, match="Instance DB already exists"):
        rename(queue, server, "DB")
    rename(queue, server, "WEB")
    rename(queue, server, "front")
    assert keys(queue) == {server: name_key(PROJECT, "p1", "front"), other: name_key(PROJECT, "p1", "db")}
    boot(queue, "web")
    rename(queue, other, "data", OFF)
    assert other not in keys(queue), "its name is none that others may not have"


def test_a_delete_frees_the_name(queue: Queue) -> None:
    for _ in range(3):
        queue.delete(boot(queue, "queued"))
    asked = batch("handed")
    [server] = accept(queue, asked)
    queue.hand_over(queue.lease(asked.spec.batch_id))
    queue.delete(server)
    boot(queue, "handed")
    assert set(keys(queue).values()) == {name_key(PROJECT, "p1", "handed")}


def test_the_name_stays_with_moving_servers_until_deletion(queue: Queue) -> None:
    server = boot(queue, "web")
    twin = add_body(queue, server, name_key=None)
    queue.database.write(open_operation, server, twin)
    queue.database.write(point_to, server, twin)
    rename(queue, server, "moved")
    assert keys(queue) == {server: name_key(PROJECT, "p1", "moved")}
    assert record(queue, PROJECT) == (0, [])
    with pytest.raises(errors.Conflict, match=TAKEN):
        boot(queue, "moved")
    assert queue.delete(server) is not None
    assert keys(queue) == {}
    boot(queue, "moved")


def test_a_purge_leaves_no_name(queue: Queue) -> None:
    server = boot(queue, "web")
    queue.database.write(purge.forget_servers, [server])
    boot(queue, "web")


def test_names_of_older_servers_are_recorded_once_each(queue: Queue) -> None:
    first, second = boot(queue, "web", OFF), boot(queue, "Web", OFF)
    other, gone = boot(queue, "web", OFF, project="p2"), boot(queue, "old", OFF)
    queue.delete(gone)
    changed, shared = record(queue, PROJECT)
    holder = next(server for server in (first, second) if server in keys(queue))
    assert changed == 2
    assert [(each.uuid, each.holder, each.project_id) for each in shared] == [(({first, second} - {holder}).pop(), holder, "p1")]
    assert keys(queue).keys() == {holder, other}
    assert record(queue, PROJECT) == (0, shared)
    with pytest.raises(errors.Conflict, match=TAKEN):
        boot(queue, "WEB")

    rename(queue, shared[0].uuid, shared[0].name)  # its own name
    queue.delete(holder)
    assert record(queue, PROJECT) == (1, [])
    assert keys(queue).keys() == {shared[0].uuid, other}


def test_names_are_recorded_anew_in_another_scope(queue: Queue) -> None:
    servers = {boot(queue, "web"), boot(queue, "db", project="p2"), boot(queue, "web", project="p2")}
    changed, [shared] = record(queue, GLOBAL)
    assert (changed, shared.name) == (3, "web")
    assert keys(queue).keys() == servers - {shared.uuid}
    with pytest.raises(errors.Conflict, match=TAKEN):
        boot(queue, "DB", GLOBAL, project="p3")
    assert record(queue, OFF) == (2, [])
    assert keys(queue) == {}


def test_keys_that_somebody_else_has_written_are_repaired(queue: Queue) -> None:
    server, gone = boot(queue, "web"), boot(queue, "db")
    queue.delete(gone)
    for each, key in ((server, "project.x"), (gone, name_key(PROJECT, "p1", "db"))):
        odd = sa.update(MAPPING).where(MAPPING.c.instance_uuid == each).values(name_key=key)
        queue.database.write(lambda tx, statement: tx.execute(statement), odd)
    assert record(queue, PROJECT) == (2, [])
    assert keys(queue) == {server: name_key(PROJECT, "p1", "web")}


def test_recording_meets_boots(queue: Queue) -> None:
    """A name is either recorded for the older server, or the new one has it."""
    for n in range(20):
        boot(queue, f"s{n}", OFF)

    def work(number: int) -> None:
        if not number:
            record(queue, PROJECT)
            return
        for n in reversed(range(20)):
            try:
                boot(queue, f"s{n}")
            except errors.Conflict as refused:
                if TAKEN not in str(refused):
                    raise

    assert run_threads(3, work) == []
    recorded = list(keys(queue).values())
    assert sorted(recorded) == sorted(str(name_key(PROJECT, "p1", f"s{n}")) for n in range(20))
