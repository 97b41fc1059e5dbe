"""Every step out of a state of the model of moves: what users, conductors, sweeps, cells, agents and faults may do next."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.model_search import ENVIRONMENT, FAULT, PROTOCOL
from tests.faults.moves_model import (
    MOVES,
    SHELVING,
    SOFT_DELETE,
    Agent,
    AgentTask,
    Build,
    Conductor,
    Guest,
    Message,
    Model,
    Operation,
    Row,
    State,
    may_be_ended,
    runs,
)
from tests.faults.moves_operations import BEFORE_SWITCH, Step, advancing, asking, decided, offloaded, reclaimed, switched, undone
from tests.faults.protocol_model import put

CONDUCTORS = 2

ON_THE_WIRE = ("order", "task", "done", "failed", "delete", "gone")
"""Messages that may be lost or doubled. What else lies in the bag is a write that a paused process will make."""


def steps(model: Model, s: State) -> list[Step]:
    """All steps; those that are faults only while there are faults left, and already paid."""
    found = [
        *user_steps(model, s),
        *queue_steps(model, s),
        *sweep_steps(model, s),
        *feed_steps(model, s),
        *cell_steps(model, s),
        *agent_steps(model, s),
        *message_steps(model, s),
    ]
    return [
        (label, cost, t._replace(faults=t.faults - 1) if cost == FAULT else t)
        for label, cost, t in found
        if (cost != FAULT or s.faults > 0) and t != s
    ]


def operation_of(s: State, twin: int) -> Operation | None:
    return s.operation if s.operation and s.operation.twin == twin else None


# -- users and operators -----------------------------------------------------------------------------------------------------


def user_steps(model: Model, s: State) -> Iterator[Step]:
    operation, shown = s.operation, s.mapping(s.pointer)
    if s.gone:
        return
    if model.deletes:
        yield ("user deletes",), ENVIRONMENT, model.delete(s)
    if s.left and not shown.deleted:
        for kind in model.kinds:
            if shown.told != ("shelved" if kind == "unshelve" else "active"):
                continue
            alive = kind == "evacuate" and model.agent(s, s.row(s.pointer).host).up
            if may_ask(model, s, kind):
                yield ("accept", kind, "of a living host" if alive else ""), FAULT if alive else ENVIRONMENT, model.accept(s, kind)
    if operation and operation.state == "shelved":
        started = s._replace(operation=operation._replace(state="starting"), want="on")
        yield ("user unshelves",), ENVIRONMENT, started
    if operation and operation.state == "soft-deleted":
        restored = s._replace(operation=operation._replace(state="starting"), want="on")
        yield ("user restores",), ENVIRONMENT, restored
    if operation and operation.state == "verify":
        yield ("user confirms",), ENVIRONMENT, model.send(s, ("confirm", operation.number))
        yield ("user reverts",), ENVIRONMENT, model.send(s, ("revert", operation.number))
    if operation and operation.state in ("task", *BEFORE_SWITCH):
        yield ("operation's deadline",), ENVIRONMENT, model.send(s, ("undo", operation.number))


def may_ask(model: Model, s: State, kind: str) -> bool:
    ends_task = kind == "evacuate" and s.operation is not None and may_be_ended(s.operation)
    if s.operation is not None and not ends_task and model.on("one-op"):
        return False
    if kind in (*MOVES, *SHELVING):
        return None in s.mappings and (s.want != "rescue" or kind == "evacuate")
    allowed = {"reboot": ("on",), "rescue": ("on", "off"), "unrescue": ("rescue",), "image": ("on", "off")}
    allowed[SOFT_DELETE] = ("on", "off", "rescue")
    if kind in ("attach", "detach") and s.nic is not (kind == "detach"):
        return False
    return s.want in allowed.get(kind, ("on", "off"))


# -- super conductors: the twin's request ------------------------------------------------------------------------------------


def queue_steps(model: Model, s: State) -> Iterator[Step]:
    for body, request in enumerate(s.requests):
        if request and len(s.conductors) < CONDUCTORS:
            fence, overtakes = request[1] + 1, any((c.body, c.fence) == (body, request[1]) for c in s.conductors)
            leased = s._replace(
                requests=put(s.requests, body, ("leased", fence)),
                conductors=tuple(sorted((*s.conductors, Conductor("claim", body, fence)))),
            )
            yield ("lease", body, fence, "overtakes" if overtakes else ""), FAULT if overtakes else PROTOCOL, leased
    for conductor in s.conductors:
        rest = s._replace(conductors=tuple(c for c in s.conductors if c is not conductor))
        yield ("conductor killed", *conductor), FAULT, rest
        yield from conductor_steps(model, s, rest, conductor)


def conductor_steps(model: Model, s: State, rest: State, conductor: Conductor) -> Iterator[Step]:
    """What a conductor may do next. ``rest``: the state without it."""
    body = conductor.body
    leased = s.requests[body] == ("leased", conductor.fence)
    operation = operation_of(s, body)
    if conductor.step == "claim" and leased:
        yield from claiming(model, s, rest, conductor)
    elif conductor.step == "stage" and may_stage(s, conductor):
        yield staging(model, s, rest, conductor)
    elif conductor.step == "hold" and leased and operation:
        if operation.state == "placing":
            rest = rest._replace(operation=operation._replace(state="holding", held=operation.kind != "unshelve"))
        yield ("the source is to be held", body), PROTOCOL, goes_on(rest, conductor, "hand")
    elif conductor.step == "hand" and leased and may_hand_over(model, operation):
        if not operation or model.source_is_held(s, operation):
            yield ("hand over", body, conductor.host), PROTOCOL, handed_over(model, rest, conductor, operation)
    else:
        yield ("refused", *conductor), PROTOCOL, rest


def goes_on(s: State, conductor: Conductor, step: str, host: str = "") -> State:
    after = conductor._replace(step=step, host=host or conductor.host)
    return s._replace(conductors=tuple(sorted((*s.conductors, after))))


def source_host(s: State) -> str:
    """Where the server is now; empty: it is shelved."""
    row = s.rows[s.pointer]
    return row.host if row else ""


def claiming(model: Model, s: State, rest: State, conductor: Conductor) -> Iterator[Step]:
    body, operation, claim = conductor.body, operation_of(s, conductor.body), s.claims[conductor.body]
    if claim:
        yield ("claim adopted", *conductor), PROTOCOL, goes_on(rest, conductor, "stage", claim)
        return
    source = source_host(s)
    for host in model.names:
        if host != source or (operation and operation.kind == "resize"):
            claimed = rest._replace(claims=put(rest.claims, body, host))
            yield ("claim", body, host), PROTOCOL, goes_on(claimed, conductor, "stage", host)
    if operation and operation.state in ("placing", "holding"):
        yield ("no valid host", body), ENVIRONMENT, model.give_up(rest, operation)


def may_stage(s: State, conductor: Conductor) -> bool:
    row = s.rows[conductor.body]
    return row is None or (row.state == "STAGED" and row.fence < conductor.fence)


def staging(model: Model, s: State, rest: State, conductor: Conductor) -> Step:
    _, body, fence, host = conductor
    source = source_host(s)
    others = tuple(x for x in model.names if x not in (host, source) and model.cell_of[x] == model.cell_of[host])
    row = Row("STAGED", fence, 1, host, others[:1], power="on" if s.want == "rescue" else s.want)
    return ("stage", body, host), PROTOCOL, goes_on(rest._replace(rows=put(rest.rows, body, row)), conductor, "hold")


def may_hand_over(model: Model, operation: Operation | None) -> bool:
    return (operation is not None and operation.state == "holding") or not model.on("delete-op") or not model.on("one-op")


def handed_over(model: Model, rest: State, conductor: Conductor, operation: Operation | None) -> State:
    t = rest._replace(
        requests=put(rest.requests, conductor.body, None), operation=operation and operation._replace(state="building")
    )
    t = model.set_mapping(t, conductor.body, mapped=True)
    if operation and not model.on("late-loser"):
        t = model.end_body(t, operation.source)
    return model.send(t, ("order", conductor.host, conductor.body, 1))


# -- sweeps of the API level -------------------------------------------------------------------------------------------------


def sweep_steps(model: Model, s: State) -> Iterator[Step]:
    for body, mapping in enumerate(s.mappings):
        row = s.rows[body]
        if mapping is None:
            continue
        if row and row.state == "STAGED" and mapping.mapped and not mapping.deleted:
            yield ("settler activates", body), PROTOCOL, model.set_row(s, body, state="SCHEDULED")
        if mapping.deleted and not mapping.mapped and not s.requests[body]:
            if row and row.state == "STAGED":
                yield ("settler removes", body), PROTOCOL, s._replace(rows=put(s.rows, body, None))
            if s.claims[body]:
                yield ("reaper", body), PROTOCOL, s._replace(claims=put(s.claims, body, None))
        if mapping.deleted and mapping.mapped and mapping.told != "deleted":
            yield ("delete carried to the cell", body), PROTOCOL, model.delete_in_cell(s, body)
    for number, writer in s.removals:
        if may_still_write(s, writer):
            continue
        images = frozenset(image for image in s.images if image[0] != number)
        yield ("snapshot removed", number), PROTOCOL, s._replace(images=images, removals=s.removals - {(number, writer)})
    if s.operation:
        yield from asking(model, s, s.operation)
        yield from advancing(model, s, s.operation)


def may_still_write(s: State, body: int) -> bool:
    """Whether the host of this body has told neither that its latest task is over, nor that it has ended."""
    if body < 0:
        return False
    mapping = s.mapping(body)
    return mapping.told != "deleted" and (mapping.deleted or mapping.task not in ("done", "failed"))


# -- cells -------------------------------------------------------------------------------------------------------------------


def feed_steps(model: Model, s: State) -> Iterator[Step]:
    for i, cell in enumerate(model.cells):
        if s.feed[i]:
            event = s.feed[i][0]
            t = model.apply_event(s._replace(feed=put(s.feed, i, s.feed[i][1:])), event)
            yield ("apply feed", cell, *event), PROTOCOL, t
            yield ("apply feed, again later", cell, *event), FAULT, model.send(t, ("event", event))


def cell_steps(model: Model, s: State) -> Iterator[Step]:
    """Orders that a cell sends again, hosts that are called dead, and the cell's own deadline."""
    for body, row in enumerate(s.rows):
        if row is None:
            continue
        host, up = row.host, model.agent(s, row.host).up
        order, delete, gone = ((kind, host, body, row.attempt) for kind in ("order", "delete", "gone"))
        called_dead = s._replace(dead=s.dead | {(body, host)})
        if row.state == "SCHEDULED" and up and order not in s.bag:
            yield order, PROTOCOL, model.send(s, order)
        if row.state == "DELETING" and up and delete not in s.bag and gone not in s.bag:
            yield ("delete order", host, body), PROTOCOL, model.send(s, delete)
        if row.state == "DELETING" and not up:
            yield ("host dead: called gone", host, body), PROTOCOL, model.ended(called_dead, body)
        if row.state in ("SCHEDULED", "BUILDING"):
            yield ("host called dead", host, body), FAULT if up else PROTOCOL, model.next_attempt(called_dead, body)
            if not model.on("twin-deadline"):
                yield ("cell's deadline", body), ENVIRONMENT, model.error(s, body)
        if row.state == "ACTIVE" and row.task in ("ordered", "running") and up:
            yield from task_order(model, s, body, row)


