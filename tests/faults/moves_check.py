"""Search the model of moves for a state that breaks an invariant, exhaustively or by random walks.

    python -m tests.faults.moves_check                       every state of several small worlds, then random walks (minutes)
    python -m tests.faults.moves_check --each                every guard removed in turn: the shortest violation without it
    python -m tests.faults.moves_check --kinds resize --faults 0 --without verify-state
    python -m tests.faults.moves_check --walks 20000 --hosts a1:A,a2:A,b1:B --bodies 4 --operations 4 --faults 4

hold-done, hold-number and keys-stay show nothing within these bounds; without hold-repeats, hold-done does.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from tests.faults import model_search
from tests.faults.model_search import ENVIRONMENT, FAULT, PROTOCOL, Label, Result, show
from tests.faults.moves_model import GUARDS, MOVES, NO_TWIN, SOFT_DELETE, TASKS, Guest, Model, Row, State, runs
from tests.faults.moves_steps import steps

PERMITS = ("SCHEDULED", "BUILDING", "ACTIVE")
"""States in which a body's row permits it to run, if its power does."""


class World(NamedTuple):
    """What a search is about. ``kinds`` joined by +; ``hosts`` as host:cell, joined by commas."""

    kinds: str
    hosts: str
    faults: int
    operations: int = 1
    bodies: int = 2
    failing: bool = False

    def model(self, *, deletes: bool = True, without: Collection[str] = ()) -> Model:
        return Model(
            [(host, cell) for host, cell in (item.split(":") for item in self.hosts.split(","))],
            kinds=self.kinds.split("+"),
            faults=self.faults,
            operations=self.operations,
            bodies=self.bodies,
            deletes=deletes,
            failing=self.failing,
            without=without,
        )

    def __str__(self) -> str:
        return f"{self.operations} x {self.kinds} on {self.hosts}, faults {self.faults}{', drivers too' if self.failing else ''}"


EVERYTHING = "+".join((*MOVES, *TASKS, SOFT_DELETE))
ONE, TWO, THREE = "a1:A", "a1:A,b1:B", "a1:A,a2:A,b1:B"
MIGRATION = World("migrate", TWO, 0)
SHELVE = World("shelve", ONE, 1, bodies=2)
IMAGE = World("image", ONE, 1, bodies=1)
RESTORED = World(SOFT_DELETE, ONE, 1, bodies=1)
INTERFACE = World("attach+detach", ONE, 1, bodies=1)
WORLDS = [
    MIGRATION,
    World("migrate", THREE, 0),
    World("resize", TWO, 0),
    World("stop+start+reboot+fail", ONE, 1, bodies=1),
    World("evacuate", TWO, 1),
    World("migrate", TWO, 1),
    SHELVE,
    IMAGE,
    RESTORED,
    INTERFACE,
    World("rescue+unrescue", ONE, 0, operations=2, bodies=1),
]
"""Worlds that are searched to their end. With ``--no-delete`` this is possible for two operations in place, too."""
SOONEST = {
    World("shelve+unshelve", ONE, 0, operations=2, bodies=3): ("snapshot-first", "snapshot-off", "snapshot-kept"),
    World("image", ONE, 0, bodies=1): ("image-told", "image-gone"),
    RESTORED: ("reclaim-state",),
    World("attach", ONE, 0, bodies=1): ("nic-gone",),
    World("detach+stop", ONE, 0, operations=2, bodies=1): ("nic-over",),
    World("attach+evacuate", TWO, 1, operations=2): ("nic-mends",),
    World("stop+start", ONE, 0, operations=2, bodies=1): ("ask-number",),
    World("stop+start", ONE, 1, operations=2, bodies=1): ("done-number", "begin"),
    World("reboot", ONE, 1, bodies=1): ("begin-over", "resume-failed"),
    World("reboot", ONE, 2, bodies=1): ("reboot-once",),
    World("evacuate", TWO, 1): ("hold-row", "keys-stay"),
    World("migrate", TWO, 2): ("return-asks",),
    World("migrate", TWO, 1, failing=True): ("hold-repeats", "hold-done"),
    World("stop+evacuate", TWO, 1, operations=2): ("ended-task",),
    World("stop+migrate", TWO, 0, operations=2): ("hold-number",),
    World("migrate", TWO, 0, operations=2, bodies=3): ("one-op",),
    World("resize", TWO, 0): ("undo-state", "verify-state", "revert-hold", "new-size"),
}
"""The world in which a guard is missed soonest; of all others MIGRATION."""


def soonest(guard: str) -> World:
    return next((world for world, guards in SOONEST.items() if guard in guards), MIGRATION)


# -- what must hold ---------------------------------------------------------------------------------------------------------


