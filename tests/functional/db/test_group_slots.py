"""Slots of groups as placements read them: by texts of their hosts where that is enough, one by one otherwise."""

from __future__ import annotations

import random
import string
import uuid
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
import sqlalchemy as sa

from db.api.claims import group_slots
from db.api.claims.group_slots import NewMembers
from db.sql.connection import ApiTransaction
from db.sql.engine import Database
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import GroupSlots, Slot
from tests.support import fleet

APART = [policy for policy in GroupPolicy if policy is not GroupPolicy.AFFINITY]


def new_group(policy: GroupPolicy = GroupPolicy.ANTI_AFFINITY) -> ServerGroup:
    return msgspec.structs.replace(fleet.group(policy), uuid=str(uuid.uuid4()))


def slots_of(group: ServerGroup, hosts: Sequence[str], **changes: object) -> list[Slot]:
    return [Slot(group_uuid=group.uuid, instance_uuid=str(uuid.uuid4()), host=host, **changes) for host in hosts]  # type: ignore[arg-type]  # as the tests give them


def placing(group: ServerGroup, *slots: Slot, moves: bool = False) -> NewMembers:
    """The instances of these slots are placed anew."""
    instances = tuple(slot.instance_uuid for slot in slots) or (str(uuid.uuid4()),)
    return NewMembers(group=group, fault_domain=None, instances=instances, moves=moves)


def lines(text: str) -> Counter[str]:
    return Counter(text.split("\n") if text else ())


def told(group: GroupSlots) -> Counter[tuple[str, bool]]:
    """All slots by host, held ones apart."""
    found = Counter((slot.host, slot.held) for slot in group.slots)
    for held, text in ((False, group.placed), (True, group.held)):
        found.update({(host, held): count for host, count in lines(text).items()})
    return found


def domains(group: GroupSlots) -> Counter[tuple[str, str]]:
    one_by_one = Counter((slot.fault_domain, slot.host) for slot in group.slots if slot.fault_domain is not None)
    return one_by_one + Counter(group.in_domains)


def test_they_are_passed_as_texts_except_placed_instances(database: Database) -> None:
    chance = random.Random(7)
    for _ in range(20):
        groups = [
            new_group(chance.choice([policy for policy in GroupPolicy if policy is not GroupPolicy.AFFINITY])) for _ in range(3)
        ]
        slots = [
            slot
            for group in groups
            for _ in range(chance.choice((0, 1, 30)))
            for slot in slots_of(
                group,
                ["".join(chance.choices(string.ascii_letters + "-.ä", k=chance.randrange(1, 20)))],
                held=chance.random() < 0.3,
                fault_domain=chance.choice((None, None, "a", "A")),
            )
        ]
        database.write(group_slots.add_slots, slots)
        placed = [slot for slot in slots if chance.random() < 0.1]
        asks = [placing(group, *(slot for slot in placed if slot.group_uuid == group.uuid)) for group in groups]
        found = {group.group_uuid: group for group in database.read(group_slots.read_to_place, asks)}
        assert found.keys() == {group.uuid for group in groups}
        for uuid_, group in found.items():
            theirs = [slot for slot in slots if slot.group_uuid == uuid_]
            assert told(group) == Counter((slot.host, slot.held) for slot in theirs)
            assert domains(group) == Counter((slot.fault_domain, slot.host) for slot in theirs if slot.fault_domain is not None)
            assert sorted(group.slots, key=repr) == sorted((slot for slot in placed if slot.group_uuid == uuid_), key=repr)


def test_moves_and_related_members_are_passed_individually(database: Database) -> None:
    moved, apart, together = new_group(), new_group(GroupPolicy.AFFINITY), new_group(GroupPolicy.AFFINITY)
    slots = {
        moved.uuid: slots_of(moved, ["h1", "h2"]),
        apart.uuid: slots_of(apart, ["h1", "h2"]),
        together.uuid: slots_of(together, ["h1", "H1"]),
    }
    database.write(group_slots.add_slots, [slot for some in slots.values() for slot in some])
    found = database.read(group_slots.read_to_place, [placing(moved, moves=True), placing(apart), placing(together)])
    by_uuid = {group.group_uuid: group for group in found}
    assert lines(by_uuid[together.uuid].placed) == Counter(["h1", "H1"])
    for group in (moved, apart):  # users see no bodies of these instances: they count as moving
        assert sorted(by_uuid[group.uuid].slots, key=repr) == sorted(
            (msgspec.structs.replace(slot, moving=True) for slot in slots[group.uuid]), key=repr
        )


@pytest.mark.parametrize("count", [500, 501])
def test_large_batches_are_passed_one_by_one(database: Database, count: int) -> None:
    group = new_group()
    slots = slots_of(group, [f"h{n}" for n in range(3)])
    database.write(group_slots.add_slots, slots)
    batch = NewMembers(group=group, fault_domain=None, instances=tuple(str(n) for n in range(count)))
    [found] = database.read(group_slots.read_to_place, [batch])
    assert len(found.slots) == (0 if count == 500 else 3)
    assert told(found) == Counter((slot.host, False) for slot in slots)


def test_a_name_ending_in_newline_names_no_other(database: Database) -> None:
    group = new_group()
    database.write(group_slots.add_slots, slots_of(group, ["h1\nh2", "h3"]))
    [found] = database.read(group_slots.read_to_place, [placing(group)])
    assert {slot.host for slot in found.slots} == {"h1\nh2", "h3"}
    assert (found.placed, found.held) == ("", "")


def test_a_text_truncated_by_the_server_is_unused(database: Database) -> None:
    if database.read(lambda tx: tx.dialect.name) not in ("mysql", "mariadb"):
        pytest.skip("only MariaDB and MySQL have a limit")
    group = new_group()
    slots = slots_of(group, [f"host-{n:04}" for n in range(500)])
    database.write(group_slots.add_slots, slots)

    def read(tx: ApiTransaction, limit: int) -> list[GroupSlots]:
        tx.execute(sa.text(f"SET SESSION group_concat_max_len = {limit}"))
        try:
            return group_slots.read_to_place(tx, [placing(group)])
        finally:
            tx.execute(sa.text("SET SESSION group_concat_max_len = DEFAULT"))

    for limit in (1024, 10 * 500 - 2, 10 * 500 - 1):
        [found] = database.read(read, limit)
        assert bool(found.slots) is (limit < 10 * 500 - 1)
        assert told(found) == Counter((slot.host, False) for slot in slots)