def task_order(model: Model, s: State, body: int, row: Row) -> Iterator[Step]:
    at_work = model.agent(s, row.host).tasks[body]
    order = ("task", row.host, body, row.number, row.power)
    if at_work and (at_work.number, at_work.acted) == (row.number, False):
        return
    if order not in s.bag and ("done", row.host, body, row.number) not in s.bag:
        yield ("task order", *order[1:]), PROTOCOL, model.send(s, order)


# -- agents ------------------------------------------------------------------------------------------------------------------


def agent_steps(model: Model, s: State) -> Iterator[Step]:
    for host, agent in zip(model.names, s.agents, strict=True):
        if not agent.up:
            yield ("agent starts", host), PROTOCOL, model.set_agent(s, host, up=True, start=agent.start + 1)
            continue
        here = [guest for guest in s.guests if guest.host == host]
        if here or any(agent.builds) or any(m[0] in ("order", "task", "delete") and m[1] == host for m in s.bag):
            nothing = (None,) * model.n
            down = model.set_agent(s, host, up=False, builds=nothing, tasks=nothing)
            yield ("agent killed", host), FAULT, down
            off = frozenset(guest._replace(on=False) if guest.host == host else guest for guest in s.guests)
            yield ("host loses power", host), FAULT, down._replace(guests=off)
        for body, (build, task) in enumerate(zip(agent.builds, agent.tasks, strict=True)):
            row = s.rows[body]
            if build:
                yield from building(model, s, host, body, build)
            if task and not task.acted:
                yield ("acts", host, body, task.number, task.power), PROTOCOL, act(model, s, host, body, task)
                if model.failing and (task.power != "held" or not model.on("hold-repeats")):
                    t = model.set_task(s, host, body, None)
                    failed = ("failed", host, body, task.number)
                    yield ("task fails", *failed[1:]), FAULT, model.send(t, failed)._replace(failed=True)
                    t = model.replace_guest(
                        t, s.guest(body, host), *(connected(guest, task.power) for guest in here if guest.body == body)
                    )
                    yield ("task fails half-way", *failed[1:]), FAULT, model.send(t, failed)._replace(failed=True)
            if row and row.state == "BUILDING" and row.host == host and row.builder != agent.start and not s.guest(body, host):
                yield ("hands back", host, body), PROTOCOL, model.next_attempt(s, body)
        for guest in here:
            yield from audit(model, s, guest, agent)


