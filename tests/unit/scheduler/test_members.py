"""Members of a group are counted alike, whether their slots are told one by one or by a text of their hosts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from objects.inventory import Slot
from scheduler.framework import members as members_module
from scheduler.framework.members import Members
from scheduler.table import named_rows
from scheduler.table.named_rows import NamedRows
from tests.support import fleet

HOSTS = [f"H{n}" for n in range(12)]
DOMAINS = (None, None, "a", "b")


class World:
    """Hosts, two of which have two nodes if ``several``, and a group; ``expected``: what is to be counted, by host and kind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.index: dict[str, tuple[int, ...]] = {
            host.lower(): (row,) for row, host in enumerate(HOSTS[:-1])
        }  # the last is unknown
        self.names = list(HOSTS[:-1])
        if self.chance.random() < 0.3:
            self.index["h0"] = (0, len(self.names))
            self.names.append("h0")
        self.named = NamedRows(self.index, self.names)
        self.slots = [
            Slot(
                group_uuid="g",
                instance_uuid=str(n),
                host=self.chance.choice(HOSTS),
                held=self.chance.random() < 0.3,
                fault_domain=self.chance.choice(DOMAINS),
            )
            for n in range(self.chance.choice((0, 1, 5, 30)))
        ]
        self.own = [slot for slot in self.slots if self.chance.random() < 0.2] if self.chance.random() < 0.5 else []
        left = [slot for slot in self.slots if slot not in self.own]
        self.expected = {held: Counter(slot.host.lower() for slot in left if slot.held is held) for held in (False, True)}
        self.in_domains = Counter((slot.fault_domain, slot.host.lower()) for slot in left if slot.fault_domain is not None)

    def made(self) -> list[Members]:
        """The members without the group's own slots: all told one by one, as few as may be, and those of a copy."""
        one_by_one = Members(self.slots).view_without(self.own)
        groups = fleet.by_group(self.slots, self.own)
        if not groups:
            return [one_by_one]
        [group] = groups
        shared = Members(group.slots, group)
        return [one_by_one, shared.view_without(group.slots) if group.slots else shared, one_by_one.copy_counts()]

    def check(self, members: Members) -> None:
        for with_held in (False, True):
            total = self.expected[False] + (self.expected[True] if with_held else Counter())
            assert members.counts_by_host(with_held=with_held) == dict(total)
            by_row = np.array([total[name.lower()] for name in self.names])
            assert members.by_row(self.named, len(self.names), with_held=with_held).tolist() == by_row.tolist()
            for least in (1, 2):
                assert (
                    members.rows_with_members(self.named, least, with_held=with_held).tolist()
                    == np.flatnonzero(by_row >= least).tolist()
                )
            rows = np.array(self.chance.sample(range(len(self.names)), self.chance.randrange(len(self.names))), np.int64)
            assert members.of_rows(self.named, rows, with_held=with_held).tolist() == by_row[rows].tolist()
        assert members.any_held == bool(self.expected[True])
        assert members.any_placed == bool(self.expected[False])
        for domain in ("a", "c"):
            assert members.of_other_domains(domain) == {host for each, host in self.in_domains if each != domain}


class Steps:
    """What plans do to the members."""

    def __init__(self, world: World) -> None:
        self.world, self.made = world, world.made()
        self._marks: list[tuple[list[int], dict[bool, Counter[str]], Counter[tuple[str, str]]]] = []

    def add(self) -> None:
        world, host, domain = self.world, self.world.chance.choice(HOSTS), self.world.chance.choice(DOMAINS)
        for each in self.made:
            each.add_member(host, domain)
        world.expected[False][host.lower()] += 1
        if domain is not None:
            world.in_domains[domain, host.lower()] += 1

    def hold(self) -> None:
        host = self.world.chance.choice(HOSTS)
        for each in self.made:
            each.hold_slot(host)
        self.world.expected[True][host.lower()] += 1

    def begin(self) -> None:
        world = self.world
        expected = {held: each.copy() for held, each in world.expected.items()}
        self._marks.append(([each.undo_mark for each in self.made], expected, world.in_domains.copy()))

    def undo(self) -> None:
        if self._marks:
            marks, self.world.expected, self.world.in_domains = self._marks.pop()
            for each, mark in zip(self.made, marks, strict=True):
                each.give_back(mark)


