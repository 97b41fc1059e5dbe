"""Search the protocol model for a state that breaks an invariant, exhaustively or by random walks.

    python -m tests.faults.protocol_check --faults 2                     every state of one request (minutes)
    python -m tests.faults.protocol_check --without inert-stage          the shortest violation without that guard
    python -m tests.faults.protocol_check --each --limit 260000          every guard in turn
    python -m tests.faults.protocol_check --requests 2 --faults 8 --walks 100000 --seed 1
    python -m tests.faults.protocol_check --sibling --faults 1          an all-or-nothing batch
    python -m tests.faults.protocol_check --hold --faults 1             a hold

local-claim and feed-order show what they are for with ``--requests 2`` only, guards of batches with ``--sibling``, those of holds
with ``--hold``; redundant guards show nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.faults import model_search, protocol_batch, protocol_hold
from tests.faults.model_search import FAULT, PROTOCOL, Label, Result, show
from tests.faults.protocol_model import CELL0, GUARDS, Model, Row, State
from tests.faults.protocol_steps import steps

# -- what must hold ---------------------------------------------------------------------------------------------------------


def unsafe(model: Model, s: State) -> str | None:
    """The safety invariant that this state breaks, if any. Checked in every state."""
    for host in model.names:
        if len(model.agent(s, host).guests) > model.cap:
            return f"S1 host {host} runs more guests than it has room for"
    for r in range(model.n):
        broken = unsafe_guests(model, s, r) or unsafe_rows(model, s, r) or unsafe_instance(model, s, r)
        if broken:
            return broken
    return protocol_batch.unsafe(s) or protocol_hold.unsafe(s)


def guests_of(model: Model, s: State, r: int) -> list[tuple[str, int]]:
    """(host, attempt) of every guest that runs for a request."""
    return [(host, g[1]) for host in model.names for g in model.agent(s, host).guests if g[0] == r]


def unsafe_guests(model: Model, s: State, r: int) -> str | None:
    guests = guests_of(model, s, r)
    if len(guests) > 1 and not s.suspected[r]:
        return "S2 two guests of one request, and no host was ever called dead"
    if any(s.mapping[r].cell != model.cell_of[host] for host, _ in guests):
        return "S3 a guest in a cell the mapping does not name (before hand over, or second cell)"
    return None


def unsafe_rows(model: Model, s: State, r: int) -> str | None:
    cell, deleted = s.mapping[r].cell, s.mapping[r].deleted
    rows = {c: row for c in model.cells if (row := model.row(s, c, r))}
    acting = [c for c, row in rows.items() if row.state not in ("STAGED", "DELETED")]
    if len(acting) > 1 or (acting and acting[0] != cell):
        return "S4 a row that acts in a cell the mapping does not name"
    if not deleted and cell is None and s.br[r] is None:
        return "S5 invisible: no request and no mapping"
    without = cell is not None and cell not in rows and cell != CELL0  # cell0 may have refused the row
    if not deleted and cell is not None and (without or (cell in rows and rows[cell].state == "DELETED")):
        return "S5 invisible: the mapping names a cell that has no row"
    if cell is not None and s.br[r] is not None:
        return "S6 in two places: request and mapped"
    return None


def unsafe_instance(model: Model, s: State, r: int) -> str | None:
    cell, deleted = s.mapping[r].cell, s.mapping[r].deleted
    row = model.row(s, cell, r) if cell not in (None, CELL0) else None
    if row is None:
        return None
    guests, claim = guests_of(model, s, r), s.claim[r]
    if row.state in ("DELETED", "ERROR") and guests and not s.suspected[r]:
        return f"S9 {row.state} with a guest, and no host was ever called dead"
    handed_over = row.state == "STAGED" and not deleted
    if row.state in ("SCHEDULED", "BUILDING", "ACTIVE") or handed_over:
        if claim is None:
            return "S7 a live instance without a claim"
        if handed_over and claim[0] != row.host:
            return "S7 handed over on a host that the claim does not name"
    if row.state == "ACTIVE" and (row.host, row.attempt) not in guests:
        return "S8 ACTIVE without its guest"
    return None


def unfinished(model: Model, s: State) -> str | None:
    """The end invariant that this state breaks, if any. Checked where no step of the protocol is left."""
    for r in range(model.n):
        if s.br[r] is not None:
            return f"E1 request {r} never left the queue"
        guests = guests_of(model, s, r)
        rows = {c: row for c in model.cells if (row := model.row(s, c, r))}
        broken = left_behind(s, r, guests, rows) if s.mapping[r].deleted else not_settled(s, r, guests, rows)
        if broken:
            return broken
    return protocol_batch.unfinished(model, s)


def left_behind(s: State, r: int, guests: list[tuple[str, int]], rows: dict[str, Row]) -> str | None:
    if guests:
        return "E2 deleted, but a guest runs"
    if s.claim[r]:
        return "E3 deleted, but a claim is left"
    if any(row.state != "DELETED" for row in rows.values()):
        return "E4 deleted, but a row is left"
    return None


def not_settled(s: State, r: int, guests: list[tuple[str, int]], rows: dict[str, Row]) -> str | None:
    cell, claim = s.mapping[r].cell, s.claim[r]
    if cell == CELL0 and not rows:
        return "E7 ERROR with a guest or a claim left" if guests or claim else None
    if cell is None or set(rows) != {cell}:
        return f"E5 rows {sorted(rows)}, mapping {cell}"
    row = rows[cell]
    if row.state not in ("ACTIVE", "ERROR"):
        return f"E6 stranded in {row.state}"
    if row.state == "ERROR" and (guests or claim):
        return "E7 ERROR with a guest or a claim left"
    if row.state == "ACTIVE" and [host for host, _ in guests] != [row.host]:
        return f"E8 ACTIVE but guests are {guests}"
    if row.state == "ACTIVE" and (claim is None or claim[0] != row.host):
        return f"E9 ACTIVE on {row.host} but the claim is {claim}"
    return None


def outcome(model: Model, s: State) -> str:
    """How the requests of a state at rest ended, to show that the checks are not vacuous."""
    ends = []
    for r, mapping in enumerate(s.mapping):
        row = model.row(s, mapping.cell, r) if mapping.cell else None
        if mapping.deleted or (row is None and mapping.cell != CELL0):
            ends.append("deleted")
        elif row is None:
            ends.append("ERROR without a row")
        else:
            ends.append("ERROR cell0" if mapping.cell == CELL0 else f"{row.state} attempt {row.attempt}")
    if s.batch:
        ends.append(f"batch {s.batch}")
    return " + ".join(ends)


# -- the search -------------------------------------------------------------------------------------------------------------


def search(model: Model, limit: int = 0) -> Result:
    """Every state, or ``limit`` of them; see ``model_search.search``."""
    return model_search.search(
        model.initial(), partial(steps, model), partial(unsafe, model), partial(unfinished, model), partial(outcome, model), limit
    )


def walk(model: Model, rng: random.Random, length: int = 400) -> Result:
    """One random schedule, then a random drain without faults, to rest."""
    s = model.initial()
    trace: list[Label] = []
    restless, deletes = rng.choice((0.03, 0.1, 0.3)), rng.choice((0.0, 0.05, 0.5))
    for i in range(length * 5):
        draining = i >= length
        options = [(a, c, t) for a, c, t in steps(model, s) if t != s and not (draining and c != PROTOCOL)]
        options.sort(key=lambda option: repr(option[0]))  # sets have no order of their own: a seed must mean one run
        if all(cost != PROTOCOL for _, cost, _ in options):
            broken = unfinished(model, s)
            if broken or draining or not options:
                return Result(broken, trace)
        # faults and deletes are many: they must not crowd out the work
        if rng.random() > restless:
            options = [o for o in options if o[1] == PROTOCOL] or options
        if rng.random() > deletes:
            options = [o for o in options if o[1] in (PROTOCOL, FAULT)] or options
        label, _, s = rng.choice(options)
        trace.append(label)
        if broken := unsafe(model, s):
            return Result(broken, trace)
    return Result("E0 does not come to rest", trace)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="a1:A,a2:A,b1:B", help="host:cell list")
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--conductors", type=int, default=2)
    parser.add_argument("--faults", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=1)
    parser.add_argument("--no-delete", action="store_true")
    parser.add_argument("--batch", action="store_true", help="the requests are one all-or-nothing batch")
    parser.add_argument("--sibling", action="store_true", help="the same, with one member more, modelled at the API level only")
    parser.add_argument("--hold", action="store_true", help="the requests are those of holds")
    parser.add_argument("--whole-sweeps", action="store_true", help="the settler is never paused between its read and its write")
    parser.add_argument("--without", action="append", default=[], choices=sorted(GUARDS))
    parser.add_argument("--each", action="store_true", help="remove every guard in turn")
    parser.add_argument("--limit", type=int, default=0, help="stop after so many states")
    parser.add_argument("--walks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    broken = False
    for without in [[guard] for guard in GUARDS] if options.each else [options.without]:
        model = Model(
            [(host, cell) for host, cell in (item.split(":") for item in options.hosts.split(","))],
            requests=options.requests,
            conductors=options.conductors,
            faults=options.faults,
            capacity=options.capacity,
            deletes=not options.no_delete,
            split=not options.whole_sweeps,
            batch=options.batch,
            sibling=options.sibling,
            hold=options.hold,
            without=without,
        )
        print(f"without {', '.join(without)}" if without else "all guards", flush=True)
        began = time.monotonic()
        found = (
            model_search.walks(partial(walk, model), options.walks, options.seed) if options.walks else search(model, options.limit)
        )
        show(found, time.monotonic() - began)
        broken = broken or found.broken is not None
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