def building(model: Model, s: State, host: str, body: int, build: Build) -> Iterator[Step]:
    row, start, done = s.row(body), model.agent(s, host).start, model.set_build(s, host, body, None)
    granted = (row.state, row.host, row.attempt, row.builder) == ("BUILDING", host, build.attempt, start)
    if not build.spawned:
        if disk := copied(model, s, body):
            t = model.set_build(s, host, body, build._replace(spawned=True))
            guest = Guest(body, host, build.attempt, start, runs(row.power), disk, s.nic)
            yield ("copied and spawned", host, body, disk), PROTOCOL, model.replace_guest(t, None, guest)
        yield ("spawn failed", host, body), PROTOCOL, model.next_attempt(done, body) if granted else done
    elif granted:
        yield ("reports active", host, body), PROTOCOL, model.set_row(done, body, tell=True, state="ACTIVE")
    elif row.state != "DELETING":
        yield ("active refused: destroys", host, body), PROTOCOL, model.replace_guest(done, s.guest(body, host))


def copied(model: Model, s: State, twin: int) -> str:
    """What the twin's disk becomes: full or torn; empty while it cannot be copied. An evacuation makes it anew or has it shared."""
    operation = operation_of(s, twin)
    if operation is None:
        return ""
    if operation.kind == "evacuate":
        return "full"
    if operation.kind == "unshelve":
        return next((disk for number, disk in s.images if number == s.mapping(operation.source).image), "")
    origin = next((guest for guest in s.guests if guest.body == operation.source and model.agent(s, guest.host).up), None)
    return "" if origin is None else "torn" if origin.on else "full"