@pytest.mark.parametrize("seed", range(60))
def test_members_count_alike_while_plans_add_and_return(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(members_module, "FEW_ROWS", 2)
    if seed % 3:
        monkeypatch.setattr(members_module, "SHORT_TEXT", -1)
    world = World(seed)
    steps = Steps(world)
    each_step: list[Callable[[], None]] = [steps.add, steps.add, steps.hold, steps.begin, steps.undo]
    for _ in range(25):
        for each in steps.made:
            world.check(each)
        world.chance.choice(each_step)()


def test_a_view_sees_additions_of_the_others() -> None:
    slots = [Slot(group_uuid="g", instance_uuid=str(n), host=f"h{n}") for n in range(3)]
    shared = Members(slots)
    one, other = shared.view_without(slots[:1]), shared.view_without(slots[1:2])
    one.add_member("h7")
    assert one.counts_by_host(with_held=True) == {"h1": 1, "h2": 1, "h7": 1}
    assert other.counts_by_host(with_held=True) == {"h0": 1, "h2": 1, "h7": 1}
    assert other.taken_hosts == {"h7"}
    other.give_back(0)
    assert one.counts_by_host(with_held=True) == {"h1": 1, "h2": 1}


class CountingIndex(dict[str, tuple[int, ...]]):
    asked = 0

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]  # one of its overloads is enough here
        self.asked += 1
        return super().get(name, default)


def test_only_new_names_of_another_text_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_rows, "RECENT_NAMES", 0)
    index = CountingIndex({f"h{n}": (n,) for n in range(400)})
    named, chance = NamedRows(index), random.Random(4)
    names = chance.sample(sorted(index), 200)
    assert named.of_text("g", "\n".join(names)) is not None
    for _ in range(200):
        index.asked = 0
        place = chance.randrange(len(names) + 1)
        if chance.random() < 0.5 and len(names) > 1:
            del names[place : place + 1]
        else:
            names.insert(place, chance.choice((*index, "nowhere")).upper())
        found = named.of_text("g", "\n".join(names))
        assert found is not None
        assert found.tolist() == [int(name[1:]) if name != "NOWHERE" else -1 for name in names]
        assert index.asked <= 3


@pytest.mark.parametrize("seed", range(30))
def test_any_text_may_follow_any_other(seed: int) -> None:
    chance = random.Random(seed)
    named = NamedRows({name: (row,) for row, name in enumerate(("a", "aa", "ab", "b", "ba"))})
    for _ in range(200):
        names = chance.choices(("a", "aa", "ab", "b", "ba", "c"), k=chance.randrange(7))
        found = named.of_text("g", "\n".join(names))
        assert found is not None
        assert found.tolist() == [{"a": 0, "aa": 1, "ab": 2, "b": 3, "ba": 4}.get(name, -1) for name in names]


def test_texts_are_forgotten_when_many_or_outdated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_rows, "RECENT_TEXTS", 2)
    table = fleet.table([fleet.node(f"h{n}") for n in range(3)])
    for group in range(5):
        rows = table.named_rows.of_text(group, f"h2\nh{group}\nh9")
        assert rows is not None
        assert rows.tolist() == [2, group if group < 3 else -1, -1]
    table.set_nodes(fleet.CELLS[0], [fleet.node("h9")])
    rows = table.named_rows.of_text(4, "h2\nh4\nh9")
    assert rows is not None
    assert rows.tolist() == [2, -1, 3]
    table.set_nodes(fleet.CELLS[0], [fleet.node("h9", node="other")])
    assert table.named_rows.of_text(4, "h2\nh4\nh9") is None
