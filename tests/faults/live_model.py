"""An explicit-state model of a live migration, from the twin's build to rest: who decides where the guest runs.

Modelled (``docs/moves.md``): the operation from *building* on, both bodies with their mappings, rows, feeds, agents and guests, and
the transfer between the two hypervisors. The steps before are those of any move (``moves_model``). The transfer goes over in one
step of the hypervisors: the source's guest stops and the twin's runs, or is paused as the source's was. It goes on when an agent
dies, and it may fail at any moment.

Free are delay and reordering, a user's delete, the operation's deadline, a build or a transfer that fails. A FAULT costs one of
``faults``: a message lost or doubled, an agent killed, a host without power.

    python -m tests.faults.live_model            every state of small worlds; then without each guard the shortest violation

Not modelled: a second operation, hosts that are called dead, several cells (each body has a feed of its own), quota, claims.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tests.faults import model_search
from tests.faults.model_search import ENVIRONMENT, FAULT, PROTOCOL, Label, Result, show
from tests.faults.protocol_model import put

GUARDS = {
    "held-row": "the twin is asked to be on only after the source's row was told held",
    "twin-decides": "only the twin's answer ends the transfer: not the source's, and no deadline",
    "closes": "a twin that has received nothing closes before it says so: nothing can go over afterwards",
    "switch-received": "SWITCH waits until the twin was told on, done",
    "looks-later": "an agent that starts while a task is under way compares its guest with the record after that task",
    "incoming-stays": "an agent leaves a guest alone whose row says incoming: it may have received and run",
    "undo-waits": "the source is started again only after the twin was told ended",
    "ask-number": "a cell takes a task only if its number is higher than the one the row has",
    "power-before": "whoever has the guest at the end is asked for the power that the server had, and not to run",
}
"""Every guard of a live migration; a model may be built without some of them, to see what they are for."""

SOURCE, TWIN = 0, 1
SEND, ON, START = 4, 6, 7
"""Task numbers: of the source's transfer, of the twin's question whether it has received, and of *starting*."""

KINDS = {SEND: "send", ON: "power", START: "power"}
OVER = ("done", "failed")
ALIVE = ("on", "paused")
ON_THE_WIRE = ("task", "report")
OPEN = ("building", "sending", "undoing", "starting")

Message = tuple[Any, ...]
"""('task', body, number), ('report', body, number, result), and writes that a paused sweep will make: ('ask', body, number)."""


class Row(NamedTuple):
    """A body's row in its cell. Mappings have the same fields, as told."""

    state: str
    number: int = 0
    power: str = "on"
    task: str = "done"


class Agent(NamedTuple):
    """``task``: the number of the task it was granted. ``result``: how it ended; empty: it has not.

    ``looks``: it has not compared its guest with the record since it started.
    """

    up: bool = True
    task: int = 0
    result: str = ""
    looks: bool = False


class State(NamedTuple):
    """The whole world. Per body: ``told``, ``deleted``, ``rows``, ``feeds``, ``agents``, ``guests``.

    A guest is on, paused, off, incoming (it listens), closed (it will never receive) or none. ``transfer``: the hypervisors are
    at it. ``late``: the deadline has passed. ``cut``: some host lost power. ``gone``: the user has deleted the server. ``before``:
    the power that the server had.
    """

    operation: str
    late: bool
    gone: bool
    pointer: int
    deleted: tuple[bool, ...]
    told: tuple[Row, ...]
    rows: tuple[Row, ...]
    feeds: tuple[tuple[Row, ...], ...]
    agents: tuple[Agent, ...]
    guests: tuple[str, ...]
    transfer: bool
    bag: frozenset[Message]
    faults: int
    cut: bool = False
    before: str = "on"


Step = tuple[Label, int, State]


