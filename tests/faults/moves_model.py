"""An explicit-state model of operations after the boot: a second body is booted, and one pointer says which body is the server.

Modelled (``docs/moves.md``): operations in place (stop, start, reboot, rescue, unrescue), an interface that is attached and
detached with the address that it takes from a pool, images of servers, moves (migrate,
resize, evacuate), shelving, and soft delete with restore and reclaim. The
API database has the operation, the pointer, and for each body a request, a mapping, a claim and its charge. Cell databases have
rows with tasks, and feeds. Then there are super conductors, cell conductors, agents and their guests, and a user who deletes,
confirms and reverts. One transaction in one database is one atomic step, and anything may happen between two. There is no clock:
sweeps, deadlines and leases come at any moment.

Free are delay and reordering of messages, a user's delete, confirm and revert, a spawn that fails, NoValidHost, the operation's
deadline, agents that stay dead. A FAULT costs one of ``faults``: a message lost or doubled, a conductor killed or overtaken (it
goes on later), an agent killed (its guests run on), a host without power (its guests are off, the agent comes back), a living
host called dead, an old feed event applied again; with ``failing`` also a task that the hypervisor driver fails.

A server has one operation at a time; only an evacuation is accepted while a task is open, and ends it. So it does while the guest
is given back the interfaces that it had.

The boot of a body is modelled as far as moves touch it (``protocol_model`` has the rest): agents are answered at once, and a body
is staged in one cell only.

Not modelled: rebuild, groups, quota of several servers, several interfaces, the addresses of a deleted server, volumes, lost
databases, locks, mixed releases, clock values.

This file holds the state and its transactions; ``moves_steps`` what may happen next in a state, of which ``moves_operations`` what
carries an operation on; ``moves_check`` the invariants and the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tests.faults.protocol_model import put

GUARDS = {
    "hold-first": "the twin is handed over only after the source was told held: its guest is off (evacuate: its row says so)",
    "hold-row": "evacuate writes 'held' into the source's row first, though its host is dead: the returning agent reads it",
    "hold-repeats": "an agent repeats a hold until the guest is off, and never reports it as failed",
    "hold-done": "a hold that failed does not count",
    "hold-number": "the answer that counts is the one to THIS hold: numbers are compared at the API level",
    "ask-number": "a cell takes a task only if its number is higher than the one the row has",
    "fail-waits": "a cell notes that an administrator calls the server failed only when the task in force is over",
    "begin": "an agent acts on a task only after its cell granted it for the number in force",
    "begin-over": "a cell does not grant the order of a task that is over",
    "done-number": "'done' counts only for the number in force",
    "reboot-once": "a reboot that was granted to an earlier start of the agent is not granted again",
    "return-asks": "an agent that starts turns on no guest before its cell has said that it may run",
    "resume-failed": "a guest that lost its power is turned on again even if its latest task failed",
    "switch-state": "SWITCH compares the operation's state, and that the twin is not deleted",
    "switch-active": "SWITCH waits until the twin was told ACTIVE",
    "late-loser": "the loser is marked deleted in SWITCH or confirm, not before",
    "undo-state": "giving up compares the operation's state: not after SWITCH",
    "undo-waits": "the source is started again only after the twin was told ended",
    "undo-request": "giving up takes the twin's build request away in the same transaction",
    "twin-deadline": "a twin's time is over by the operation (delete it, wait for its end), never by the cell's own ERROR",
    "verify-state": "confirm and revert compare the operation's state",
    "revert-hold": "revert points back only after the twin was told held",
    "delete-all": "a user's delete marks every body of the server",
    "delete-op": "a user's delete takes the operation and the twin's request away in the same transaction",
    "one-op": "one operation per server",
    "new-size": "confirm charges the new size",
    "keys-stay": "the pointer moves, keys do not: no event looks for a row under a key that is just being swapped",
    "restart": "a move that is given up, or a task whose deadline passed, writes the source's old power back",
    "snapshot-first": "a shelved server leaves its host only after the cell has told that its snapshot is complete",
    "snapshot-off": "an agent turns the guest off before it copies its disk to the image store",
    "snapshot-kept": "an unshelve that is given up leaves the shelved body and its snapshot",
    "image-told": "an image is listed only after the cell has told that it is complete",
    "image-gone": "an operation that does not end well removes the image that it may have made",
    "reclaim-state": "a server is reclaimed only while its operation says that it is soft-deleted: not after its user's restore",
    "nic-gone": "an address is freed only after the cell has told, under the number in force, that the guest does not have it",
    "nic-over": "an operation that gives a guest its interfaces back ends only after the cell has told how that ended",
    "nic-mends": "an evacuation that ended a change of interfaces gives the guest its interfaces if it is given up",
    "ended-task": "an evacuation that ended an open task writes the power back even if it never asked its source to be off",
}
"""Every guard of operations; a model may be built without some of them, to see what they are for."""

MOVES = ("migrate", "resize", "evacuate")
TASKS = {
    "stop": "off",
    "start": "on",
    "reboot": "reboot",
    "fail": "fail",
    "rescue": "rescue",
    "unrescue": "on",
    "image": "copy",
    "attach": "nic+",
    "detach": "nic-",
}
"""Operations in place, and the power that each writes. ``reboot`` stands for: on, after a reboot. ``fail``: as it was, failed.
``copy``: as it was, with a copy of its disk at one moment in the image store. ``nic+``, ``nic-``: as it was, with or without the
interface. A rescued guest runs with another root disk."""

SHELVING = ("shelve", "unshelve")
"""Shelve is a task with the power ``save``: off, after a snapshot. Unshelve is a move whose source has no guest."""

SOFT_DELETE = "soft-delete"
"""The guest is held until its user restores the server, or a sweep reclaims it: that is a delete."""

NO_TWIN = -1

Message = tuple[Any, ...]
"""A tagged tuple: ('order', host, body, attempt), ('task', host, body, number, power), and so on. Also a write that a paused sweep
or a user's call will make: ('ask', body, number, power), and ('switch' | 'undo' | 'confirm' | 'revert' | 'reclaim', number of the
operation)."""


class Operation(NamedTuple):
    """``number``: the first of its four task numbers. ``before``: the power that the user had wanted.

    ``held``: whether its source was asked to be off, or a task of an earlier operation may still change its power. ``mends``: an
    evacuation has ended a change of the interface, so the source may have it or not.
    """

    kind: str
    state: str
    source: int
    twin: int
    number: int
    before: str = "on"
    held: bool = False
    mends: bool = False

    @property
    def settles(self) -> bool:
        """Whether its end gives the source the interface that the server has, or takes it away."""
        return self.mends or self.kind in ("attach", "detach")


class Mapping(NamedTuple):
    """A body's row in the API database. ``told``, ``number``, ``power`` and ``task`` are what events have told.

    ``image``: the snapshot of a body that is shelved, by the number of the operation that made it.
    """

    mapped: bool = False
    deleted: bool = False
    hidden: bool = True
    charge: int = 0
    told: str = "building"
    seen: int = 0
    number: int = 0
    power: str = "on"
    task: str = "done"
    image: int = 0


class Row(NamedTuple):
    """A body's row in its cell; ``task``: ordered, running, done or failed."""

    state: str
    fence: int
    attempt: int
    host: str
    alternates: tuple[str, ...] = ()
    builder: int = 0
    version: int = 0
    number: int = 0
    power: str = "on"
    task: str = "done"


