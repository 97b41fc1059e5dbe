"""An explicit-state model of the boot protocol: who may write which row, and what faults may do to it (``docs/protocol.md``).

Modelled: the API database (build_requests, instance_mappings, allocations), cell databases and cell0 (instances, feed), super
conductors, schedulers, cell conductors, the reaper, the settler, the feed applier, the agents and their guests, user delete,
in-cell reschedule with alternates, and all-or-nothing batches. One transaction in one database is one atomic step; between two
steps anything can happen. There is no clock: sweeps may run at any moment, far too early included.

Any number of processes: schedulers, cell conductors, feed appliers and sweeps keep nothing between two steps except what is in
the bag, so two of them are two deliveries. Super conductors do keep state: there are ``conductors`` of them.

The bag: casts, calls, replies, a delayed database write, the paused half of a sweep that has read one database and not yet written
the other. Delay and reordering are free. A FAULT costs one of ``faults``: lose or double a message, kill a conductor or an agent,
pause a conductor beyond its lease (it goes on later: a zombie), give up a scheduler call that is still executing, a cell write that
fails for the caller and happens later, call a living host dead, a build deadline, an agent that gives a build back because it is
about to stop, a feed event applied again late. Spawn failures and user deletes are free, and so is calling a host stopping; a dead
agent may stay dead for as long as matters and then returns.

With ``batch`` the requests are one all-or-nothing batch (``protocol_batch``), else they are independent. With ``sibling`` the batch
has one member more, of which only that is modelled what the API level knows of it. With ``hold`` the requests are those of holds,
which a user may boot and a sweep may let expire, at any moment (``protocol_hold``).

Not modelled: quota, groups, lost disks, two agents on one host, row purge,
clock values.

This file holds the state and every transaction; ``protocol_steps`` what may happen next in a state; ``protocol_check`` the
invariants, the search, and the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

GUARDS = {
    "inert-stage": "a row written before hand_over is STAGED: no sweep of the cell acts on it",
    "no-undo": "a conductor that loses hand_over removes nothing; the settler does, from a decided mapping only",
    "no-loser-free": "a conductor that loses hand_over frees no claim",
    "handover-fence": "hand_over compares the fence, not only 'request exists and mapping is NULL'",
    "claim-guard": "a claim is written only while the request is leased with the fence the call carries",
    "refence": "changing host or cell before hand_over takes a new fence first",
    "stage-fence": "stage overwrites a STAGED row of a lower fence and refuses a higher one",
    "activate-fence": "the settler activates only the row whose fence the mapping carries",
    "tombstone": "delete leaves a DELETED row (inserted if absent): a late stage finds the uuid taken",
    "settler": "STAGED rows are settled against the mapping by a sweep",
    "accept": "an agent spawns only after its cell accepted BUILDING for this attempt",
    "builder": "reports are compared with the builder (agent start) that was accepted, not only the attempt",
    "attempt": "reports are compared with the attempt",
    "seen": "within one agent start an attempt is started once",
    "audit": "agents re-report guests they hold, at start and periodically; refused means destroy",
    "local-claim": "the agent claims on its host before anything else",
    "stage-silent": "writing or removing a STAGED row writes no feed event",
    "feed-cell": "a feed event changes API rows only if the mapping names the cell it came from",
    "feed-version": "a feed event is applied only if its row version is newer than the last one applied",
    "feed-order": "feed sequence numbers become visible in order",
    "reap-rule": "the reaper frees only when the mapping is decided (deleted before hand_over, or cell0)",
    "resend": "the cell re-sends orders for SCHEDULED rows",
    "delete-sweep": "the API level repeats a delete until the cell has it",
    "verdict-once": "an all-or-nothing batch is settled or fails once, whichever is written first",
    "guest-first": "what may have a guest is rolled back to ERROR only when the guest is gone",
    "rollback-sweep": "the API level repeats a roll-back until no sibling of the server that failed is left",
    "hold-first": "a request of a hold is handed over only after its hold is gone",
    "hold-row": "a request becomes held only while its hold is there",
    "hold-once": "a hold is booted or expires once, by the one that deletes its row",
}
"""Every guard of the protocol; a model may be built without some of them, to see what they are for."""

CELL0 = "0"

Message = tuple[Any, ...]
"""A tagged tuple: ('order', host, request, fence, attempt), ('report', kind, host, ...), and so on."""

Operation = tuple[str, int, int, int]
"""What an agent does for a request: (accept | build | active | failed | restarted | stopped, attempt, agent start, fence)."""

Guest = tuple[int, int, int, int]
"""A guest that runs: (request, attempt, agent start, fence)."""

Event = tuple[int, int, str, str | None]
"""A feed event: (request, row version, moved | ended, host). Of batches also active, and failed instead of ended for ERROR."""


class Row(NamedTuple):
    """An instance row in a cell; ``undo``: its batch is rolled back."""

    state: str
    fence: int
    attempt: int
    host: str | None
    alts: tuple[str, ...]
    builder: tuple[str, int] | None
    version: int
    undo: bool = False


class Agent(NamedTuple):
    """An agent and the guests on its host; ``memory`` holds per request (highest attempt seen, operation under way)."""

    up: bool
    start: int
    memory: tuple[tuple[int, Operation | None], ...]
    guests: frozenset[Guest]


class Conductor(NamedTuple):
    """A conductor that holds a request, by the step it will take next: ask, park, stage, bury, hand or undo."""

    step: str
    request: int
    fence: int
    host: str | None = None
    alts: tuple[str, ...] = ()
    excluded: str | None = None


class Mapping(NamedTuple):
    """``told``: of batches, the state that events and burials have told the API level."""

    cell: str | None = None
    deleted: bool = False
    fence: int = 0
    seen: int = 0
    told: str = "building"


class State(NamedTuple):
    """The whole world. Per request: ``br`` (queued | leased | held, fence), ``mapping``, ``claim`` (host, fence); per cell:
    ``rows``, unread ``feed`` events.

    ``suspected`` is a ghost: some host was called dead, or a deadline struck, so an old guest may still run. ``batch`` is open,
    failed, settled or rolled back (empty: there is none); ``sibling`` the state of the member that is not among the requests.
    ``hold``: per request open, booted, expired, or both, which must not be (empty: there is none).
    """

    br: tuple[tuple[str, int] | None, ...]
    mapping: tuple[Mapping, ...]
    claim: tuple[tuple[str, int] | None, ...]
    rows: tuple[tuple[Row | None, ...], ...]
    feed: tuple[tuple[Event, ...], ...]
    con: tuple[Conductor, ...]
    agent: tuple[Agent, ...]
    bag: frozenset[Message]
    faults: int
    suspected: tuple[bool, ...]
    lastread: tuple[int | None, ...]
    batch: str = ""
    sibling: str = ""
    hold: tuple[str, ...] = ()


def put(items: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*items[:index], value, *items[index + 1 :])


class Model:
    """The transactions.

    ``hosts`` are (name, cell) pairs with room for ``capacity`` guests each; ``split`` lets a sweep pause between read and write.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, str]],
        *,
        requests: int = 1,
        conductors: int = 2,
        faults: int = 2,
        capacity: int = 1,
        deletes: bool = True,
        split: bool = True,
        batch: bool = False,
        sibling: bool = False,
        hold: bool = False,
        without: Collection[str] = (),
    ) -> None:
        self.names = [host for host, _ in hosts]
        self.cell_of = dict(hosts)
        self.cells = (*sorted({cell for _, cell in hosts}), CELL0)
        self.ci = {cell: index for index, cell in enumerate(self.cells)}
        self.hi = {host: index for index, host in enumerate(self.names)}
        self.n, self.k, self.f, self.cap = requests, conductors, faults, capacity
        self.deletes, self.split, self.off = deletes, split, frozenset(without)
        self.batch, self.sibling, self.hold = batch or sibling, sibling, hold

    def on(self, guard: str) -> bool:
        return guard not in self.off

    def initial(self) -> State:
        n, cells = self.n, len(self.cells)
        return State(
            br=(("queued", 0),) * n,
            mapping=(Mapping(),) * n,
            claim=(None,) * n,
            rows=((None,) * n,) * cells,
            feed=((),) * cells,
            con=(),
            agent=(Agent(True, 1, ((0, None),) * n, frozenset()),) * len(self.names),
            bag=frozenset(),
            faults=self.f,
            suspected=(False,) * n,
            lastread=(None,) * cells,
            batch="open" if self.batch else "",
            sibling="building" if self.sibling else "",
            hold=("open",) * n if self.hold else (),
        )

    # -- small helpers ------------------------------------------------------------------------------------------------

    def row(self, s: State, c: str, r: int) -> Row | None:
        return s.rows[self.ci[c]][r]

    def cell_for(self, host: str | None) -> str:
        return self.cell_of[host] if host else CELL0

    def agent(self, s: State, host: str) -> Agent:
        return s.agent[self.hi[host]]

    def set_row(self, s: State, c: str, r: int, row: Row | None, event: str | None = None) -> State:
        """One cell transaction: the row and, with it, its feed event."""
        i = self.ci[c]
        s = s._replace(rows=put(s.rows, i, put(s.rows[i], r, row)))
        if row and event and c != CELL0:
            s = s._replace(feed=put(s.feed, i, (*s.feed[i], (r, row.version, event, row.host))))
        return s

    def con_swap(self, s: State, old: Conductor | None, new: Conductor | None) -> State:
        con = list(s.con)
        if old is not None:
            con.remove(old)
        if new is not None:
            con.append(new)
        return s._replace(con=tuple(sorted(con, key=repr)))

    def set_agent(self, s: State, host: str, **changes: Any) -> State:
        i = self.hi[host]
        return s._replace(agent=put(s.agent, i, s.agent[i]._replace(**changes)))

    def set_op(self, s: State, host: str, r: int, seen: int, op: Operation | None, guests: frozenset[Guest] | None = None) -> State:
        agent = self.agent(s, host)
        memory = put(agent.memory, r, (seen, op))
        return self.set_agent(s, host, memory=memory, guests=agent.guests if guests is None else guests)

    def send(self, s: State, *messages: Message) -> State:
        return s._replace(bag=s.bag | frozenset(messages))

    def alternates(self, host: str) -> tuple[str, ...]:
        return tuple(x for x in self.names if x != host and self.cell_of[x] == self.cell_of[host])

    # -- transactions of the API database ------------------------------------------------------------------------------------

    def claim(self, s: State, r: int, f: int, excluded: str | None) -> list[tuple[State, Message | None]]:
        """The scheduler's transaction: each state it may leave, with the reply it then sends."""
        if self.on("claim-guard") and s.br[r] != ("leased", f):
            return [(s, None)]
        have = s.claim[r]
        if have and ((have[1] == f and self.on("refence")) or self.cell_of[have[0]] != excluded):
            s = s._replace(claim=put(s.claim, r, (have[0], max(f, have[1]))))
            return [(s, ("selection", r, f, have[0], self.alternates(have[0])))]
        used = Counter(a[0] for i, a in enumerate(s.claim) if a and i != r)
        out: list[tuple[State, Message | None]] = []
        for host in self.names:
            if used[host] < self.cap and self.cell_of[host] != excluded:
                t = s._replace(claim=put(s.claim, r, (host, f)))
                out.append((t, ("selection", r, f, host, self.alternates(host))))
        return out or [(s, ("selection", r, f, None, ()))]

    def apply_event(self, s: State, c: str, event: Event) -> State:
        """The feed applier's transaction."""
        r, version, kind, host = event
        mapping = s.mapping[r]
        if (self.on("feed-cell") and mapping.cell != c) or (self.on("feed-version") and version <= mapping.seen):
            return s
        told = {"active": "active", "failed": "error"}.get(kind, mapping.told)
        s = s._replace(mapping=put(s.mapping, r, mapping._replace(seen=max(version, mapping.seen), told=told)))
        if kind == "active":
            return s
        claim = (host, mapping.fence) if kind == "moved" and host else None
        return s._replace(claim=put(s.claim, r, claim))

    # -- transactions of a cell database -------------------------------------------------------------------------------------

    def stage(self, s: State, c: str, r: int, f: int, host: str | None, alts: tuple[str, ...]) -> tuple[State, bool]:
        """Insert if absent; overwrite a STAGED row of a lower fence. Also says whether the caller may go on."""
        row = self.row(s, c, r)
        new = Row("STAGED", f, 1, host, alts, None, 0)
        if row is None:
            return self.set_row(s, c, r, new, None if self.on("stage-silent") else "moved"), True
        if row.state == "STAGED" and row.fence == f:
            return s, True
        if not self.on("stage-fence"):
            return s, True  # "insert keyed by uuid": somebody's row is there, good enough
        if row.state == "STAGED" and row.fence < f:
            return self.set_row(s, c, r, new), True
        return s, False

    def settle(self, s: State, c: str, r: int, verdict: str, fence: int) -> State:
        row = self.row(s, c, r)
        if row is None or row.state != "STAGED":
            return s
        if verdict == "remove":
            t = self.set_row(s, c, r, row._replace(version=1), None if self.on("stage-silent") else "ended")
            return self.set_row(t, c, r, None)
        if self.on("activate-fence") and row.fence != fence:
            # cell0 takes no row of a request that ends without one: an older copy is as inert there as in another cell
            return self.set_row(s, c, r, None) if c == CELL0 and row.fence < fence else s
        state = "ERROR" if c == CELL0 else "SCHEDULED"
        return self.set_row(s, c, r, row._replace(state=state, version=row.version + 1))

    def next_attempt(self, s: State, c: str, r: int, row: Row) -> State:
        """In-cell reschedule: one transaction, guarded by the caller."""
        if not row.alts:
            return self.give_up(s, c, r, row)
        row = Row("SCHEDULED", row.fence, row.attempt + 1, row.alts[0], row.alts[1:], None, row.version + 1)
        return self.set_row(s, c, r, row, "moved")

    def give_up(self, s: State, c: str, r: int, row: Row) -> State:
        row = row._replace(state="ERROR", attempt=row.attempt + 1, builder=None, version=row.version + 1)
        return self.set_row(s, c, r, row, "failed" if self.batch else "ended")

    def report(self, s: State, kind: str, host: str, r: int, f: int, n: int, start: int) -> tuple[State, bool]:
        """The cell conductor's transaction for an agent's report. Also says whether it was accepted."""
        c = self.cell_of[host]
        row = self.row(s, c, r)
        if row is None or row.fence != f or row.host != host or (self.on("attempt") and row.attempt != n):
            return s, False
        waits = row.state in ("STAGED", "SCHEDULED")
        mine = row.builder == (host, start) or (not self.on("builder") and row.builder is not None)
        if kind == "restarted":
            return (self.build_again(s, c, r, row), True) if row.state == "BUILDING" and mine else (s, False)
        if kind == "stopped" and not row.alts:
            return (self.build_again(s, c, r, row), True) if waits or (row.state == "BUILDING" and mine) else (s, False)
        if kind in ("failed", "stopped"):
            if waits or (row.state == "BUILDING" and mine):
                return self.next_attempt(s, c, r, row), True
            return s, False
        state, fresh = {
            "accept": ("BUILDING", waits),
            "active": ("ACTIVE", (row.state == "BUILDING" and mine) or waits),  # waits: the cell has lost what it granted
        }[kind]
        if fresh:
            event = "active" if self.batch and kind == "active" else None
            return self.set_row(s, c, r, row._replace(state=state, builder=(host, start), version=row.version + 1), event), True
        return s, row.state == state and mine

    def supersedes(self, s: State, host: str, r: int, f: int, n: int) -> bool:
        """Whether the row that refuses a guest's report proves that the guest is no longer the instance's. Else it stays."""
        row = self.row(s, self.cell_of[host], r)
        if row is None:
            return False
        return row.state in ("DELETING", "DELETED") or (row.state == "ERROR" and row.undo) or (row.fence, row.attempt) > (f, n)

    def build_again(self, s: State, c: str, r: int, row: Row) -> State:
        """The agent died with the build and is back, or stops and there is no other: the same host again, as a new attempt."""
        row = row._replace(state="SCHEDULED", attempt=row.attempt + 1, builder=None, version=row.version + 1)
        return self.set_row(s, c, r, row, "moved")

    def delete_in_cell(self, s: State, c: str, r: int) -> State:
        row = self.row(s, c, r)
        if row is None:
            if not self.on("tombstone"):
                return s
            return self.set_row(s, c, r, Row("DELETED", 0, 0, None, (), None, 1), "ended")
        if row.state in ("STAGED", "SCHEDULED", "ERROR"):
            return self.gone(s, c, r, row)
        if row.state in ("BUILDING", "ACTIVE"):
            return self.set_row(s, c, r, row._replace(state="DELETING", version=row.version + 1))
        if row.state == "DELETING" and row.undo:
            return self.set_row(s, c, r, row._replace(undo=False, version=row.version + 1))
        return s

    def roll_back(self, s: State, c: str, r: int) -> State:
        """A sibling of the row's failed: it is to end in ERROR, without a guest."""
        row = self.row(s, c, r)
        if row is None or row.state not in ("STAGED", "SCHEDULED", "BUILDING", "ACTIVE"):
            return s
        undone = row._replace(undo=True)
        if row.state in ("STAGED", "SCHEDULED") or not self.on("guest-first"):
            return self.give_up(s, c, r, undone)
        return self.set_row(s, c, r, undone._replace(state="DELETING", version=row.version + 1))

    def gone(self, s: State, c: str, r: int, row: Row) -> State:
        if row.state == "DELETING" and row.undo:
            return self.give_up(s, c, r, row)
        row = row._replace(state="DELETED", alts=(), builder=None, version=row.version + 1)
        s = self.set_row(s, c, r, row, "ended")
        return s if self.on("tombstone") else self.set_row(s, c, r, None)