class Model:
    """The transactions and the steps. ``before``: the power of the server, on or paused. ``without``: guards that are left out."""

    def __init__(self, faults: int = 0, *, deletes: bool = True, before: str = "on", without: Collection[str] = ()) -> None:
        self.faults, self.deletes, self.before, self.off = faults, deletes, before, frozenset(without)

    def on(self, guard: str) -> bool:
        return guard not in self.off

    def initial(self) -> State:
        source, twin = Row("ACTIVE", power=self.before), Row("BUILDING", power="incoming")
        return State(
            operation="building",
            late=False,
            gone=False,
            pointer=SOURCE,
            deleted=(False, False),
            told=(source, twin),
            rows=(source, twin),
            feeds=((), ()),
            agents=(Agent(), Agent()),
            guests=(self.before, ""),
            transfer=False,
            bag=frozenset(),
            faults=self.faults,
            before=self.before,
        )

    # -- transactions ----------------------------------------------------------------------------------------------------------

    def set_row(self, s: State, body: int, **changes: Any) -> State:
        """One cell transaction: the row and its feed event."""
        row = s.rows[body]._replace(**changes)
        return s._replace(rows=put(s.rows, body, row), feeds=put(s.feeds, body, (*s.feeds[body], row)))

    def ask(self, s: State, body: int, number: int) -> State:
        row = s.rows[body]
        if row.state != "ACTIVE" or number == row.number or (number < row.number and self.on("ask-number")):
            return s
        return self.set_row(s, body, number=number, power=self.power_of(s, number), task="ordered")

    def power_of(self, s: State, number: int) -> str:
        """What the task with this number asks for."""
        if number == SEND:
            return "held"
        return s.before if self.on("power-before") else "on"

    def begin(self, s: State, body: int, number: int) -> State:
        row, agent = s.rows[body], s.agents[body]
        if (row.state, row.number) != ("ACTIVE", number) or row.task in OVER:
            return s
        s = s._replace(rows=put(s.rows, body, row._replace(task="running")))
        return s._replace(agents=put(s.agents, body, agent._replace(task=number, result="")))

    def report(self, s: State, body: int, number: int, result: str) -> State:
        row = s.rows[body]
        if (row.state, row.number) != ("ACTIVE", number) or row.task in OVER:
            return s
        return self.set_row(s, body, task=result)

    def switch(self, s: State) -> State:
        received = (s.told[TWIN].number, s.told[TWIN].task) == (ON, "done") or not self.on("switch-received")
        if s.operation != "sending" or s.deleted[TWIN] or not received:
            return s
        return s._replace(operation="done", pointer=TWIN, deleted=(True, False))

    def give_up(self, s: State) -> State:
        """The deadline, or what the twin has told."""
        closed = (s.told[TWIN].number, s.told[TWIN].task) == (ON, "failed") or not self.on("twin-decides")
        if s.operation == "building" or (s.operation == "sending" and closed):
            after = "undoing" if self.on("undo-waits") or s.operation == "building" else "starting"
            return s._replace(operation=after, deleted=put(s.deleted, TWIN, True))
        return s

    # -- steps -------------------------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> list[Step]:
        """All steps; those that are faults only while there are faults left, and already paid."""
        found = [*self.user(s), *self.sweep(s), *self.feed(s), *self.cells(s), *self.hypervisors(s), *self.hosts(s), *self.wire(s)]
        return [
            (label, cost, t._replace(faults=t.faults - 1) if cost == FAULT else t)
            for label, cost, t in found
            if (cost != FAULT or s.faults > 0) and t != s
        ]

    def user(self, s: State) -> Iterator[Step]:
        if self.deletes and not s.gone:
            yield ("user deletes",), ENVIRONMENT, s._replace(gone=True, operation="deleted", deleted=(True, True))
        if s.operation in ("building", "sending") and not s.late:
            yield ("deadline",), ENVIRONMENT, s._replace(late=True)

    def sweep(self, s: State) -> Iterator[Step]:
        source, twin = s.told
        if s.operation == "building" and twin.state == "ACTIVE":
            yield ("the twin listens",), PROTOCOL, s._replace(operation="sending")
        if s.operation == "building" and (s.late or twin.state == "ERROR"):
            yield ("give up",), PROTOCOL, self.give_up(s)
        if s.operation == "sending":
            if source.number < SEND:
                yield self.writes(s, "ask", SOURCE, SEND)
            held = source.number == SEND or not self.on("held-row")
            if held and twin.number < ON and (s.late or source.task in OVER):
                yield self.writes(s, "ask", TWIN, ON)
            yield ("SWITCH",), PROTOCOL, self.switch(s)
            refused = twin.number == ON and twin.task == "failed"
            blind = not self.on("twin-decides") and (s.late or (source.number == SEND and source.task == "failed"))
            if refused or blind:
                yield ("give up",), PROTOCOL, self.give_up(s)
        if s.operation == "undoing" and twin.state in ("DELETED", ""):
            yield ("twin ended",), PROTOCOL, s._replace(operation="starting")
        if s.operation == "starting":
            if source.number < START:
                yield self.writes(s, "ask", SOURCE, START)
            else:
                yield ("given up",), PROTOCOL, s._replace(operation="given up")
        for body, deleted in enumerate(s.deleted):
            row = s.rows[body]
            if deleted and row.state not in ("DELETING", "DELETED"):
                state = "DELETED" if row.state == "ERROR" else "DELETING"
                yield ("delete", body), PROTOCOL, self.set_row(s, body, state=state)

    def writes(self, s: State, *write: Any) -> Step:
        """A sweep is about to write into a cell; it may do so much later."""
        return ("sweep", *write), PROTOCOL, s._replace(bag=s.bag | {write})

    def feed(self, s: State) -> Iterator[Step]:
        for body, events in enumerate(s.feeds):
            if events:
                t = s._replace(told=put(s.told, body, events[0]), feeds=put(s.feeds, body, events[1:]))
                yield ("apply feed", body, *events[0]), PROTOCOL, t

    def cells(self, s: State) -> Iterator[Step]:
        """Orders that are sent again, and the twin's build."""
        for body, row in enumerate(s.rows):
            order = ("task", body, row.number)
            if row.state == "ACTIVE" and row.task not in OVER and s.agents[body].up and order not in s.bag:
                yield order, PROTOCOL, s._replace(bag=s.bag | {order})
        if s.rows[TWIN].state == "BUILDING" and s.agents[TWIN].up:
            t = s._replace(guests=put(s.guests, TWIN, "incoming"))
            yield ("twin spawned",), PROTOCOL, self.set_row(t, TWIN, state="ACTIVE")
            yield ("twin's build fails",), ENVIRONMENT, self.set_row(s, TWIN, state="ERROR")

    def hypervisors(self, s: State) -> Iterator[Step]:
        if s.transfer:
            if self.ready(s):
                yield ("goes over",), PROTOCOL, s._replace(guests=("off", s.guests[SOURCE]), transfer=False)
            yield ("transfer fails",), ENVIRONMENT, s._replace(transfer=False)
            if not self.ready(s):
                yield ("transfer breaks",), PROTOCOL, s._replace(transfer=False)

    def ready(self, s: State) -> bool:
        return s.guests[SOURCE] in ALIVE and s.guests[TWIN] == "incoming"

    def hosts(self, s: State) -> Iterator[Step]:
        for body, agent in enumerate(s.agents):
            row, guest = s.rows[body], s.guests[body]
            if not agent.up:
                yield ("agent starts", body), PROTOCOL, s._replace(agents=put(s.agents, body, Agent(looks=self.looks(row))))
                continue
            if agent.looks and not agent.task and row.task in OVER:
                yield ("agent compares", body), PROTOCOL, self.restored(s, body)
            down = s._replace(agents=put(s.agents, body, Agent(up=False)))
            yield ("agent killed", body), FAULT, down
            after = {"on": "off", "paused": "off", "incoming": "closed"}.get(guest, guest)
            yield ("power cut", body), FAULT, down._replace(guests=put(s.guests, body, after), transfer=False, cut=True)
            if row.state == "DELETING":
                t = s._replace(guests=put(s.guests, body, ""), transfer=False, agents=put(s.agents, body, Agent()))
                yield ("destroyed", body), PROTOCOL, self.set_row(t, body, state="DELETED")
            elif agent.task and not agent.result:
                yield from self.acts(s, body, agent)
            elif agent.task:
                report = ("report", body, agent.task, agent.result)
                t = s._replace(agents=put(s.agents, body, Agent(looks=agent.looks)), bag=s.bag | {report})
                yield report, PROTOCOL, t

    def looks(self, row: Row) -> bool:
        return row.task in OVER or self.on("looks-later")

    def restored(self, s: State, body: int) -> State:
        """An agent has started: its guest is brought to the power on record, once the latest task is over."""
        row, guest = s.rows[body], s.guests[body]
        s = s._replace(agents=put(s.agents, body, Agent()))
        if row.state != "ACTIVE" or (row.task == "failed" and row.power != "on"):
            return s
        if row.power == "on" and guest == "off":
            return s._replace(guests=put(s.guests, body, "on"))
        wrong = row.power == "held" and row.task == "done"
        if guest in ALIVE and (wrong or (row.power == "incoming" and not self.on("incoming-stays"))):
            return s._replace(guests=put(s.guests, body, "off"))
        return s

    def acts(self, s: State, body: int, agent: Agent) -> Iterator[Step]:
        """The driver carries out what was granted."""
        guest = s.guests[body]

        def ends(result: str, after: str = guest) -> Step:
            t = s._replace(guests=put(s.guests, body, after))
            return (
                ("task ends", body, agent.task, result),
                PROTOCOL,
                t._replace(agents=put(t.agents, body, agent._replace(result=result))),
            )

        if KINDS[agent.task] == "power":
            if guest in (*ALIVE, "off"):
                yield ends("done", self.power_of(s, agent.task))
            else:
                yield ends("failed", "closed" if self.on("closes") else guest)
        elif s.transfer:
            return  # it waits for its end
        elif self.ready(s):
            yield ("sends",), PROTOCOL, s._replace(transfer=True)
            yield ends("failed")  # it could not begin
        else:
            # a guest that lost its power looks like one that has gone over: the answer is no proof
            yield ends("done" if guest == "off" else "failed")

    def wire(self, s: State) -> Iterator[Step]:
        for message in s.bag:
            rest = s._replace(bag=s.bag - {message})
            kind, body, number = message[:3]
            if kind == "ask":
                yield ("written", *message), PROTOCOL, self.ask(rest, body, number)
                continue
            yield ("lost", *message), FAULT, rest
            if kind == "report":
                yield ("reported", *message), PROTOCOL, self.report(rest, body, number, message[3])
                yield ("reported, again later", *message), FAULT, self.report(s, body, number, message[3])
            elif s.agents[body].up and not s.agents[body].task:
                yield ("taken", *message), PROTOCOL, self.begin(rest, body, number)
                yield ("taken, again later", *message), FAULT, self.begin(s, body, number)
            else:
                yield ("dropped", *message), PROTOCOL, rest


