"""A page of a cell's feed applied to the API database, on every server that answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from db.api.reconcile import events
from db.api.reconcile.events import FeedPosition
from db.api.servers import mappings
from objects import errors
from objects.feed import EventKind, InstanceEvent, InstanceSummary
from objects.group import GroupPolicy
from objects.instance import Server
from tests.support import fleet
from tests.support.conductor import NOW, Queue
from tests.support.fleet import CELLS
from tests.support.transactions import run_threads

CELL, OTHER = CELLS


def event(kind: EventKind, uuid: str, version: int, *, host: str = "h0", state: str = "", **changes: Any) -> InstanceEvent:
    shown = state or {EventKind.ACTIVE: "active", EventKind.ENDED: "error"}.get(kind, "building")
    summary = InstanceSummary(state=shown, host=host, node=host, updated_at=NOW + version, **changes)
    return InstanceEvent(kind=kind, key=uuid, version=version, summary=summary)


def apply(queue: Queue, *page: InstanceEvent, cell: str = CELL) -> None:
    """As the only applier of the cell's feed."""
    cursor = queue.database.write(events.lock_cursor, cell)
    apply_from(queue, cursor, page, cell)


def apply_from(queue: Queue, cursor: int, page: Sequence[InstanceEvent], cell: str = CELL) -> None:
    queue.ledger.write(events.apply_page, FeedPosition(cell_uuid=cell, cursor=cursor, upto=cursor + len(page)), page)


def handed_over(queue: Queue, count: int = 1, **asked: Any) -> list[str]:
    """Instances in CELL with their claims, each on the host it was given."""
    fences = queue.claimed(count, **asked)
    queue.give_hosts_to(CELL)
    hosts = queue.site.claimed()
    for uuid in fences:
        assert queue.hand_over({uuid: 1}, CELL, hosts[uuid]) == [uuid]
    return list(fences)


def server(queue: Queue, uuid: str) -> Server:
    found = queue.database.read(mappings.get, uuid)
    assert found is not None
    return found


def test_active_fills_the_summary_and_spares_the_claim(queue: Queue) -> None:
    [uuid] = handed_over(queue)
    claims = queue.site.inventories()
    apply(queue, event(EventKind.ACTIVE, uuid, 2, host="h1", launched_at=1060.5, availability_zone="west"))
    found = server(queue, uuid)
    assert (found.state, found.host, found.node, found.availability_zone) == ("active", "h1", "h1", "west")
    assert (found.launched_at, found.updated_at, found.terminated_at, found.fault) == (1060.5, NOW + 2, None, None)
    assert queue.mapped()[uuid].seen == 2
    assert queue.site.inventories() == claims


def test_moved_takes_the_claim_along(queue: Queue) -> None:
    uuid, stays = handed_over(queue, 2)
    before = queue.site.claimed()
    target = next(host for host in ("h0", "h1", "h2", "h3") if host not in before.values())
    apply(queue, event(EventKind.MOVED, uuid, 3, host=target))
    assert queue.site.claimed() == before | {uuid: target}
    assert queue.site.overfull() == []
    assert server(queue, uuid).host == target
    assert server(queue, stays).host == before[stays]


@pytest.mark.parametrize("state", ["error", "deleted"])
def test_ended_frees_the_claim(queue: Queue, state: str) -> None:
    uuid, stays = handed_over(queue, 2)
    apply(queue, event(EventKind.ENDED, uuid, 4, state=state, fault="Attempt 1 on h0: no disk.", terminated_at=1090.0))
    assert queue.site.claimed().keys() == {stays}
    assert queue.site.overfull() == []
    found = server(queue, uuid)
    assert (found.state, found.fault, found.terminated_at) == (state, "Attempt 1 on h0: no disk.", 1090.0)