def unsafe(s: State) -> str | None:
    """The invariant that this state breaks, if any. Checked in every state."""
    return (
        s.broken
        or unsafe_images(s)
        or unsafe_runs(s)
        or unsafe_books(s)
        or unsafe_server(s)
        or unsafe_ends(s)
        or unsafe_interfaces(s)
    )


def unsafe_runs(s: State) -> str | None:
    permitted = [body for body, row in enumerate(s.rows) if row and row.state in PERMITS and runs(row.power)]
    if len(permitted) > 1:
        return f"M0 the rows of two bodies permit them to run: {permitted}"
    running = [(guest.body, guest.host) for guest in s.guests if guest.on and (guest.body, guest.host) not in s.dead]
    if len(running) > 1:
        return f"M1 two bodies run, and neither host was called dead: {running}"
    return None


def unsafe_images(s: State) -> str | None:
    missing = [number for number in s.listed if (number, "full") not in s.images]
    return f"M11 images are listed that are not complete: {missing}" if missing else None


def unsafe_books(s: State) -> str | None:
    shown = [body for body, mapping in enumerate(s.mappings) if mapping and not mapping.hidden]
    if shown != [s.pointer]:
        return f"M2 the server is shown as {shown}, the pointer names {s.pointer}"
    if s.quota != sum(mapping.charge for mapping in s.mappings if mapping and not mapping.deleted):
        return "M3 the quota is not the sum over the bodies that are not deleted"
    if any(row and row.state in PERMITS and not claim for row, claim in zip(s.rows, s.claims, strict=True)):
        return "M4 a live body without a claim"
    return None


def unsafe_server(s: State) -> str | None:
    if s.gone:
        return None
    shown = s.mapping(s.pointer)
    if shown.deleted:
        return "M5 the server is a deleted body"
    if shown.told == "shelved":
        return None if (shown.image, "full") in s.images else "M7 no complete snapshot is left of a shelved server"
    row = s.rows[s.pointer]
    if row is None or row.state != "ACTIVE":
        return f"M6 the server is a body that is {row and row.state}"
    if not any(guest.disk == "full" and not s.mapping(guest.body).deleted for guest in s.guests):
        return "M7 no complete disk is left"
    if any(guest.body == s.pointer and guest.disk == "torn" for guest in s.guests):
        return "M8 the server is a torn copy"
    return None


def unsafe_ends(s: State) -> str | None:
    for guest in s.guests:
        row = s.rows[guest.body]
        if row and row.state == "ACTIVE" and row.task == "done" and guest.on and guest.host == row.host and not runs(row.power):
            return "M9 a row says off, done, and its guest runs"
    if any(request and s.mapping(body).deleted for body, request in enumerate(s.requests)):
        return "M10 a request goes on of a body that was given up or deleted"
    return None


def unsafe_interfaces(s: State) -> str | None:
    """An address that is free may be given to another server at any time."""
    if s.gone or s.nic:
        return None
    using = [guest for guest in s.guests if guest.nic and (guest.on or guest.body == s.pointer)]
    using = [guest for guest in using if (guest.body, guest.host) not in s.dead]
    return f"M12 an address is free that a guest has: {using[0]}" if using else None


def unfinished(s: State) -> str | None:
    """The end invariant that this state breaks, if any. Checked where no step of the protocol is left."""
    operation = s.operation
    if operation is not None and operation.state not in ("verify", "soft-deleted"):
        return f"E1 the operation stays {operation.state}"
    shelved = {mapping.image for mapping in s.mappings if mapping and not mapping.deleted and mapping.image}
    left = {number for number, _ in s.images} - s.listed - shelved
    if left and operation is None and not s.dead:
        return f"E7 images stay that nothing needs: {left}"
    keep = {operation.source, operation.twin} - {NO_TWIN} if operation else set() if s.gone else {s.pointer}
    for body, row in enumerate(s.rows):
        here = [guest for guest in s.guests if guest.body == body]
        if broken := not_settled(s, body, row, here) if body in keep else left_behind(s, body, row, here):
            return broken
    charge = 0 if s.gone else max(s.sizes[body] for body in keep)
    return f"E6 charged {s.quota}, not {charge}" if s.quota != charge else None


def left_behind(s: State, body: int, row: Row | None, here: list[Guest]) -> str | None:
    mapping, claim, request = s.mappings[body], s.claims[body], s.requests[body]
    if mapping and not mapping.deleted:
        return f"E4 body {body} is left for ever"
    if here or claim or request or (row and row.state != "DELETED"):
        return f"E5 left of body {body}: guests {len(here)}, claim {claim}, request {request}, row {row and row.state}"
    return None