class Event(NamedTuple):
    """A feed event: the body's row after the change."""

    body: int
    version: int
    state: str
    host: str
    number: int
    power: str
    task: str


class Guest(NamedTuple):
    """``builder``: the agent's start. ``disk``: full, or torn because it was copied while the source ran. ``nic``: whether it has
    the interface.
    """

    body: int
    host: str
    attempt: int
    builder: int
    on: bool
    disk: str
    nic: bool = False


class Build(NamedTuple):
    """A build that an agent is at; ``spawned``: its report is what is left."""

    attempt: int
    spawned: bool = False


class AgentTask(NamedTuple):
    """A task that an agent was granted, and has not acted on yet or is to report."""

    number: int
    acted: bool
    power: str


class Agent(NamedTuple):
    """An agent, and per body what it is at."""

    up: bool
    start: int
    builds: tuple[Build | None, ...]
    tasks: tuple[AgentTask | None, ...]


class Conductor(NamedTuple):
    """A super conductor that holds a twin's request, by the step it will take next: claim, stage, hold or hand."""

    step: str
    body: int
    fence: int
    host: str = ""


class State(NamedTuple):
    """The whole world. Per body: ``requests`` (queued | leased, fence), ``mappings``, ``claims``, ``rows``, ``sizes``; per cell:
    ``feed``.

    ``pointer``: the body that is the server. ``left``: how many operations may still be asked for. ``gone``: the user has deleted
    the server. ``want``: the power that the user wants. ``quota``: what the project is charged. ``dead`` is a ghost: (body, host)
    of hosts that were called dead, so an old guest may still run. ``failed``: a driver failed some task. ``rebooted``: numbers of
    reboots that were carried out. ``images``: the snapshots in the store, full or torn; ``removals``: those that nothing needs,
    each with the body whose host may still be at it;
    ``listed``: those that are shown as images, by the number of the operation. ``nic``: the server has an address of the pool.
    ``broken``: an invariant that broke inside a step.
    """

    operation: Operation | None
    operations: int
    left: int
    gone: bool
    pointer: int
    want: str
    requests: tuple[tuple[str, int] | None, ...]
    mappings: tuple[Mapping | None, ...]
    claims: tuple[str | None, ...]
    rows: tuple[Row | None, ...]
    sizes: tuple[int, ...]
    quota: int
    feed: tuple[tuple[Event, ...], ...]
    conductors: tuple[Conductor, ...]
    agents: tuple[Agent, ...]
    guests: frozenset[Guest]
    bag: frozenset[Message]
    faults: int
    dead: frozenset[tuple[int, str]] = frozenset()
    rebooted: frozenset[int] = frozenset()
    failed: bool = False
    images: frozenset[tuple[int, str]] = frozenset()
    removals: frozenset[tuple[int, int]] = frozenset()
    listed: frozenset[int] = frozenset()
    nic: bool = False
    broken: str = ""

    def mapping(self, body: int) -> Mapping:
        """The mapping of a body that exists."""
        mapping = self.mappings[body]
        assert mapping is not None
        return mapping

    def row(self, body: int) -> Row:
        """The row of a body that was staged."""
        row = self.rows[body]
        assert row is not None
        return row

    def guest(self, body: int, host: str) -> Guest | None:
        return next((guest for guest in self.guests if (guest.body, guest.host) == (body, host)), None)


