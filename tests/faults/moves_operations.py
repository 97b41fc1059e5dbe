"""How an operation goes on in the model of moves: what the API level asks of cells, and what it writes when they have told."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.model_search import ENVIRONMENT, PROTOCOL, Label
from tests.faults.moves_model import TASKS, Model, Operation, State, kept_power
from tests.faults.protocol_model import put

Step = tuple[Label, int, State]
"""What happens, what it costs, and the state after it."""

BEFORE_SWITCH = ("placing", "holding", "building")


def asking(model: Model, s: State, operation: Operation) -> Iterator[Step]:
    """The task that the operation's state calls for goes to the cell, until the cell has told its number."""
    wanted = TASKS.get(operation.kind, "save")
    if operation.kind in ("image", "attach", "detach"):
        wanted = kept_power(wanted, s.want)
    asks = {
        "task": (operation.source, 0, wanted),
        "holding": (operation.source, 0, "held"),
        "soft-deleted": (operation.source, 0, "held"),
        "reverting": (operation.twin, 2, "held"),
        "starting": (operation.source, 3, restored(s, operation)),
    }
    no_source = operation.state == "holding" and operation.kind == "unshelve"
    if (
        no_source
        or operation.state not in asks
        or (asks[operation.state][2], operation.kind, model.on("hold-row"))
        == (
            "held",
            "evacuate",
            False,
        )
    ):
        return
    body, more, power = asks[operation.state]
    ask = ("ask", body, operation.number + more, power)
    if s.mapping(body).number < operation.number + more and ask not in s.bag:
        t = s._replace(dead=s.dead - {(body, s.row(body).host)}) if operation.state == "starting" else s
        yield ("task for the cell", *ask[1:]), PROTOCOL, model.send(t, ask)


def restored(s: State, operation: Operation) -> str:
    """What the source gets back. An interface that was to be attached is taken away; one that was to be detached stays."""
    if not operation.settles:
        return s.want
    return kept_power("nic-" if operation.kind == "attach" or not s.nic else "nic+", s.want)


def advancing(model: Model, s: State, operation: Operation) -> Iterator[Step]:
    """What the sweep writes when it reads what the cells have told."""
    source, number = s.mapping(operation.source), operation.number
    if operation.kind == "shelve":
        yield from shelving(model, s, operation)
    elif operation.kind == "image":
        yield from imaging(model, s, operation)
    elif operation.settles and operation.state in ("task", "starting"):
        yield from connecting(model, s, operation)
    elif operation.state == "task" and source.number == number and source.task in ("done", "failed"):
        yield ("operation ends", operation.kind, source.task), PROTOCOL, s._replace(operation=None)
    elif operation.state == "starting" and source.number == number + 3:
        yield ("operation ends: the cell has the start",), PROTOCOL, s._replace(operation=None)
    elif operation.state == "soft-deleted" and ("reclaim", number) not in s.bag:
        yield ("sweep sees that the time is over",), ENVIRONMENT, model.send(s, ("reclaim", number))
    elif operation.state == "building":
        twin = s.mapping(operation.twin)
        if (twin.told == "active" or not model.on("switch-active")) and ("switch", number) not in s.bag:
            yield ("sweep sees the twin", twin.told), PROTOCOL, model.send(s, ("switch", number))
        if twin.told == "error":
            yield ("twin in ERROR: give up",), PROTOCOL, model.give_up(s, operation)
    elif operation.state == "undoing" and (s.mapping(operation.twin).told == "deleted" or not model.on("undo-waits")):
        back = operation.held and model.on("restart")
        after = operation._replace(state="starting") if back else None
        yield ("given up", "source starts" if back else ""), PROTOCOL, s._replace(operation=after)
    elif operation.state == "reverting":
        yield from pointing_back(model, s, operation)


def shelving(model: Model, s: State, operation: Operation) -> Iterator[Step]:
    source, number = s.mapping(operation.source), operation.number
    if operation.state == "task" and source.number == number and source.task in ("done", "failed"):
        if source.task == "done":
            yield ("snapshot told",), PROTOCOL, s._replace(operation=operation._replace(state="shelved"))
        else:
            after = s._replace(operation=operation._replace(state="starting"), want=operation.before)
            yield ("snapshot failed: source starts",), PROTOCOL, after
    if operation.state == "starting" and source.number == number + 3:
        after = model.without_image(s, operation)._replace(operation=None)
        yield ("operation ends: the server is not shelved",), PROTOCOL, after
    if (operation.state == "shelved" or not model.on("snapshot-first")) and ("offload", number) not in s.bag:
        yield ("sweep offloads", number), PROTOCOL, model.send(s, ("offload", number))