def act(model: Model, s: State, host: str, body: int, task: AgentTask) -> State:
    guest = s.guest(body, host)
    s = model.set_task(s, host, body, task._replace(acted=True))
    if guest is None:
        return s
    if task.power == "reboot":
        twice = "R1 one reboot was carried out twice" if task.number in s.rebooted else ""
        s = s._replace(broken=twice, rebooted=s.rebooted | {task.number})
    if task.power.startswith("copy"):  # at one moment, also of a guest that runs; it stays what it is
        s = s._replace(images=s.images | {(task.number, guest.disk)})
        return model.send(s, ("done", host, body, task.number))
    if task.power == "save":
        disk = "torn" if guest.on and not model.on("snapshot-off") else guest.disk
        s = s._replace(images=frozenset({*(image for image in s.images if image[0] != task.number), (task.number, disk)}))
    s = model.replace_guest(s, guest, connected(guest, task.power)._replace(on=runs(task.power)))
    return model.send(s, ("done", host, body, task.number))


def connected(guest: Guest, power: str) -> Guest:
    """The guest with or without its interface, if the task says so."""
    return guest._replace(nic=power.startswith("nic+")) if power.startswith("nic") else guest


def audit(model: Model, s: State, guest: Guest, agent: Agent) -> Iterator[Step]:
    """An agent compares a guest with its cell's record."""
    body, host, row = guest.body, guest.host, s.rows[guest.body]
    recorded = row and (row.host, row.attempt) == (host, guest.attempt) and row.state in ("BUILDING", "ACTIVE", "DELETING")
    if not row or not recorded:
        if not agent.builds[body]:
            yield ("unknown guest destroyed", host, body), PROTOCOL, model.replace_guest(s, guest)
    elif row.state == "BUILDING" and row.builder == guest.builder and not agent.builds[body]:
        yield ("found guest reported active", host, body), PROTOCOL, model.set_row(s, body, tell=True, state="ACTIVE")
    elif row.state == "ACTIVE" and not guest.on and not agent.tasks[body]:
        if not model.on("return-asks") and agent.start > 1:
            yield ("turned on again, unasked", host, body), PROTOCOL, model.replace_guest(s, guest, guest._replace(on=True))
        elif runs(row.power) and (row.task == "done" or (row.task == "failed" and model.on("resume-failed"))):
            # the cell grants it for the number in force
            resume = AgentTask(row.number, False, row.power.split()[-1].replace("reboot", "on"))
            yield ("resume granted", host, body), PROTOCOL, model.set_task(s, host, body, resume)