# -- what must hold --------------------------------------------------------------------------------------------------------------


def unsafe(s: State) -> str | None:
    """The invariant that this state breaks, if any."""
    if all(row.state in ("BUILDING", "ACTIVE") and row.power in ALIVE for row in s.rows):
        return "M0 both rows permit their guests to run"
    if all(guest in ALIVE for guest in s.guests):
        return "M1 both guests run"
    if any(g in ALIVE and r.power == "held" and r.task == "done" for g, r in zip(s.guests, s.rows, strict=True)):
        return "M9 a row says held, done, and its guest runs"
    if s.gone:
        return None
    if s.deleted[s.pointer]:
        return "M5 the server is a deleted body"
    if not any(guest in ALIVE for guest in s.guests) and not s.cut:
        return "L1 the guest has stopped"
    if s.before == "paused" and "on" in s.guests:
        return "L2 the guest of a paused server runs"
    if s.cut and not any(guest in (*ALIVE, "off") for guest in s.guests):
        return "M7 no complete disk is left"
    return None


def unfinished(s: State) -> str | None:
    """What a state at rest must not be."""
    if s.gone:
        return None if s.guests == ("", "") else "E4 a guest of a deleted server is left"
    if s.operation in OPEN:
        return f"E1 the operation stays in {s.operation}"
    other = 1 - s.pointer
    if s.rows[other].state != "DELETED" or s.guests[other]:
        return "E4 another body is left"
    is_lost = s.before == "paused" and s.cut and s.guests[s.pointer] == "off"  # its host then tells that it has stopped
    if s.rows[s.pointer].power != s.before or not (s.guests[s.pointer] == s.before or is_lost):
        return f"E3 the server is not {s.before}"
    return None


def search(model: Model, limit: int = 0) -> Result:
    """Breadth first, every state unless ``limit`` says how many."""
    return model_search.search(
        model.initial(), model.steps, unsafe, unfinished, lambda s: "deleted" if s.gone else s.operation, limit
    )


def main() -> int:
    broken = False
    for before, faults, deletes in (("on", 0, True), ("on", 1, False), ("paused", 0, True), ("paused", 1, False)):
        began = time.monotonic()
        print(f"live migration, server {before}, faults {faults}{', deletes' if deletes else ''}")
        found = search(Model(faults, deletes=deletes, before=before))
        show(found, time.monotonic() - began)
        broken = broken or found.broken is not None
    for guard, meaning in GUARDS.items():
        print(f"without {guard}: {meaning}")
        show(search(without(guard)), 0)
    return int(broken)


def without(guard: str) -> Model:
    """The model without this guard, with as many faults as it takes to miss it."""
    before = "paused" if guard == "power-before" else "on"
    return Model(int(guard in ("looks-later", "incoming-stays")), deletes=False, before=before, without=[guard])


if __name__ == "__main__":
    sys.exit(main())
