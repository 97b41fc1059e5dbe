"""Deletes over HTTP: won once, and carried into the cell by others."""

from __future__ import annotations

import threading

from db.api.claims import claims
from db.api.servers import mappings
from tests.support.api import TENANT, Front
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL
from tests.support.threads import run_threads

front = front_fixture(grounds=USUAL)


def test_what_is_still_queued_is_gone_at_once(front: Front) -> None:
    """No cell has heard of it, so nobody is told; its build request is gone."""
    uuid = front.boot()
    front.doorbells.next()
    assert front.delete(uuid).status_code == 204
    assert front.get(f"/v2.1/servers/{uuid}").status_code == 404
    assert front.get("/v2.1/servers").json == {"servers": []}
    assert front.database.read(mappings.measure_queue).depth == 0
    assert front.database.read(claims.list_orphans) == []
    other = front.boot()
    assert front.doorbells.next() == ("build", front.batch_of(other))


def test_a_delete_marks_servers_and_notifies_the_conductor(front: Front) -> None:
    """The API writes to no cell: the row there is as it was."""
    uuid = front.boot()
    front.hand_over()
    front.activate(uuid)
    front.doorbells.next()
    answer = front.delete(uuid)
    assert (answer.status_code, answer.content) == (204, b"")
    assert front.doorbells.next() == ("delete", (uuid,))
    assert front.get(f"/v2.1/servers/{uuid}").status_code == 404
    assert [server.uuid for server in front.database.read(mappings.list_deleting, 10)] == [uuid]


def test_a_second_delete_finds_nothing(front: Front) -> None:
    """404, in the Compute API's form; so does one of what never was."""
    queued, built = front.boot(), front.boot()
    front.hand_over()
    for uuid in (queued, built):
        assert front.delete(uuid).status_code == 204
        assert front.delete(uuid).status_code == 404
    for unknown in ("00000000-0000-4000-8000-000000000000", "web"):
        answer = front.delete(unknown)
        assert (answer.status_code, answer.json["itemNotFound"]["code"]) == (404, 404)


def test_of_many_deletes_at_once_one_wins(front: Front) -> None:
    """The others are told that there is nothing."""
    uuid = front.boot(headers=TENANT)
    statuses: list[int] = []
    start = threading.Barrier(6)

    def delete() -> None:
        start.wait()
        statuses.append(front.delete(uuid, TENANT).status_code)

    run_threads([threading.Thread(target=delete) for _ in range(6)])
    assert sorted(statuses) == [204, 404, 404, 404, 404, 404]