# -- messages ----------------------------------------------------------------------------------------------------------------


def message_steps(model: Model, s: State) -> Iterator[Step]:
    for m in s.bag:
        without = s._replace(bag=s.bag - {m})
        for t in deliver(model, without, m):
            yield ("deliver", *m), PROTOCOL, t
            if m[0] in ON_THE_WIRE:
                yield ("deliver, a double stays", *m), FAULT, model.send(t, m)
        if m[0] in ON_THE_WIRE:
            yield ("lose", *m), FAULT, without


def deliver(model: Model, s: State, m: Message) -> list[State]:
    """The states that handling ``m``, already out of the bag, may lead to; none while its agent is down."""
    kind = m[0]
    if kind == "event":
        return [model.apply_event(s, m[1])]
    if kind == "ask":
        return [model.ask(s, *m[1:])]
    if kind in ("done", "failed"):
        return [reported(model, s, *m)]
    if kind == "gone":
        _, host, body, attempt = m
        row = s.row(body)
        current = row.state == "DELETING" and (row.host, row.attempt) == (host, attempt)
        return [model.ended(s, body) if current else s]
    if kind in ("order", "task", "delete"):
        return [ordered(model, s, *m)] if model.agent(s, m[1]).up else []
    # the rest are writes about an operation, which may be over
    if s.operation is None or s.operation.number != m[1]:
        return [s]
    if kind == "switch":
        return switched(model, s, s.operation)
    if kind == "offload":
        return [offloaded(model, s, s.operation)]
    if kind == "reclaim":
        return [reclaimed(model, s, s.operation)]
    return [undone(model, s, s.operation) if kind == "undo" else decided(model, s, s.operation, kind)]


def reported(model: Model, s: State, kind: str, host: str, body: int, number: int) -> State:
    """An agent's report of a task, done or failed, and the answer."""
    row, task = s.row(body), model.agent(s, host).tasks[body]
    if task and (task.number, task.acted) == (number, True):
        s = model.set_task(s, host, body, None)
    in_force = (row.state, row.host) == ("ACTIVE", host) and row.task in ("ordered", "running")
    if in_force and (row.number == number or not model.on("done-number")):
        s = model.set_row(s, body, tell=True, task=kind)
    return s


def ordered(model: Model, s: State, kind: str, host: str, body: int, n: int, power: str = "") -> State:
    """An order reaches its agent. ``n``: the attempt; of a task, its number."""
    agent, row, guest = model.agent(s, host), s.rows[body], s.guest(body, host)
    build, task = agent.builds[body], agent.tasks[body]
    if kind == "order":
        fits = row and row.state in ("STAGED", "SCHEDULED") and (row.host, row.attempt) == (host, n) and not build and not guest
        if not fits:
            return s
        return model.set_build(model.set_row(s, body, state="BUILDING", builder=agent.start), host, body, Build(n))
    if kind == "delete":
        if (build and build.attempt > n) or (guest and guest.attempt > n):
            return s
        s = model.set_task(model.set_build(model.replace_guest(s, guest), host, body, None), host, body, None)
        return model.send(s, ("gone", host, body, n))
    if guest is None or build or (task and not task.acted):
        return s  # it is at work: the cell sends the order again
    if task and task.number == n:
        return model.send(s, ("done", host, body, n))
    return model.begin(s, host, body, n) if model.on("begin") else act(model, s, host, body, AgentTask(n, False, power))
