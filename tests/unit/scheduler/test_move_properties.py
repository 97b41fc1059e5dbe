"""Where moves may go, whatever the fleet and the move."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from objects.cell import CellState
from objects.destination import Destination
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.move import Move, MoveKind
from tests.support import fleet
from tests.support.attempts import Ledger, attempt, begun, job
from tests.support.examples import examples

HOSTS = 6
NAMES = tuple(f"h{n}" for n in range(HOSTS))
SERVER = "server"
STATES = st.sampled_from([CellState.ENABLED, CellState.DISABLED])
DESTINATIONS = st.one_of(
    st.none(),
    st.builds(
        Destination,
        host=st.sampled_from([None, None, *NAMES]),
        cell_uuid=st.sampled_from([None, None, fleet.CELLS[1]]),
        allow_cross_cell_move=st.just(True),
    ),
)
POLICIES = st.sampled_from([None, GroupPolicy.AFFINITY, GroupPolicy.ANTI_AFFINITY])


@given(
    kind=st.sampled_from(list(MoveKind)),
    same_host=st.booleans(),
    taken=st.lists(st.integers(0, 3), min_size=HOSTS, max_size=HOSTS),
    states=st.tuples(STATES, STATES),
    destination=DESTINATIONS,
    policy=POLICIES,
    others=st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
)
@examples(300)
def test_a_move_finds_a_host_whenever_rules_allow(
    kind: MoveKind,
    same_host: bool,
    taken: list[int],
    states: tuple[CellState, CellState],
    destination: Destination | None,
    policy: GroupPolicy | None,
    others: list[str],
) -> None:
    """A server of two vCPUs on h0, of which hosts have three; the rules are told again below, host by host."""
    if policy is GroupPolicy.AFFINITY:
        others = others[:1]
    ledger = Ledger(HOSTS, vcpus=3)
    ledger.table.set_topology(fleet.cells(*states), {name: fleet.CELLS[n % 2] for n, name in enumerate(NAMES)}, {})
    ledger.taken = {n + 1: used for n, used in enumerate(taken) if used}
    for row in ledger.rows(set(range(1, HOSTS + 1))):
        ledger.table.set_inventory(row, now=0.0)
    group = fleet.group(policy) if policy else None
    slots = [Slot(group_uuid=group.uuid, instance_uuid=f"of-{host}", host=host) for host in others] if group else []
    if group:
        slots.append(Slot(group_uuid=group.uuid, instance_uuid=SERVER, host="h0"))
    move = Move(kind=kind, instance_uuid=SERVER, source_host="H0", source_cell_uuid=fleet.CELLS[0])
    asked = fleet.spec(fleet.flavor(vcpus=2), group=group).for_move(move, "move", destination=destination)
    jobs = [job(asked)]
    made = attempt(ledger.table, jobs, driver=fleet.driver(allow_resize_to_same_host=same_host))
    chosen = {NAMES[key - 1] for key in begun(made, jobs, slots)}

    def allowed(n: int) -> bool:
        return (
            taken[n] <= 1
            and (n != 0 or (kind is MoveKind.RESIZE and same_host))
            and in_place(n, states, destination)
            and in_group(NAMES[n], kind, policy, others)
        )

    fine = {NAMES[n] for n in range(HOSTS) if allowed(n)}
    assert chosen <= fine
    assert bool(chosen) is bool(fine)


def in_place(n: int, states: Sequence[CellState], destination: Destination | None) -> bool:
    cell = fleet.CELLS[n % 2]
    if destination is None:
        return cell == fleet.CELLS[0]
    if destination.cell_uuid is not None and destination.cell_uuid != cell:
        return False
    is_open = states[n % 2] is CellState.ENABLED or destination.cell_uuid == cell
    return is_open and destination.host in (None, NAMES[n])


def in_group(host: str, kind: MoveKind, policy: GroupPolicy | None, others: Sequence[str]) -> bool:
    """Members on the host that is evacuated are lost with it."""
    left = [other for other in others if not (kind is MoveKind.EVACUATE and other == "h0")]
    if policy is GroupPolicy.AFFINITY and left:
        return host in left
    return not (policy is GroupPolicy.ANTI_AFFINITY and host in left)


def test_a_move_request_drops_the_boot_only_fields() -> None:
    move = Move(kind=MoveKind.RESIZE, instance_uuid=SERVER, source_host="h0", source_cell_uuid=fleet.CELLS[0])
    spec = fleet.spec(num_instances=5, min_count=2, force_hosts=("h0",), ignore_hosts=("h1",))
    asked = spec.for_move(move, "move", fleet.flavor(vcpus=9), Destination(host="h3"))
    assert msgspec.json.decode(msgspec.json.encode(asked), type=type(asked)) == asked
    assert (asked.batch_id, asked.flavor.vcpus, asked.num_instances, asked.min_count) == ("move", 9, 1, None)
    assert (asked.force_hosts, asked.ignore_hosts) == ((), ())