def runs(power: str) -> bool:
    return power.split()[-1] in ("on", "reboot", "rescue")


def kept_power(what: str, want: str) -> str:
    """The power of a task that leaves the guest what it was: a copy, or a change of its interface."""
    return f"{what} {want}"


def may_be_ended(operation: Operation) -> bool:
    """Whether an evacuation may end it: only the host that is called dead could take it further."""
    return operation.state == "task" or (operation.state == "starting" and operation.settles)


def makes_image(kind: str) -> bool:
    """Whether the operation writes into the image store, and what it wrote is of no use unless it ends well."""
    return kind in ("shelve", "image")


class Model:
    """The transactions.

    ``hosts`` are (name, cell) pairs; the server is ACTIVE on the first. ``kinds``: what may be asked for, ``operations`` times.
    There are at most ``bodies`` of the server.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, str]],
        *,
        kinds: Sequence[str] = ("migrate",),
        faults: int = 0,
        operations: int = 1,
        bodies: int = 2,
        deletes: bool = True,
        failing: bool = False,
        without: Collection[str] = (),
    ) -> None:
        self.names = [host for host, _ in hosts]
        self.cell_of = dict(hosts)
        self.cells = sorted({cell for _, cell in hosts})
        self.hi = {host: index for index, host in enumerate(self.names)}
        self.kinds, self.faults, self.operations, self.n = kinds, faults, operations, bodies
        self.deletes, self.failing, self.off = deletes, failing, frozenset(without)
        self.has_nic = "detach" in kinds and "attach" not in kinds  # from the boot

    def on(self, guard: str) -> bool:
        return guard not in self.off

    def initial(self) -> State:
        home, later = self.names[0], (None,) * (self.n - 1)
        return State(
            operation=None,
            operations=0,
            left=self.operations,
            gone=False,
            pointer=0,
            want="on",
            requests=(None,) * self.n,
            mappings=(Mapping(mapped=True, hidden=False, charge=1, told="active", seen=1), *later),
            claims=(home, *later),
            rows=(Row("ACTIVE", 1, 1, home, builder=1, version=1), *later),
            sizes=(1,) * self.n,
            quota=1,
            feed=((),) * len(self.cells),
            conductors=(),
            agents=(Agent(True, 1, (None,) * self.n, (None,) * self.n),) * len(self.names),
            guests=frozenset({Guest(0, home, 1, 1, True, "full", self.has_nic)}),
            bag=frozenset(),
            faults=self.faults,
            nic=self.has_nic,
        )

    # -- small helpers ------------------------------------------------------------------------------------------------

    def agent(self, s: State, host: str) -> Agent:
        return s.agents[self.hi[host]]

    def set_agent(self, s: State, host: str, **changes: Any) -> State:
        return s._replace(agents=put(s.agents, self.hi[host], self.agent(s, host)._replace(**changes)))

    def set_build(self, s: State, host: str, body: int, build: Build | None) -> State:
        return self.set_agent(s, host, builds=put(self.agent(s, host).builds, body, build))

    def set_task(self, s: State, host: str, body: int, task: AgentTask | None) -> State:
        return self.set_agent(s, host, tasks=put(self.agent(s, host).tasks, body, task))

    def set_mapping(self, s: State, body: int, **changes: Any) -> State:
        return s._replace(mappings=put(s.mappings, body, s.mapping(body)._replace(**changes)))

    def set_row(self, s: State, body: int, *, tell: bool = False, **changes: Any) -> State:
        """One cell transaction: the row and, with ``tell``, its feed event."""
        row = s.row(body)._replace(version=s.row(body).version + 1, **changes)
        s = s._replace(rows=put(s.rows, body, row))
        if not tell:
            return s
        i = self.cells.index(self.cell_of[row.host])
        event = Event(body, row.version, row.state, row.host, row.number, row.power, row.task)
        return s._replace(feed=put(s.feed, i, (*s.feed[i], event)))

    def send(self, s: State, *messages: Message) -> State:
        return s._replace(bag=s.bag | set(messages))

    def replace_guest(self, s: State, old: Guest | None, *new: Guest) -> State:
        return s._replace(guests=(s.guests - {old}) | set(new))

    # -- transactions of the API database ------------------------------------------------------------------------------------

    def accept(self, s: State, kind: str) -> State:
        source, number = s.pointer, (s.operations + 1) * 4
        s = s._replace(operations=s.operations + 1, left=s.left - 1)
        if kind in TASKS:
            if kind == "attach":
                s = s._replace(nic=True)
            want = {"stop": "off", "start": "on", "rescue": "rescue", "unrescue": "on"}.get(kind, s.want)
            return s._replace(operation=Operation(kind, "task", source, NO_TWIN, number, s.want), want=want)
        if kind == "shelve":
            return s._replace(operation=Operation(kind, "task", source, NO_TWIN, number, s.want))
        if kind == SOFT_DELETE:
            return s._replace(operation=Operation(kind, "soft-deleted", source, NO_TWIN, number, s.want), want="off")
        if kind == "unshelve":
            s = s._replace(want="on")
        ends_task = s.operation is not None and may_be_ended(s.operation)
        mends = ends_task and s.operation is not None and s.operation.settles and self.on("nic-mends")
        if s.operation is not None and s.operation.kind == "shelve":
            s = s._replace(want=s.operation.before, removals=s.removals | {(s.operation.number, source)})
        elif ends_task:  # an evacuation: what the cell has told is what is wanted
            if s.operation is not None and s.operation.kind == "image":
                s = self.without_image(s, s.operation)
            s = s._replace(want="on" if runs(s.mapping(source).power) else "off")
        twin = s.mappings.index(None)
        size = 3 - s.sizes[source] if kind == "resize" else s.sizes[source]
        charge = max(0, size - s.sizes[source])
        if kind == "evacuate":
            s = s._replace(dead=s.dead | {(source, s.row(source).host)})
        return s._replace(
            operation=Operation(kind, "placing", source, twin, number, held=ends_task and self.on("ended-task"), mends=mends),
            requests=put(s.requests, twin, ("queued", 0)),
            mappings=put(s.mappings, twin, Mapping(charge=charge)),
            sizes=put(s.sizes, twin, size),
            quota=s.quota + charge,
        )

    def delete(self, s: State) -> State:
        """A user's delete: every body, their requests, the operation."""
        for body, mapping in enumerate(s.mappings):
            if mapping and not mapping.deleted and (self.on("delete-all") or body == s.pointer):
                s = self.end_body(s, body, with_request=self.on("delete-op"))
        if s.operation and makes_image(s.operation.kind):
            s = self.without_image(s, s.operation)
        return s._replace(gone=True, operation=None if self.on("delete-op") else s.operation)

    def without_image(self, s: State, operation: Operation) -> State:
        """The operation ends, and the image that it may have made is of no use."""
        is_kept = operation.kind == "image" and not self.on("image-gone")
        return s if is_kept else s._replace(removals=s.removals | {(operation.number, operation.source)})

    def end_body(self, s: State, body: int, *, with_request: bool = True) -> State:
        """Mark one body deleted and free its charge; a body that is still a request is gone at once."""
        mapping = s.mapping(body)
        s = self.set_mapping(s._replace(quota=s.quota - mapping.charge), body, deleted=True)
        if mapping.told == "shelved":
            return self.set_mapping(s._replace(removals=s.removals | {(mapping.image, NO_TWIN)}), body, told="deleted")
        if s.requests[body] and with_request:
            s = s._replace(requests=put(s.requests, body, None), claims=put(s.claims, body, None))
            s = self.set_mapping(s, body, told="deleted")
        return s

    def give_up(self, s: State, operation: Operation) -> State:
        s = self.end_body(s, operation.twin, with_request=self.on("undo-request"))
        if operation.kind == "unshelve" and not self.on("snapshot-kept"):
            s = s._replace(removals=s.removals | {(s.mapping(operation.source).image, NO_TWIN)})
        return s._replace(operation=operation._replace(state="undoing"))

    def offload(self, s: State, operation: Operation) -> State:
        """The server is a shelved body from now on, which is charged as its source was."""
        body, source = s.mappings.index(None), operation.source
        shelved = Mapping(charge=s.mapping(source).charge, told="shelved", image=operation.number)
        s = s._replace(
            mappings=put(s.mappings, body, shelved),
            sizes=put(s.sizes, body, s.sizes[source]),
            quota=s.quota + shelved.charge,
            operation=None,
        )
        return self.end_body(self.point(s, body, source), source)

    def switch(self, s: State, operation: Operation) -> State:
        s = self.point(s, operation.twin, operation.source)
        s = s._replace(want="on" if s.want == "rescue" else s.want)  # an evacuation ends a rescue
        return s._replace(operation=operation._replace(state="verify")) if operation.kind == "resize" else self.part(s, operation)

    def part(self, s: State, operation: Operation) -> State:
        """The loser's end, in SWITCH or in confirm. The winner is charged for what it is."""
        size = s.sizes[operation.twin if self.on("new-size") else operation.source]
        s = self.set_mapping(s._replace(quota=s.quota + size - s.mapping(operation.twin).charge), operation.twin, charge=size)
        return (s if s.mapping(operation.source).deleted else self.end_body(s, operation.source))._replace(operation=None)

    def point(self, s: State, to: int, away: int) -> State:
        return self.set_mapping(self.set_mapping(s, to, hidden=False), away, hidden=True)._replace(pointer=to)

    def source_is_held(self, s: State, operation: Operation) -> bool:
        """hand_over's condition for a twin: its source may not run any more."""
        evacuates = operation.kind == "evacuate"
        if operation.kind == "unshelve" or not self.on("hold-first") or (evacuates and not self.on("hold-row")):
            return True
        source = s.mapping(operation.source)
        if source.power != "held" or (source.number != operation.number and self.on("hold-number")):
            return False
        return evacuates or source.task == "done" or (source.task == "failed" and not self.on("hold-done"))

    def apply_event(self, s: State, event: Event) -> State:
        body, version, state, host, number, power, task = event
        mapping = s.mapping(body)
        if not mapping.mapped or version <= mapping.seen:
            return s
        told = {"ACTIVE": "active", "ERROR": "error", "DELETED": "deleted"}.get(state, "building")
        s = self.set_mapping(s, body, seen=version, told=told, number=number, power=power, task=task)
        return s._replace(claims=put(s.claims, body, None if told in ("error", "deleted") else host))

    # -- transactions of a cell database -------------------------------------------------------------------------------------

    def ask(self, s: State, body: int, number: int, power: str) -> State:
        """A task is written into the row, under a number that the API level gave."""
        row = s.row(body)
        if row.state != "ACTIVE" or number == row.number or (number < row.number and self.on("ask-number")):
            return s
        if power == "fail":  # over at once, and no host hears of it
            if row.task in ("ordered", "running") and self.on("fail-waits"):
                return s
            return self.set_row(s, body, tell=True, number=number, task="failed")
        return self.set_row(s, body, tell=True, number=number, power=power, task="ordered")

    def begin(self, s: State, host: str, body: int, number: int) -> State:
        """An agent asks for a task. It is granted where the agent's record of the state returned has it."""
        row = s.row(body)
        if (row.number, row.state, row.host) != (number, "ACTIVE", host):
            return s
        if row.task not in ("ordered", "running"):
            if self.on("begin-over") or row.task != "done":
                return s
        elif row.power == "reboot" and row.task == "running" and self.on("reboot-once"):
            return self.set_row(s, body, tell=True, task="failed")  # by an earlier start: nobody knows how far it came
        else:
            s = self.set_row(s, body, task="running")
        return self.set_task(s, host, body, AgentTask(number, False, row.power))

    def next_attempt(self, s: State, body: int) -> State:
        """This attempt is over: the next alternate, or ERROR."""
        row = s.row(body)
        if not row.alternates:
            return self.error(s, body)
        host, *rest = row.alternates
        after = {"state": "SCHEDULED", "attempt": row.attempt + 1, "host": host, "alternates": tuple(rest), "builder": 0}
        return self.set_row(s, body, tell=True, **after)

    def error(self, s: State, body: int) -> State:
        return self.set_row(s, body, tell=True, state="ERROR", attempt=s.row(body).attempt + 1, builder=0)

    def delete_in_cell(self, s: State, body: int) -> State:
        state = s.row(body).state
        if state in ("STAGED", "SCHEDULED", "ERROR"):
            return self.ended(s, body)
        return self.set_row(s, body, state="DELETING") if state in ("BUILDING", "ACTIVE") else s

    def ended(self, s: State, body: int) -> State:
        return self.set_row(s, body, tell=True, state="DELETED", builder=0)
