"""Texts are compared by their bytes, trailing blanks included, and are of any length."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.deployment import host_mappings
from db.api.servers import listing, mappings
from db.api.servers.listing import ServerQuery
from db.cell import staging
from db.cell import tables as cell
from objects import stored
from objects.cell import HostMapping
from objects.instance import Attempt, Failure, FailureClass, Instance, State
from objects.spec import ServerProperties
from tests.support import fleet
from tests.support.conductor import Queue
from tests.support.databases import SERVERS, database_on

PAIRS = [("a", "a "), ("a", "A"), ("é", "e\u0301"), ("ß", "ss"), ("a", "a\u200b"), ("\uff41", "a")]


@pytest.mark.parametrize("server", SERVERS)
def test_texts_that_differ_are_two_keys_everywhere(server: str, tmp_path: Path) -> None:
    tags = tuple(dict.fromkeys(tag for pair in PAIRS for tag in pair))
    spec = fleet.spec(properties=ServerProperties(tags=tags))
    new = staging.NewInstance(instance=Instance(uuid="u1", state=State.STAGED, fence=1), name="n", launch_index=0, created_at=1.0)
    with database_on(server, tmp_path, "cell") as database:
        assert database.write(staging.stage_instances, spec, [new], 1.0) == ["u1"]
        assert set(database.read(lambda tx: tx.execute(sa.select(cell.tags.c.tag)).scalars())) == set(tags)
    with database_on(server, tmp_path, "api") as database:
        hosts = [HostMapping(host=host, cell_uuid="c1") for host in tags]
        assert database.write(host_mappings.add_mappings, hosts, 1.0) == []
        assert {mapping.host for mapping in database.read(host_mappings.list_all)} == set(tags)


@pytest.mark.parametrize("server", SERVERS)
def test_lists_tell_texts_apart_that_differ(server: str, tmp_path: Path) -> None:
    texts = tuple(dict.fromkeys(text for pair in PAIRS for text in pair))
    with database_on(server, tmp_path, "api") as database:
        queue = Queue(database)
        for text in texts:
            queue.accept(1, properties=ServerProperties(key_name=text, tags=(text,), metadata={"k": text, text: "v"}))
        for text in texts:
            for query in (
                ServerQuery(key_name=text),
                ServerQuery(tags=(text,)),
                ServerQuery(metadata=(("k", text),)),
                ServerQuery(metadata=((text, "v"),)),
            ):
                [found] = database.read(listing.list_, query)
                spec = database.read(mappings.specs_by_batch, [found.batch_id])[found.batch_id]
                assert spec.properties.key_name == text, query


def test_mariadb_stores_the_longest_history(tmp_path: Path) -> None:
    failure = Failure(kind=FailureClass.HOST, error="E" * 255, message="\n" * 100, at=1.0)
    history = tuple(Attempt(number=n, host="h" * 255, node="n" * 255, failure=failure) for n in range(200))
    row = Instance(uuid="u1", state=State.ERROR, fence=1, fault="x", history=history)
    new = staging.NewInstance(instance=row, name="n", launch_index=0, created_at=1.0)
    with database_on("mariadb", tmp_path, "cell") as database:
        database.write(staging.stage_instances, fleet.spec(), [new], 1.0)
        details = database.read(lambda tx: tx.execute(sa.select(cell.instance_faults.c.details)).scalar_one())
        assert len(details) > 65_535
        assert stored.load_text(details, tuple[Attempt, ...]) == history


def test_updates_of_many_rows_use_indexes_on_mariadb(tmp_path: Path) -> None:
    """Their constants have the collation of the connection."""
    statement = (
        "EXPLAIN UPDATE (SELECT 'u1' AS row_uuid, 5 AS to_fence UNION ALL SELECT 'u2', 6) AS w STRAIGHT_JOIN instances AS t "
        "FORCE INDEX FOR JOIN (PRIMARY) ON t.uuid = w.row_uuid SET t.fence = w.to_fence WHERE t.fence < 9"
    )
    with database_on("mariadb", tmp_path, "cell") as database:
        plan = database.write(lambda tx: tx.exec_driver_sql(statement).mappings().all())
        assert [(row["table"], row["type"], row["key"]) for row in plan if row["table"] == "t"] == [("t", "eq_ref", "PRIMARY")]
