"""Whatever two schedulers are asked, and again, in whatever order: no host is over-full, policies hold, answers stay."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from db.api.queue import builds
from objects import errors
from objects.group import GroupPolicy, ServerGroup
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.databases import api_database
from tests.support.fleet import CELLS, CONTEXT, Site

Answer = list[list[Selection]]

NODES = st.lists(st.integers(1, 4), min_size=2, max_size=5)
"""vCPUs of each host."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("boot"), st.integers(1, 3), st.integers(1, 2), st.sampled_from([None, None, 0, 1])),
        st.tuples(st.just("again"), st.integers(0, 9)),
        st.tuples(st.just("refenced"), st.integers(0, 9)),
        st.tuples(st.just("elsewhere"), st.integers(0, 9), st.integers(0, 1)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
    ),
    min_size=3,
    max_size=14,
)


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = api_database(Path(folder))
        yield made
        made.dispose_connections()


class World:
    """A site, two schedulers that take turns, and what they have answered."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.schedulers = [site.scheduler(), site.scheduler()]
        self.turn = 0
        self.groups = [fleet.group(GroupPolicy.ANTI_AFFINITY), fleet.group(GroupPolicy.AFFINITY)]
        self.batches: list[RequestSpec] = []
        self.answers: dict[str, Answer] = {}
        self.ended: set[str] = set()

    @property
    def scheduler(self) -> SchedulerManager:
        self.turn += 1
        return self.schedulers[self.turn % 2]

    def ask(self, asked: RequestSpec) -> Answer | None:
        """None: there was no room, or not now."""
        try:
            return self.scheduler.select_destinations(CONTEXT, asked, list(asked.fences))
        except (errors.NoValidHost, errors.Conflict):
            return None

    def boot(self, count: int, vcpus: int, group: int | None) -> None:
        made: ServerGroup | None = None if group is None else self.groups[group]
        asked = self.site.leased(fleet.spec(fleet.flavor(vcpus), group=made, max_attempts=1), count)
        self.batches.append(asked)
        self.remember(asked, self.ask(asked))

    def remember(self, asked: RequestSpec, answer: Answer | None) -> None:
        if answer is None:
            assert not self.answers.get(asked.batch_id), "who has claims is answered"
            return
        living = [uuid for uuid in asked.fences if uuid not in self.ended]
        assert [bool(each) for each in answer] == [uuid in living for uuid in asked.fences]
        claimed = self.site.claimed()
        for uuid, selections in zip(asked.fences, answer, strict=True):
            assert claimed.get(uuid) == (selections[0].host if selections else None)
        self.answers[asked.batch_id] = answer

    def again(self, number: int) -> None:
        """The same fence: the same answer, from whichever scheduler, as far as its requests live."""
        asked = self.pick(number)
        before, claims = self.answers.get(asked.batch_id), self.site.claimed()
        answer = self.ask(asked)
        if before is None:
            self.remember(asked, answer)
            return
        gone = [uuid in self.ended for uuid in asked.fences]
        assert answer == [[] if over else each for over, each in zip(gone, before, strict=True)]
        assert self.site.claimed() == claims

    def refenced(self, number: int) -> None:
        """A new fence adopts the claims there are."""
        asked = self.pick(number)
        before = self.answers.get(asked.batch_id)
        newer = self.anew(number)
        answer = self.ask(newer)
        self.remember(newer, answer)
        if before is not None and answer is not None:
            hosts = [[each[0].host] if each else [] for each in answer]
            known = dict(zip(asked.fences, before, strict=True))
            assert hosts == [[known[uuid][0].host] if known[uuid] else [] for uuid in newer.fences]

    def elsewhere(self, number: int, cell: int) -> None:
        """A new fence without a cell: what is there moves, or stays where it was if nothing fits."""
        newer = self.anew(number, excluded_cells=(CELLS[cell],))
        claims = self.site.claimed()
        answer = self.ask(newer)
        if answer is None:
            assert self.site.claimed() == claims
            self.answers.pop(newer.batch_id, None)
        else:
            assert not [each for selections in answer for each in selections if each.cell_uuid == CELLS[cell]]
            self.remember(newer, answer)

    def anew(self, number: int, **changes: Any) -> RequestSpec:
        index = number % len(self.batches)
        newer = self.site.refenced(self.batches[index], **changes)
        self.batches[index] = newer
        return newer

    def delete(self, number: int) -> None:
        """The first server of the batch that is left."""
        asked = self.pick(number)
        for uuid in asked.fences:
            if uuid not in self.ended:
                self.site.ledger.write(builds.delete, uuid, project_id=None, now=time.time())
                self.ended.add(uuid)
                assert uuid not in self.site.claimed()
                break

    def pick(self, number: int) -> RequestSpec:
        return self.batches[number % len(self.batches)]

    def check(self) -> None:
        assert self.site.overfull() == []
        members: dict[str, Counter[str]] = {group.uuid: Counter() for group in self.groups}
        for slot in self.site.slots():
            members[slot.group_uuid][slot.host] += 1
        apart, together = (members[group.uuid] for group in self.groups)
        assert max(apart.values(), default=0) <= 1
        assert len(together) <= 1
        assert not self.ended & self.site.claimed().keys()


@given(NODES, STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_asking_again_and_ending_in_any_order(database: Any, vcpus: list[int], steps: list[tuple[Any, ...]]) -> None:
    world = World(Site.anew(database, [fleet.node(f"h{n}", vcpus=each) for n, each in enumerate(vcpus)]))
    world.boot(1, 1, None)
    world.check()
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
        world.check()
