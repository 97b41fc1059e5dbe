"""Edits of servers: none is lost, each reaches every body that may be shown, and lists find what servers have now."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.queue import builds
from db.api.reconcile import purge
from db.api.rows import tables
from db.api.servers import edits, mappings
from db.api.servers.edits import Edit, Edited
from db.api.servers.listing import ServerQuery
from db.sql.connection import Connection
from objects import errors
from objects.instance import Server
from objects.spec import ServerProperties
from tests.support.conductor import Queue
from tests.support.databases import database_fixture
from tests.support.hostile import HOSTILE
from tests.support.transactions import run_threads

LATER = 2000.0
ASKED = ServerProperties(tags=("a", "b"), metadata={"role": "web"}, description="front end")


database = database_fixture(scope="function")


def boot(queue: Queue, **asked: Any) -> str:
    spec = queue.accept(properties=ASKED, **asked)
    return next(server.uuid for server in queue.database.read(mappings.of_batch, spec.batch_id))


def change(queue: Queue, server: str, edit: Edit, project_id: str | None = None) -> Edited | None:
    return queue.database.write(edits.change_server, server, lambda *_: edit, project_id=project_id, now=LATER)


def row(queue: Queue, body: str) -> dict[str, Any]:
    query = sa.select(tables.instance_mappings).where(tables.instance_mappings.c.instance_uuid == body)
    return queue.database.read(lambda tx: dict(tx.execute(query).mappings().one()))


def listed(queue: Queue, **query: Any) -> set[str]:
    return {server.uuid for server in queue.database.read(mappings.list_, ServerQuery(**query))}


def add_body(queue: Queue, server: str, **columns: Any) -> str:
    """Another body of the server, as an operation makes it: a copy of its row, under a uuid and a request of its own."""
    body = str(uuid.uuid4())
    copied = row(queue, server) | {"instance_uuid": body, "batch_id": str(uuid.uuid4()), "server_uuid": server, "turn": 1}
    queue.database.write(lambda tx: tx.execute(sa.insert(tables.instance_mappings), copied | columns))
    return body


def point_to(tx: Connection, server: str, body: str) -> None:
    mapping = tables.instance_mappings
    tx.execute(sa.update(mapping).where(mapping.c.instance_uuid == server).values(body_uuid=body, hidden=True))


def open_operation(tx: Connection, server: str, twin: str) -> None:
    """As whoever accepts a move writes it."""
    common = {"kind": "migrate", "args": "{}", "state": "placing", "number": 1, "power_before": "on", "project_id": "p1"}
    common |= {"user_id": "u1", "request_id": "req-1", "created_at": 1.0, "updated_at": 1.0, "deadline": 1e12}
    values = common | {"uuid": str(uuid.uuid4()), "server_uuid": server, "open_for": server, "source_uuid": server}
    tx.execute(sa.insert(tables.operations), values | {"twin_uuid": twin})
    mapping = tables.instance_mappings
    tx.execute(sa.update(mapping).where(mapping.c.instance_uuid == server).values(last_number=mapping.c.last_number + 4))


def test_an_edit_changes_nothing_unnamed(queue: Queue) -> None:
    server = boot(queue)
    before = row(queue, server)
    edited = change(queue, server, Edit(name="db", metadata={"role": "db"}))
    assert edited is not None
    assert edited.before == msgspec.structs.replace(ASKED, hostname=before["hostname"])
    assert (edited.after.metadata, edited.after.tags, edited.after.hostname) == ({"role": "db"}, ("a", "b"), before["hostname"])
    changes = {"name": "db", "metadata": '{"role":"db"}', "user_version": 1, "updated_at": LATER}
    assert row(queue, server) == before | changes


def test_an_edit_of_nothing_writes_nothing(queue: Queue) -> None:
    server = boot(queue)
    before = row(queue, server)
    shown = msgspec.structs.replace(ASKED, hostname=before["hostname"])
    assert change(queue, server, Edit()) == Edited(before=shown, after=shown)
    assert row(queue, server) == before


def test_a_cleared_description_is_not_the_requests(queue: Queue) -> None:
    server = boot(queue)
    for text, shown in (("", None), ("back end", "back end")):
        edited = change(queue, server, Edit(description=text))
        assert edited is not None
        assert edited.after.description == shown


def test_what_is_not_there_is_not_edited(queue: Queue) -> None:
    """Unknown, deleted, of another project, or a body by its own uuid."""
    server, gone = boot(queue), boot(queue)
    queue.delete(gone)
    body = add_body(queue, server)
    assert change(queue, str(uuid.uuid4()), Edit(name="n")) is None
    assert change(queue, gone, Edit(name="n")) is None
    assert change(queue, body, Edit(name="n")) is None
    assert change(queue, server, Edit(name="n"), project_id="another") is None
    assert change(queue, server, Edit(name="n"), project_id=row(queue, server)["project_id"]) is not None


def test_the_visible_body_is_edited_not_its_predecessor(queue: Queue) -> None:
    server = boot(queue)
    body = add_body(queue, server)
    queue.database.write(point_to, server, body)
    before = row(queue, server)
    assert change(queue, server, Edit(name="moved", tags=("t",), metadata={"k": "v"})) is not None
    assert row(queue, server) == before
    assert (row(queue, body)["name"], row(queue, body)["user_version"]) == ("moved", 1)
    shown = queue.database.read(mappings.get, server)
    assert shown is not None
    assert (shown.uuid, shown.body_uuid, shown.name, shown.tags) == (server, body, "moved", ("t",))
    assert queue.database.read(mappings.get, body) is None
    assert [s.body_uuid for s in queue.database.read(mappings.list_, ServerQuery(tags=("t",), metadata=(("k", "v"),)))] == [body]


def test_an_open_operations_twin_is_edited_alike(queue: Queue) -> None:
    """Unless it was given up."""
    server = boot(queue)
    twin = add_body(queue, server, hidden=True)
    queue.database.write(open_operation, server, twin)
    edit = Edit(name="both", description="d", metadata={"k": "v"}, tags=("t",), locked_by="owner", locked_reason="r")
    assert change(queue, server, edit) is not None
    columns = {*edit.column_values(), "updated_at", "user_version"}
    assert {name: row(queue, server)[name] for name in columns} == {name: row(queue, twin)[name] for name in columns}
    found = queue.database.read(mappings.list_, ServerQuery(tags=("t",), metadata=(("k", "v"),)))
    assert [each.body_uuid for each in found] == [server], "the twin is hidden"

    mapping = tables.instance_mappings
    queue.database.write(lambda tx: tx.execute(sa.update(mapping).where(mapping.c.instance_uuid == twin).values(deleted=True)))
    before = row(queue, twin)
    assert change(queue, server, Edit(name="one")) is not None
    assert (row(queue, server)["name"], row(queue, twin)) == ("one", before)


def test_a_reverted_resize_retains_edits_since(queue: Queue) -> None:
    """While the user is to confirm it, the twin is the server, and the source may be so again."""
    server = boot(queue)
    twin = add_body(queue, server)
    queue.database.write(open_operation, server, twin)
    queue.database.write(point_to, server, twin)
    assert change(queue, server, Edit(name="both", tags=("t",))) is not None
    assert [(row(queue, body)["name"], row(queue, body)["tags"]) for body in (server, twin)] == [("both", '["t"]')] * 2


@pytest.mark.parametrize("database", ["mariadb", "postgresql"], indirect=True)
def test_an_edit_during_a_new_operation_reaches_twins(queue: Queue) -> None:
    """The operation is accepted after the edit has looked for one, and before it has locked the row. SQLite has one writer."""
    server = boot(queue)
    twins: list[str] = []

    def accept() -> None:
        twins.append(add_body(queue, server, hidden=True))
        queue.database.write(open_operation, server, twins[0])

    def listen(connection: object, statement: object, *_: object) -> None:
        if statement is edits._ROWS and not twins:
            other = threading.Thread(target=accept)
            other.start()
            other.join(60)

    sa.event.listen(sa.Engine, "after_execute", listen)
    try:
        edited = change(queue, server, Edit(name="late", tags=("t",)))
    finally:
        sa.event.remove(sa.Engine, "after_execute", listen)
    assert edited is not None
    assert len(twins) == 1
    assert [row(queue, body)["name"] for body in (server, *twins)] == ["late", "late"]


def test_concurrent_edits_lose_nothing(queue: Queue) -> None:
    server = boot(queue)

    def add(number: int) -> None:
        def decide(found: Server, current: ServerProperties) -> Edit:
            return Edit(tags=(*current.tags, f"t{number}"), metadata=current.metadata | {f"k{number}": str(number)})

        queue.database.write(edits.change_server, server, decide, project_id=None, now=LATER)

    assert run_threads(12, add) == []
    found = queue.database.read(mappings.get, server)
    assert found is not None
    assert set(found.tags or ()) == {"a", "b", *(f"t{n}" for n in range(12))}
    assert found.metadata == {"role": "web"} | {f"k{n}": str(n) for n in range(12)}
    assert found.user_version == 12
    assert listed(queue, tags=tuple(f"t{n}" for n in range(12))) == {server}


def test_a_refusal_leaves_everything_as_it_was(queue: Queue) -> None:
    server = boot(queue)
    before = row(queue, server)

    def refuse(found: Server, current: ServerProperties) -> Edit:
        raise errors.Forbidden("no")

    with pytest.raises(errors.Forbidden):
        queue.database.write(edits.change_server, server, refuse, project_id=None, now=LATER)
    assert row(queue, server) == before


FILTERS: tuple[tuple[dict[str, Any], bool, bool], ...] = (
    # query, found before, found after the edit
    ({"tags": ("a",)}, True, False),
    ({"tags": ("b", "c")}, False, True),
    ({"tags_any": ("a", "x")}, True, False),
    ({"not_tags": ("a", "b")}, False, True),
    ({"not_tags_any": ("c",)}, True, False),
    ({"metadata": (("role", "web"),)}, True, False),
    ({"metadata": (("role", "db"), ("tier", "1"))}, False, True),
    ({"description": "^front"}, True, False),
    ({"description": "^back"}, False, True),
    ({"locked": True}, False, True),
    ({"locked": False}, True, False),
    ({"locked_by": "admin"}, False, True),
    ({"locked_by": "owner"}, False, False),
    ({"name": "^renamed$"}, False, True),
)


def test_filters_go_by_what_the_server_has_now(queue: Queue) -> None:
    """And of its siblings, which were not edited, by what was asked for."""
    spec = queue.accept(2, properties=ASKED)
    server, sibling = (each.uuid for each in queue.database.read(mappings.of_batch, spec.batch_id))
    for query, before, _ in FILTERS:
        assert listed(queue, **query) == ({server, sibling} if before else set()), query
    edit = Edit(name="renamed", description="back end", tags=("b", "c"), metadata={"role": "db", "tier": "1"}, locked_by="admin")
    assert change(queue, server, edit) is not None
    for query, before, after in FILTERS:
        assert listed(queue, **query) == ({server} if after else set()) | ({sibling} if before else set()), query
    cleared = Edit(description="", tags=(), metadata={}, locked_by=None)
    assert change(queue, server, cleared) is not None
    assert listed(queue, not_tags_any=("a", "b", "c")) == {server}
    assert listed(queue, description=".") == {sibling}
    assert listed(queue, metadata=(("role", "db"),)) == set()
    assert listed(queue, locked=False) == {server, sibling}


def test_servers_are_sorted_by_their_present_descriptions(queue: Queue) -> None:
    """One that was cleared sorts like none, which is the lowest."""
    first, second, third = (boot(queue) for _ in range(3))
    for server, text in ((first, "z"), (third, "")):
        assert change(queue, server, Edit(description=text)) is not None
    for direction, order in (("asc", [third, second, first]), ("desc", [first, second, third])):
        query = ServerQuery(sort=(("display_description", direction),))
        assert [server.uuid for server in queue.database.read(mappings.list_, query)] == order


def test_any_printable_text_comes_back_and_is_found(queue: Queue) -> None:
    server = boot(queue)
    for text in (text for text in HOSTILE if len(text) <= 255 and text.isprintable()):
        assert change(queue, server, Edit(name=text, description=text, tags=(text,), metadata={text: text}, locked_reason=text))
        found = queue.database.read(mappings.get, server)
        assert found is not None
        assert (found.name, found.description, found.locked_reason) == (text, text, text)
        assert (found.tags, found.metadata) == ((text,), {text: text})
        assert listed(queue, tags=(text,), metadata=((text, text),)) == {server}


def test_a_locked_servers_delete_needs_the_override_right(queue: Queue) -> None:
    """A refused delete changes nothing, neither the row nor the queue."""
    server = boot(queue)
    assert change(queue, server, Edit(locked_by="admin")) is not None
    before = row(queue, server)
    with pytest.raises(errors.Conflict, match="locked by an administrator"):
        queue.ledger.write(builds.delete, server, project_id=None, now=LATER, ignores_lock=False)
    assert row(queue, server) == before
    assert queue.database.read(mappings.measure_queue).depth == 1
    assert queue.ledger.write(builds.delete, server, project_id=None, now=LATER) is not None


def test_labels_go_with_their_server(queue: Queue) -> None:
    gone, kept = boot(queue), boot(queue)
    for server in (gone, kept):
        assert change(queue, server, Edit(tags=("t",), metadata={"k": "v"})) is not None
    queue.delete(gone)
    assert queue.database.write(purge.purge_servers, 1e12, ()) == 1
    for key in (tables.server_tags.c.instance_uuid, tables.server_metadata.c.instance_uuid):
        assert queue.database.read(_all, key) == [kept]


def _all(tx: Connection, column: sa.Column[str]) -> Sequence[str]:
    return tx.execute(sa.select(column)).scalars().all()
