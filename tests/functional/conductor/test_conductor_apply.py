"""The API level follows a cell's feed: summaries and claims, also when the feed was trimmed or restored."""

from __future__ import annotations

import pytest

from conductor.apply import Applier
from conductor.delete import Deleter
from db.cell import feed, instances
from objects import errors, lifecycle
from objects.instance import State
from tests.support.applying import (
    CELL,
    OTHER,
    SMALL,
    build,
    catch_up,
    fail,
    inventories,
    node,
    ordered,
    restart_feed,
    sound,
    states,
    tell,
)
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world_fixture

cloud = world_fixture({CELL: ["a1", "a2"], OTHER: ["b1"]}, USUAL, embedded=True)


@pytest.fixture
def applier(conductor: Conductor) -> Applier:
    """Of CELL, by a process that has just started."""
    made = Applier(conductor.ledger, conductor.cell(CELL))
    catch_up(made)
    return made


def paged(conductor: Conductor, page: int) -> Applier:
    """An applier of CELL that reads so many events at once."""
    return Applier(conductor.ledger, conductor.cell(CELL), page=page)


class TestInstances:
    def test_a_boot_is_followed_to_its_end(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        [uuid] = ordered(cloud, conductor, 1)
        build(cloud, [uuid])
        assert applier.apply_page() is False
        mapped = cloud.mapped(uuid)
        assert (mapped.state, mapped.seen, mapped.host) == ("active", 2, cloud.row(uuid).host)
        cloud.delete(uuid)
        Deleter(cloud.api, conductor.registry).run_round()
        catch_up(applier)
        assert cloud.mapped(uuid).state == "active", "only its end is told"
        cloud.databases[CELL].write(
            instances.transition_rows, [uuid], lambda r: lifecycle.confirm_gone(r, r.host or "", 1, 80.0), 80.0
        )
        catch_up(applier)
        assert cloud.mapped(uuid).state == "deleted"
        assert cloud.evidence().claims == {}

    def test_longer_feeds_are_followed_page_by_page(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        uuids = ordered(cloud, conductor, 30, size=SMALL)
        build(cloud, uuids)
        applier = paged(conductor, cloud.databases[CELL].read(feed.read_head) - 5)
        assert applier.apply_page() is True
        assert applier.apply_page() is False
        assert set(states(cloud, uuids)) == {"active"}

    def test_a_restarted_conductor_goes_on_where_it_was(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        first, second = ordered(cloud, conductor, 2)
        build(cloud, [first])
        catch_up(applier)
        build(cloud, [second])
        again = Applier(conductor.ledger, conductor.cell(CELL))
        catch_up(again)
        assert states(cloud, [first, second]) == ["active", "active"]

    def test_the_slower_applier_continues_after_the_other(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        slower = Applier(conductor.ledger, conductor.cell(CELL))
        catch_up(slower)
        first, second = ordered(cloud, conductor, 2)
        build(cloud, [first])
        catch_up(applier)
        with pytest.raises(errors.Conflict):
            slower.apply_page()
        build(cloud, [second])
        catch_up(slower)
        assert states(cloud, [first, second]) == ["active", "active"]

    @pytest.mark.parametrize("trouble", ["lose_answer_to", "refuse_write"])
    def test_the_cursor_settles_a_page_of_unknown_outcome(
        self, cloud: World, conductor: Conductor, applier: Applier, trouble: str
    ) -> None:
        [uuid] = ordered(cloud, conductor, 1)
        build(cloud, [uuid], active=False)
        fail(cloud, uuid)
        setattr(conductor.database, trouble, 1)
        with pytest.raises(errors.DatabaseUnavailable):
            applier.apply_page()
        catch_up(applier)
        row = cloud.row(uuid)
        assert row.attempt == 2
        assert cloud.evidence().claims == {uuid: row.host}


class TestRebuild:
    def make_history(self, cloud: World, conductor: Conductor) -> dict[str, str]:
        """One instance in every state that rows can have, none of which the API level has heard of: uuid -> its summary's state."""
        uuids = ordered(cloud, conductor, 8)
        scheduled, building, moved, active, failed, deleting, deleted, _ = uuids
        cloud.databases[CELL].write(
            instances.transition_rows, [scheduled], lambda row: lifecycle.activate_row(row, row.fence, cell0=False), 69.0
        )
        build(cloud, [building, moved, failed, deleting], active=False)
        build(cloud, [active])
        fail(cloud, moved)
        while cloud.row(failed).state is not State.ERROR:
            build(cloud, [failed], active=False)
            fail(cloud, failed)
        for uuid in (deleting, deleted):
            cloud.delete(uuid)
        Deleter(cloud.api, conductor.registry).run_round()
        assert [str(cloud.row(uuid).state) for uuid in uuids] == [
            *("scheduled", "building", "scheduled", "active", "error", "deleting", "deleted", "staged")
        ]
        wanted = ("building", "building", "building", "active", "error", "building", "deleted", "building")
        return dict(zip(uuids, wanted, strict=True))

    def check(self, cloud: World, expected: dict[str, str]) -> None:
        assert states(cloud, list(expected)) == list(expected.values())
        claimed = cloud.evidence().claims
        for uuid, state in expected.items():
            assert claimed.get(uuid) == (None if state in ("error", "deleted") else cloud.row(uuid).host)
        assert sound(cloud)

    def test_a_reader_behind_a_trimmed_feed_reads_rows(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        expected = self.make_history(cloud, conductor)
        cloud.trim_feeds()
        catch_up(applier)
        self.check(cloud, expected)
        assert cloud.cursor(conductor.cell(CELL).uuid) == cloud.databases[CELL].read(feed.read_head)

    def test_a_rebuild_equals_reading_every_event(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        expected = self.make_history(cloud, conductor)
        catch_up(applier)
        self.check(cloud, expected)
        before = cloud.evidence()
        cloud.trim_feeds()
        cloud.set_back(conductor.cell(CELL).uuid)
        catch_up(Applier(conductor.ledger, conductor.cell(CELL)))
        assert cloud.evidence().claims == before.claims
        self.check(cloud, expected)

    def test_a_rebuild_covers_more_rows_than_a_page(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        uuids = ordered(cloud, conductor, 30, size=SMALL)
        build(cloud, uuids)
        cloud.trim_feeds()
        applier = paged(conductor, 20)
        catch_up(applier)
        assert set(states(cloud, uuids)) == {"active"}

    def test_events_after_a_rebuild_come_from_the_feed(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        first, second = ordered(cloud, conductor, 2)
        build(cloud, [first])
        cloud.trim_feeds()
        catch_up(applier)
        build(cloud, [second])
        assert applier.apply_page() is False
        assert states(cloud, [first, second]) == ["active", "active"]

    def test_a_feed_ending_before_the_cursor_means_restoration(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        [uuid] = ordered(cloud, conductor, 1)
        cloud.databases[CELL].write(restart_feed)
        build(cloud, [uuid])
        catch_up(applier)
        assert states(cloud, [uuid]) == ["active"]
        assert cloud.cursor(conductor.cell(CELL).uuid) == cloud.databases[CELL].read(feed.read_head) == 1

    def test_capacities_are_read_anew(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        applier.map_hosts(frozenset({"a1", "a2"}))
        tell(cloud, CELL, node("a1", vcpus=99))
        cloud.trim_feeds()
        catch_up(applier)
        applier.map_hosts(frozenset({"a1", "a2"}))
        assert inventories(cloud)["a1"].cap_vcpus == 99 * 4.0