def test_a_page_tells_several_stories_at_once(queue: Queue) -> None:
    moved, ended, active, brief = handed_over(queue, 4)
    claims = queue.site.claimed()
    target = next(host for host in ("h0", "h1", "h2", "h3") if host != claims[moved])
    apply(
        queue,
        event(EventKind.MOVED, moved, 2, host=claims[moved]),
        event(EventKind.MOVED, brief, 2, host=target),
        event(EventKind.ACTIVE, active, 2, host=claims[active]),
        event(EventKind.MOVED, moved, 3, host=target),
        event(EventKind.ENDED, ended, 2),
        event(EventKind.ACTIVE, moved, 4, host=target),
        event(EventKind.ENDED, brief, 3, state="deleted"),
    )
    assert queue.site.claimed() == {moved: target, active: claims[active]}
    assert queue.site.overfull() == []
    shown = {uuid: (found.state, found.seen) for uuid, found in queue.mapped().items()}
    assert shown == {moved: ("active", 4), ended: ("error", 2), active: ("active", 2), brief: ("deleted", 3)}
    assert queue.database.write(events.lock_cursor, CELL) == 7


def test_an_event_that_is_not_newer_changes_nothing(queue: Queue) -> None:
    """What was applied may come again, alone or with others, late or at once."""
    [uuid] = handed_over(queue)
    claims = queue.site.claimed()
    story = [
        event(EventKind.MOVED, uuid, 2, host="h3"),
        event(EventKind.ACTIVE, uuid, 3, host="h3"),
    ]
    apply(queue, *story)
    after = queue.mapped(), queue.site.claimed()
    apply(queue, story[0])
    apply(queue, *story)
    apply(queue, event(EventKind.ENDED, uuid, 3))
    assert (queue.mapped(), queue.site.claimed()) == after
    assert queue.site.claimed() == claims | {uuid: "h3"}


def test_an_old_event_cannot_revive_the_ended(queue: Queue) -> None:
    [uuid] = handed_over(queue)
    apply(queue, event(EventKind.ENDED, uuid, 5, state="deleted"))
    apply(queue, event(EventKind.MOVED, uuid, 4, host="h3"), event(EventKind.ACTIVE, uuid, 4, host="h3"))
    assert queue.site.claimed() == {}
    assert server(queue, uuid).state == "deleted"
    assert queue.site.overfull() == []


@pytest.mark.parametrize("kind", [EventKind.MOVED, EventKind.ACTIVE, EventKind.ENDED])
def test_another_cells_events_of_an_instance_are_ignored(queue: Queue, kind: EventKind) -> None:
    """Of one in this cell, of one in no cell yet, and of one that is unknown."""
    [uuid] = handed_over(queue)
    [queued] = queue.claimed()
    before = queue.mapped(), queue.site.claimed(), queue.site.inventories()
    page = [event(kind, one, 9, host="h3") for one in (uuid, queued, "unknown")]
    apply(queue, *page, cell=OTHER)
    apply(queue, *page[1:], cell=CELL)
    assert (queue.mapped(), queue.site.claimed(), queue.site.inventories()) == before
    assert (queue.database.write(events.lock_cursor, OTHER), queue.database.write(events.lock_cursor, CELL)) == (3, 2)


def test_a_deleted_server_is_followed_to_its_end(queue: Queue) -> None:
    [uuid] = handed_over(queue)
    queue.delete(uuid)
    apply(queue, event(EventKind.ACTIVE, uuid, 2))
    assert queue.site.claimed().keys() == {uuid}
    assert [found.uuid for found in queue.database.read(mappings.list_deleting, 10)] == [uuid]
    apply(queue, event(EventKind.ENDED, uuid, 4, state="deleted"))
    assert queue.site.claimed() == {}
    assert queue.database.read(mappings.list_deleting, 10) == []