def not_settled(s: State, body: int, row: Row | None, here: list[Guest]) -> str | None:
    if s.mapping(body).told == "shelved":
        return f"E2 body {body} is shelved, and on a host: {here}" if here or s.claims[body] else None
    on = body == s.pointer and s.want in ("on", "rescue")
    settled = row and not s.mapping(body).deleted and row.state == "ACTIVE" and s.claims[body] == row.host
    if not row or not settled or [guest.host for guest in here] != [row.host]:
        return f"E2 body {body}: {row and row.state}, claim {s.claims[body]}, guests {here}"
    if s.failed and row.task == "failed":
        return None  # the server stays as its host left it
    if body == s.pointer and here[0].nic != s.nic:
        return f"E8 the server has {'an' if s.nic else 'no'} interface, and its guest {'one' if here[0].nic else 'none'}"
    if body == s.pointer and (row.power.split()[-1] == "rescue") != (s.want == "rescue"):
        return f"E3 the server should be {s.want}: {row.power}"
    if runs(row.power) != on or here[0].on != on or row.task not in ("done", "failed"):
        return f"E3 body {body} should be {'on' if on else 'off'}: {row.power}, {row.task}, guest {'on' if here[0].on else 'off'}"
    return None


def outcome(s: State) -> str:
    """How a state at rest ended, to show that the checks are not vacuous."""
    if s.gone:
        return "deleted"
    if s.operation:
        return s.operation.state if s.operation.kind == SOFT_DELETE else "waits for confirm or revert"
    if s.mapping(s.pointer).told == "shelved":
        return "shelved"
    return f"body {s.pointer} {'on' if runs(s.row(s.pointer).power) else 'off'}, size {s.sizes[s.pointer]}"


# -- the search -------------------------------------------------------------------------------------------------------------


def search(model: Model, limit: int = 0) -> Result:
    """Every state, or ``limit`` of them; see ``model_search.search``."""
    return model_search.search(model.initial(), partial(steps, model), unsafe, unfinished, outcome, limit)


RARE = {"user deletes": 0.02, "operation's deadline": 0.05}
"""How often a walk considers these: else hardly any move would come to its end."""


def walk(model: Model, rng: random.Random, length: int = 250) -> Result:
    """One random schedule, then a random drain without faults, to rest."""
    s = model.initial()
    trace: list[Label] = []
    restless, free = rng.choice((0.05, 0.15, 0.4)), rng.choice((0.02, 0.06, 0.15))
    for i in range(length * 8):
        # sets have no order of their own: a seed must mean one run
        options = sorted(steps(model, s), key=lambda option: repr(option[0]))
        options = [option for option in options if rng.random() < RARE.get(str(option[0][0]), 1.1)]
        work = [option for option in options if option[1] == PROTOCOL]
        if not work:
            broken = unfinished(s)
            if broken or i >= length or not options:
                return Result(broken, trace, ends=Counter([outcome(s)]))
        r = rng.random()
        cost = PROTOCOL if i >= length else FAULT if r < restless else ENVIRONMENT if r < restless + free else PROTOCOL
        label, _, s = rng.choice([option for option in options if option[1] == cost] or options)
        trace.append(label)
        if broken := unsafe(s):
            return Result(broken, trace)
    return Result("E0 does not come to rest", trace)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", help=f"some of {EVERYTHING}")
    parser.add_argument("--hosts", default=TWO, help="host:cell list")
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--operations", type=int, default=1)
    parser.add_argument("--bodies", type=int, default=2)
    parser.add_argument("--failing", action="store_true", help="drivers may fail tasks, as faults")
    parser.add_argument("--no-delete", action="store_true")
    parser.add_argument("--without", action="append", default=[], choices=sorted(GUARDS))
    parser.add_argument("--each", action="store_true", help="remove every guard in turn, each in a world that needs it")
    parser.add_argument("--limit", type=int, default=0, help="stop after so many states")
    parser.add_argument("--walks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    asked = World(options.kinds or EVERYTHING, options.hosts, options.faults, options.operations, options.bodies, options.failing)
    limit, deletes = options.limit, not options.no_delete
    if options.each:
        found = [check(soonest(guard), 0, options.seed, limit or 600_000, without=[guard]) for guard in options.without or GUARDS]
    elif options.kinds or options.walks:
        found = [check(asked, options.walks, options.seed, limit, deletes=deletes, without=options.without)]
    else:
        found = [check(world, 0, options.seed, limit) for world in WORLDS]
        found.append(check(World(EVERYTHING, THREE, 4, operations=4, bodies=4), 1000, 7))
    return int(any(found))


def check(world: World, walks: int, seed: int, limit: int = 0, *, deletes: bool = True, without: Sequence[str] = ()) -> bool:
    """Search or walk, print what came of it, and return whether an invariant is broken."""
    print(f"without {', '.join(without)}: {world}" if without else f"all guards: {world}", flush=True)
    model, began = world.model(deletes=deletes, without=without), time.monotonic()
    found = model_search.walks(partial(walk, model), walks, seed) if walks else search(model, limit)
    show(found, time.monotonic() - began)
    return found.broken is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