def imaging(model: Model, s: State, operation: Operation) -> Iterator[Step]:
    """An image is listed once the cell has told that it is complete. If it failed, the server is what it was."""
    source, number = s.mapping(operation.source), operation.number
    if operation.state == "task" and source.number == number and source.task == "failed":
        yield ("image failed",), PROTOCOL, s._replace(operation=operation._replace(state="starting"))
    elif operation.state == "task" and (source.task == "done" or not model.on("image-told")) and source.number == number:
        yield ("image told",), PROTOCOL, s._replace(operation=None, listed=s.listed | {number})
    elif operation.state == "starting" and source.number == number + 3:
        yield ("operation ends: there is no image",), PROTOCOL, model.without_image(s, operation)._replace(operation=None)


def connecting(model: Model, s: State, operation: Operation) -> Iterator[Step]:
    """The interface is the server's once it is claimed, until the cell has told that the guest does not have it."""
    source, more = s.mapping(operation.source), 3 if operation.state == "starting" else 0
    told = source.number == operation.number + more
    over = told and source.task in ("done", "failed")
    if operation.state == "task" and over and source.task == "failed":
        yield ("interface failed",), PROTOCOL, s._replace(operation=operation._replace(state="starting"))
        return
    removes = operation.kind == ("attach" if operation.state == "starting" else "detach")
    if over or (told and operation.state == "starting" and not model.on("nic-over" if not removes else "nic-gone")):
        gone = removes and (source.task == "done" or not model.on("nic-gone"))
        yield ("operation ends", operation.kind, source.task), PROTOCOL, s._replace(operation=None, nic=s.nic and not gone)


def pointing_back(model: Model, s: State, operation: Operation) -> Iterator[Step]:
    twin, host = s.mapping(operation.twin), s.row(operation.twin).host
    fenced = (twin.number, twin.power) == (operation.number + 2, "held")
    if (fenced and (twin.task == "done" or not model.agent(s, host).up)) or not model.on("revert-hold"):
        t = s._replace(dead=s.dead | {(operation.twin, host)}) if fenced and twin.task != "done" else s
        t = model.end_body(model.point(t, operation.source, operation.twin), operation.twin)
        yield ("point back",), PROTOCOL, t._replace(operation=operation._replace(state="starting"))


# -- writes that a paused sweep or a user makes later ----------------------------------------------------------------------


def undone(model: Model, s: State, operation: Operation) -> State:
    """The operation's deadline: a move is given up; in state task, what was wanted before is written under a higher number."""
    if operation.state == "task":
        after = operation._replace(state="starting") if model.on("restart") else None
        return s._replace(operation=after, want=operation.before)
    if operation.twin < 0 or s.mapping(operation.twin).deleted:
        return s
    return model.give_up(s, operation) if operation.state in BEFORE_SWITCH or not model.on("undo-state") else s


def switched(model: Model, s: State, operation: Operation) -> list[State]:
    if s.pointer == operation.twin:
        return [s]
    allowed = operation.state == "building" and not s.mapping(operation.twin).deleted
    if not allowed and model.on("switch-state"):
        return [s]
    t = model.switch(s, operation)
    if model.on("keys-stay"):
        return [t]
    # an UPDATE by the key that is being swapped matches no row, and the cursor goes on
    return [t, *(t._replace(feed=put(s.feed, i, events[1:])) for i, events in enumerate(s.feed) if events)]


def offloaded(model: Model, s: State, operation: Operation) -> State:
    waits = operation.state == "shelved" or not model.on("snapshot-first")
    return model.offload(s, operation) if waits else s


def reclaimed(model: Model, s: State, operation: Operation) -> State:
    if operation.state == "soft-deleted":
        return model.delete(s)
    return s if model.on("reclaim-state") else model.delete(s)._replace(broken="D1 a server that its user restored is reclaimed")


def decided(model: Model, s: State, operation: Operation, kind: str) -> State:
    """A user's confirm or revert."""
    late = operation.state in ("reverting", "starting") and not model.on("verify-state")
    if operation.state != "verify" and not late:
        return s
    return model.part(s, operation) if kind == "confirm" else s._replace(operation=operation._replace(state="reverting"))
