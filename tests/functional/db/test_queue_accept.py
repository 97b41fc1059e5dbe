"""A batch becomes durable: what is written, and what a client token or a taken uuid does, on every server that answers."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from db.api.queue.accepting import Accepted, NewServer
from db.api.reconcile import purge
from db.api.servers import mappings
from objects import errors
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, Mapped, Queue, servers
from tests.support.transactions import run_threads


def accept(queue: Queue, news: list[NewServer], *, token: str | None = None, now: float = NOW, **asked: Any) -> Accepted:
    return queue.database.write(accept_batch, fleet.spec(**asked), news, now=now, deadline=FAR, token=token)


def test_servers_get_requests_and_mappings_batches_their_spec(queue: Queue) -> None:
    spec = fleet.spec(availability_zone="east", project_id="p1", user_id="u1")
    news = list(servers(3))
    accepted = queue.database.write(accept_batch, spec, news, now=NOW, deadline=2000.0)
    assert accepted == Accepted(batch_id=spec.batch_id, uuids=tuple(n.uuid for n in news))
    assert {(r.state, r.fence, r.owner, r.lease_until) for r in queue.requests().values()} == {("queued", 0, None, 0.0)}
    assert queue.requests().keys() == queue.mapped().keys() == set(accepted.uuids)
    undecided = Mapped(cell_uuid=None, deleted=False, fence=0, seen=0, state="building", host=None)
    assert set(queue.mapped().values()) == {undecided}
    for new in news:
        server = queue.database.read(mappings.get, new.uuid)
        assert server is not None
        assert (server.name, server.launch_index, server.batch_id) == (new.name, new.launch_index, spec.batch_id)
        assert (server.project_id, server.user_id, server.availability_zone) == ("p1", "u1", "east")
        assert (server.created_at, server.updated_at, server.state) == (NOW, NOW, "building")
    assert queue.database.read(mappings.specs_by_batch, [spec.batch_id, "unknown"]) == {spec.batch_id: spec}
    assert queue.database.read(mappings.measure_queue) == mappings.Queue(depth=3, oldest=NOW)


def test_a_reused_token_returns_the_first_servers(queue: Queue) -> None:
    first = accept(queue, list(servers(3)), token="once")
    again = accept(queue, list(servers(3)), token="once")
    assert again == Accepted(batch_id=first.batch_id, uuids=first.uuids, replayed=True)
    assert queue.requests().keys() == set(first.uuids)


def test_a_replay_also_lists_servers_past_the_queue(queue: Queue) -> None:
    first = accept(queue, list(servers(3)), token="once")
    fences = queue.lease(first.batch_id)
    handed, deleted, _ = first.uuids
    queue.hand_over({handed: fences[handed]})
    queue.delete(deleted)
    assert accept(queue, list(servers(3)), token="once").uuids == first.uuids


def test_a_token_belongs_to_one_request(queue: Queue) -> None:
    """A digest by a key that is no longer known, or of an older release, is not compared."""

    def accept_with(*digests: str) -> Accepted:
        return queue.database.write(
            accept_batch, fleet.spec(), list(servers(1)), now=NOW, deadline=FAR, token="once", digests=digests
        )

    first = accept_with("k2.aa", "k1.bb")
    for digests in (("k2.aa",), ("k3.cc", "k2.aa"), ("k3.dd",), ()):
        assert accept_with(*digests).uuids == first.uuids
    for digests in (("k2.bb",), ("k3.cc", "k2.ab")):
        with pytest.raises(errors.KeyReused):
            accept_with(*digests)
    assert len(queue.requests()) == 1


def test_a_purged_servers_token_makes_no_new_servers(queue: Queue) -> None:
    first = accept(queue, list(servers(3)), token="once")
    for uuid_ in first.uuids:
        queue.delete(uuid_)
    queue.database.write(purge.purge_servers, NOW + 10_000, [])
    with pytest.raises(errors.Conflict, match="no longer on record"):
        accept(queue, list(servers(3)), token="once")
    assert queue.requests() == {}


def test_a_token_counts_within_its_project(queue: Queue) -> None:
    first = accept(queue, list(servers(1)), token="once", project_id="p1")
    second = accept(queue, list(servers(1)), token="once", project_id="p2")
    other = accept(queue, list(servers(1)), token="twice", project_id="p1")
    assert [answer.replayed for answer in (first, second, other)] == [False] * 3
    assert len(queue.requests()) == 3


def test_concurrent_uses_of_one_token_share_the_servers(queue: Queue) -> None:
    for attempt in range(10):
        together = threading.Barrier(3)
        answers: list[Accepted] = []

        def boot(_: int, token: str = f"token-{attempt}", start: threading.Barrier = together) -> None:
            start.wait(20)
            answers.append(accept(queue, list(servers(2)), token=token))  # noqa: B023 - read within this turn of the loop

        assert run_threads(3, boot) == []
        assert len({(answer.batch_id, answer.uuids) for answer in answers}) == 1
        assert sorted(answer.replayed for answer in answers) == [False, True, True]
    assert len(queue.requests()) == 20


def test_without_a_token_every_request_is_new(queue: Queue) -> None:
    accept(queue, list(servers(1)))
    accept(queue, list(servers(1)))
    assert len(queue.requests()) == 2


@pytest.mark.parametrize("decided", [False, True])
def test_a_uuid_in_use_conflicts_and_writes_nothing(queue: Queue, decided: bool) -> None:
    taken = str(uuid.uuid4())
    first = accept(queue, [NewServer(uuid=taken, name="first")])
    if decided:
        queue.hand_over(queue.lease(first.batch_id))
    before = queue.requests(), queue.mapped()
    news = [NewServer(uuid=str(uuid.uuid4()), name="new"), NewServer(uuid=taken, name="second", launch_index=1)]
    spec = fleet.spec()
    with pytest.raises(errors.Conflict, match="is taken"):
        queue.database.write(accept_batch, spec, news, now=NOW, deadline=FAR, token="unused")
    assert (queue.requests(), queue.mapped()) == before
    assert queue.database.read(mappings.specs_by_batch, [spec.batch_id]) == {}
    assert not accept(queue, list(servers(1)), token="unused").replayed