class TestCursor:
    def test_a_cell_never_read_begins_at_the_beginning(self, queue: Queue) -> None:
        assert [queue.database.write(events.lock_cursor, CELL) for _ in range(2)] == [0, 0]
        apply(queue)
        assert queue.database.write(events.lock_cursor, CELL) == 0

    def test_who_read_from_another_place_writes_nothing(self, queue: Queue) -> None:
        first, second = handed_over(queue, 2)
        queue.database.write(events.lock_cursor, CELL)
        page = [event(EventKind.ENDED, first, 2), event(EventKind.ENDED, second, 2)]
        apply_from(queue, 0, page[:1])
        before = queue.mapped(), queue.site.claimed()
        for cursor in (0, 2):
            with pytest.raises(errors.Conflict, match="another applier"):
                apply_from(queue, cursor, page)
        assert (queue.mapped(), queue.site.claimed()) == before
        assert queue.database.write(events.lock_cursor, CELL) == 1
        apply_from(queue, 1, page[1:])
        assert queue.site.claimed() == {}

    def test_of_appliers_that_meet_one_wins_each_page(self, queue: Queue) -> None:
        uuids = handed_over(queue, 12)
        queue.database.write(events.lock_cursor, CELL)
        story = [event(EventKind.ENDED, uuid, 2) for uuid in uuids]
        won: list[int] = []

        def follow(_: int) -> None:
            while (cursor := queue.database.write(events.lock_cursor, CELL)) < len(story):
                try:
                    apply_from(queue, cursor, story[cursor : cursor + 3])
                except errors.Conflict:
                    continue
                won.append(cursor)

        assert run_threads(4, follow) == []
        assert sorted(won) == [0, 3, 6, 9]
        assert queue.site.claimed() == {}
        assert queue.site.overfull() == []

    def test_capacities_come_with_their_page_or_never(self, queue: Queue) -> None:
        position = FeedPosition(cell_uuid=CELL, cursor=queue.database.write(events.lock_cursor, CELL), upto=1)
        host = next(host for host, home in queue.site.homes.items() if home == CELL)
        queue.ledger.write(events.apply_page, position, [], [fleet.node(host, vcpus=48), fleet.node("new", vcpus=8)])
        assert (queue.site.inventories()[host].cap_vcpus, queue.site.inventories()["new"].cell_uuid) == (48.0, CELL)
        with pytest.raises(errors.Conflict):
            queue.ledger.write(events.apply_page, position, [], [fleet.node(host, vcpus=1)])
        assert queue.site.inventories()[host].cap_vcpus == 48.0


class TestGroups:
    def test_active_ends_what_was_held_for_retries(self, queue: Queue) -> None:
        first, second = handed_over(queue, 2, group=fleet.group(GroupPolicy.ANTI_AFFINITY), max_attempts=2)
        held = {slot.instance_uuid for slot in queue.site.slots() if slot.held}
        assert held == {first, second}
        apply(queue, event(EventKind.ACTIVE, first, 2, host=queue.site.claimed()[first], has_group=True))
        assert {slot.instance_uuid for slot in queue.site.slots() if slot.held} == {second}
        assert {slot.instance_uuid for slot in queue.site.slots() if not slot.held} == {first, second}

    def test_moved_takes_the_place_in_the_group_along(self, queue: Queue) -> None:
        [uuid] = handed_over(queue, group=fleet.group(GroupPolicy.ANTI_AFFINITY), max_attempts=3)
        target = next(slot.host for slot in queue.site.slots() if slot.held)
        apply(queue, event(EventKind.MOVED, uuid, 2, host=target, has_group=True))
        assert [slot.host for slot in queue.site.slots() if not slot.held] == [target]
        apply(queue, event(EventKind.ACTIVE, uuid, 3, host=target, has_group=True))
        assert [(slot.host, slot.held) for slot in queue.site.slots()] == [(target, False)]

    def test_moved_and_active_together_leave_one_place(self, queue: Queue) -> None:
        [uuid] = handed_over(queue, group=fleet.group(GroupPolicy.ANTI_AFFINITY), max_attempts=3)
        target = next(slot.host for slot in queue.site.slots() if slot.held)
        said: dict[str, Any] = {"host": target, "has_group": True}
        apply(queue, event(EventKind.MOVED, uuid, 2, **said), event(EventKind.ACTIVE, uuid, 3, **said))
        assert [(slot.host, slot.held) for slot in queue.site.slots()] == [(target, False)]
        assert queue.site.claimed() == {uuid: target}

    def test_ended_leaves_the_group(self, queue: Queue) -> None:
        first, second = handed_over(queue, 2, group=fleet.group(GroupPolicy.ANTI_AFFINITY), max_attempts=2)
        apply(queue, event(EventKind.ENDED, first, 2, has_group=True))
        assert {slot.instance_uuid for slot in queue.site.slots()} == {second}
        apply(queue, event(EventKind.ENDED, first, 2, has_group=True), event(EventKind.ENDED, second, 2, has_group=True))
        assert queue.site.slots() == []
