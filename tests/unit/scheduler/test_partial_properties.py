"""How many of a batch are placed, whatever there is room for and whatever others take meanwhile."""

from __future__ import annotations

import time
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from objects.group import GroupPolicy
from objects.inventory import Standing
from objects.selection import Selection
from tests.support import fleet
from tests.support.attempts import Ledger, attempt, begun, job
from tests.support.examples import examples

HOSTS, ROOM = 4, 3
TAKEN = st.lists(st.integers(0, ROOM), min_size=HOSTS, max_size=HOSTS)


def test_an_unreachable_cell_is_not_awaited() -> None:
    """Of two hosts for two servers each the one is in a cell of which nothing is heard."""
    for least, placed in ((2, 2), (None, 0)):
        ledger = Ledger(2, vcpus=2)
        now = time.monotonic()
        ledger.table.set_service(fleet.CELLS[1], "h1", now - 100.0, disabled=False, forced_down=False)
        asked = job(fleet.spec(), 3)
        asked.spec = msgspec.structs.replace(asked.spec, num_instances=3, min_count=least)
        made = attempt(ledger.table, [asked], alive_since=now - 60.0)
        wanted = begun(made, [asked])
        if wanted:
            assert not made.confirm_locked(ledger.rows(wanted))
        [placements], _ = made.finish_plan()
        assert len(placements) == placed
        assert asked.unheard == (() if placed else ("cell2",))


@given(
    taken=TAKEN,
    count=st.integers(1, 10),
    least=st.one_of(st.none(), st.integers(1, 10)),
    kept=st.integers(0, 2),
    policy=st.sampled_from([None, None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY]),
)
@examples(300)
def test_a_sufficient_part_of_a_batch_is_placed(
    taken: list[int], count: int, least: int | None, kept: int, policy: GroupPolicy | None
) -> None:
    """Others take their part between the plan and the locks. Some of the batch may have been placed by an earlier call."""
    least = None if least is None else min(least, count)
    kept = 0 if policy else min(kept, count - 1)
    ledger = Ledger(HOSTS, vcpus=ROOM)
    asked = job(fleet.spec(group=fleet.group(policy) if policy else None, max_attempts=1), count)
    asked.spec = msgspec.structs.replace(asked.spec, num_instances=count, min_count=least)
    place = Selection(host="h0", node="h0", cell_uuid=fleet.CELLS[0])
    before: dict[str, tuple[Selection, ...]] = dict.fromkeys(asked.uuids[:kept], (place,))
    made = attempt(ledger.table, [asked])
    wanted = set(made.plan_jobs([], [Standing(kept=before, needed=asked.uuids[kept:])], ()))
    ledger.taken = {n + 1: used for n, used in enumerate(taken) if used}
    for _ in range(HOSTS):
        wanted = set(made.confirm_locked(ledger.rows(wanted))) if wanted else set()
    [placements], _ = made.finish_plan()
    used = Counter(placement.inventory_id for placement in placements)
    assert all(amount <= ROOM - taken[key - 1] for key, amount in used.items())
    free = [ROOM - amount for amount in taken]
    room = {None: sum(free), GroupPolicy.AFFINITY: max(free), GroupPolicy.ANTI_AFFINITY: sum(map(bool, free))}[policy]
    fitting = min(count - kept, room)
    enough = count - kept if least is None else max(least - kept, 0 if kept else 1)
    if asked.short is not None and not asked.partial:  # refused: on what the plan or the locked rows told, there is too little
        assert not placements
        assert fitting < enough
    else:
        assert enough <= len(placements) <= fitting
