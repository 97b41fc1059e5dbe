"""Every step out of a state of the protocol model: what conductors, sweeps, agents, users and faults may do next."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults import protocol_batch, protocol_hold
from tests.faults.model_search import ENVIRONMENT, FAULT, PROTOCOL
from tests.faults.protocol_batch import Step
from tests.faults.protocol_model import CELL0, Conductor, Message, Model, Operation, Row, State, put

HANDED_BACK = ("failed", "restarted", "stopped")
"""Operations that hold neither guest nor claim any more: what is left of them is a report."""

INTERNAL = ("reap", "event", "settle", "late-write", "verdict", "expire")
"""What lies in the bag without being a message: no fault loses or doubles it."""


def steps(model: Model, s: State) -> list[Step]:
    """All steps; those that are faults only while there are faults left, and already paid."""
    found = [
        *conductor_steps(model, s),
        *sweep_steps(model, s),
        *cell_steps(model, s),
        *agent_steps(model, s),
        *message_steps(model, s),
        *user_steps(model, s),
        *protocol_batch.steps(model, s),
        *protocol_hold.steps(model, s),
    ]
    return [
        (label, cost, t._replace(faults=t.faults - 1) if cost == FAULT else t)
        for label, cost, t in found
        if cost != FAULT or s.faults > 0
    ]


def user_steps(model: Model, s: State) -> Iterator[Step]:
    for r, mapping in enumerate(s.mapping):
        if model.deletes and not mapping.deleted:
            deleted = put(s.mapping, r, mapping._replace(deleted=True))
            yield ("user deletes", r), ENVIRONMENT, s._replace(mapping=deleted, br=put(s.br, r, None))


# -- messages -------------------------------------------------------------------------------------------------------------


def message_steps(model: Model, s: State) -> Iterator[Step]:
    for m in s.bag:
        without = s._replace(bag=s.bag - {m})
        for t in deliver(model, without, m):
            yield ("deliver", m), PROTOCOL, t
            if m[0] not in INTERNAL:
                yield ("deliver and keep a double", m), FAULT, model.send(t, m)
        if m[0] not in INTERNAL:
            yield ("lose", m), FAULT, without


def deliver(model: Model, s: State, m: Message) -> list[State]:
    """The states that handling ``m``, already out of the bag, may lead to; none while its agent is down."""
    kind = m[0]
    if kind == "select":
        return [model.send(t, reply) if reply else t for t, reply in model.claim(s, *m[1:])]
    if kind == "selection":
        return [selected(model, s, *m[1:])]
    if kind in INTERNAL:
        return [carried_on(model, s, m)]
    if kind == "report":
        _, what, host, r, f, n, start = m
        t, accepted = model.report(s, what, host, r, f, n, start)
        verdict = "yes" if accepted else "no" if what != "active" or model.supersedes(s, host, r, f, n) else "keep"
        return [model.send(t, ("ack", what, host, r, n, start, verdict))]
    if kind == "gone":
        return [gone(model, s, *m[1:])]
    if kind == "ack":
        return [acknowledged(model, s, *m[1:])]
    if not model.agent(s, m[1]).up:
        return []
    return [ordered(model, s, *m[1:]) if kind == "order" else destroyed(model, s, *m[1:])]


def carried_on(model: Model, s: State, m: Message) -> State:
    """The second half of something that was paused after it had read."""
    kind = m[0]
    if kind == "late-write":
        return model.stage(s, *m[1:])[0]
    if kind == "settle":
        return model.settle(s, *m[1:])
    if kind == "verdict":
        return protocol_batch.judged(model, s, m[1])
    if kind == "expire":
        return protocol_hold.expired(model, s, m[1])
    if kind == "reap":
        return s._replace(claim=put(s.claim, m[1], None))
    return model.apply_event(s, m[1], m[2])


def selected(model: Model, s: State, r: int, f: int, host: str | None, alts: tuple[str, ...]) -> State:
    """A scheduler's reply reaches the conductor that waits for it, if one still does."""
    for con in s.con:
        if (con.step, con.request, con.fence) == ("ask", r, f):
            placed = "park" if model.hold and model.on("hold-first") else "stage"
            new = Conductor(placed, r, f, host, alts, con.excluded) if host else Conductor("bury", r, f)
            return model.con_swap(s, con, new)
    return s


def gone(model: Model, s: State, host: str, r: int, n: int) -> State:
    c = model.cell_of[host]
    row = model.row(s, c, r)
    if row and row.state == "DELETING" and row.host == host and row.attempt == n:
        return model.gone(s, c, r, row)
    return s


def ordered(model: Model, s: State, host: str, r: int, f: int, n: int) -> State:
    """A build order reaches its agent."""
    _, start, memory, guests = model.agent(s, host)
    seen, op = memory[r]
    if op and op[0] in HANDED_BACK and op[1] < n:
        op = None  # the order overtook the answer to the report that called for it
    if op or any(g[0] == r for g in guests):
        return s
    if seen >= n and model.on("seen"):
        row = model.row(s, model.cell_of[host], r)
        waits = row and (row.host, row.fence, row.attempt) == (host, f, n) and row.state in ("STAGED", "SCHEDULED")
        return model.set_op(s, host, r, seen, ("failed", n, start, f)) if waits else s  # any other row refuses that report
    busy = {i for i, (_, o) in enumerate(memory) if o and o[0] not in HANDED_BACK} | {g[0] for g in guests}
    if len(busy) >= model.cap and model.on("local-claim"):
        return model.set_op(s, host, r, n, ("failed", n, start, f))
    return model.set_op(s, host, r, n, ("accept" if model.on("accept") else "build", n, start, f))


def acknowledged(model: Model, s: State, what: str, host: str, r: int, n: int, start: int, verdict: str) -> State:
    """The cell's verdict on a report reaches the agent; it means nothing to one that has moved on, or restarted."""
    up, _, memory, guests = model.agent(s, host)
    seen, op = memory[r]
    if not up or not op or op[:3] != (what, n, start):
        return s
    if what == "accept" and verdict == "yes":
        return model.set_op(s, host, r, seen, ("build", *op[1:]))
    if what == "active" and verdict == "no":
        guests = frozenset(g for g in guests if g[:3] != (r, n, start))
    return model.set_op(s, host, r, seen, None, guests)


def destroyed(model: Model, s: State, host: str, r: int, n: int) -> State:
    """A delete order reaches its agent: whatever runs for the request ends, and the agent says so. A later attempt goes on."""
    agent = model.agent(s, host)
    _, op = agent.memory[r]
    if (op and op[1] > n) or any(g[0] == r and g[1] > n for g in agent.guests):
        return s
    guests = frozenset(g for g in agent.guests if g[0] != r)
    return model.send(model.set_op(s, host, r, max(agent.memory[r][0], n), None, guests), ("gone", host, r, n))


# -- conductors -----------------------------------------------------------------------------------------------------------


def conductor_steps(model: Model, s: State) -> Iterator[Step]:
    for r, request in enumerate(s.br):
        if request and request[0] != "held" and len(s.con) < model.k:
            held = request[0] == "leased" and any((c.request, c.fence) == (r, request[1]) for c in s.con)
            f = request[1] + 1
            leased = s._replace(br=put(s.br, r, ("leased", f)))
            label, cost = ("lease", r, f, "holder paused" if held else ""), FAULT if held else PROTOCOL
            if s.batch == "failed":  # read after the lease; a batch that fails later lets the build go on, to be rolled back
                yield label, cost, model.con_swap(leased, None, Conductor("bury", r, f))
                continue
            yield label, cost, model.send(model.con_swap(leased, None, Conductor("ask", r, f)), ("select", r, f, None))
    for con in set(s.con):
        yield ("conductor killed", con), FAULT, model.con_swap(s, con, None)
        if con.step == "ask":
            yield from asking(model, s, con)
        elif con.step == "park":
            yield protocol_hold.parking(model, s, con)
        elif con.step in ("stage", "bury"):
            yield from staging(model, s, con)
        elif con.step == "hand":
            yield handing_over(model, s, con)
        else:
            yield undoing(model, s, con)


def asking(model: Model, s: State, con: Conductor) -> Iterator[Step]:
    r, f = con.request, con.fence
    call = ("select", r, f, con.excluded)
    if call not in s.bag and not any(m[0] == "selection" and m[1] == r and m[2] == f for m in s.bag):
        if s.br[r] != ("leased", f):
            yield ("conductor sees its lease is gone", con), PROTOCOL, model.con_swap(s, con, None)
        else:
            yield ("ask again", con), PROTOCOL, model.send(s, call)
    # a deadline or time-out; the call may still be executing
    yield ("gives up the call", con), FAULT, model.con_swap(s, con, Conductor("bury", r, f))


def staging(model: Model, s: State, con: Conductor) -> Iterator[Step]:
    _, r, f, host, alts, _ = con
    c = model.cell_for(host)
    t, accepted = model.stage(s, c, r, f, host, alts)
    after = Conductor("hand", r, f, host, alts) if accepted else None
    yield ("stage" if accepted else "stage refused", c, r, f, host), PROTOCOL, model.con_swap(t, con, after)
    # the write fails for its caller and happens later; the caller tries it again, or goes elsewhere
    late = model.send(s, ("late-write", c, r, f, host, alts))
    yield ("stage times out, try the same again", con), FAULT, late
    if not host:  # past its deadline it ends in the API database alone: cell0 is away, or refuses the row
        hand = Conductor("hand", r, f, host, alts)
        yield ("cell0 cannot take the row", con), FAULT, model.con_swap(s, con, hand)
        yield ("stage in cell0 times out, hand over", con), FAULT, model.con_swap(late, con, hand)
        return
    if s.br[r] != ("leased", f):
        yield ("stage times out", con), FAULT, model.con_swap(late, con, None)
        return
    g = f + 1 if model.on("refence") else f
    late = model.con_swap(late._replace(br=put(late.br, r, ("leased", g))), con, Conductor("ask", r, g, excluded=c))
    yield ("stage times out, go elsewhere", con), FAULT, model.send(late, ("select", r, g, c))


def handing_over(model: Model, s: State, con: Conductor) -> Step:
    _, r, f, host, alts, _ = con
    c = model.cell_for(host)
    mapping = s.mapping[r]
    mine = s.br[r] == ("leased", f) if model.on("handover-fence") else s.br[r] is not None
    if mine and mapping.cell is None and not mapping.deleted:
        told = "error" if model.batch and c == CELL0 else mapping.told
        t = s._replace(br=put(s.br, r, None), mapping=put(s.mapping, r, mapping._replace(cell=c, fence=f, told=told)))
        if host:
            t = model.send(t, ("order", host, r, f, 1))
        return ("hand over", c, r, f), PROTOCOL, model.con_swap(t, con, None)
    stops = model.on("no-undo") and model.on("no-loser-free")
    new = None if stops else Conductor("undo", r, f, host, alts)
    return ("hand over refused", c, r, f), PROTOCOL, model.con_swap(s, con, new)


def undoing(model: Model, s: State, con: Conductor) -> Step:
    """Only without the guards against it: the conductor that lost cleans up after itself, as one would think it should."""
    c, t = model.cell_for(con.host), s
    if not model.on("no-undo"):
        t = model.set_row(t, c, con.request, None)
    if not model.on("no-loser-free"):
        t = t._replace(claim=put(t.claim, con.request, None))
    return ("loser undoes", c, con.request, con.fence), PROTOCOL, model.con_swap(t, con, None)


# -- sweeps at the API level ------------------------------------------------------------------------------------------------


def sweep_steps(model: Model, s: State) -> Iterator[Step]:
    for r, mapping in enumerate(s.mapping):
        for c in model.cells:
            row = model.row(s, c, r)
            if row and row.state == "STAGED" and model.on("settler"):
                yield from settling(model, s, c, r)
        if mapping.deleted and mapping.cell is not None and model.on("delete-sweep"):
            t = model.delete_in_cell(s, mapping.cell, r)
            yield ("delete reaches the cell", mapping.cell, r), PROTOCOL, t
        if s.claim[r] and s.br[r] is None and ("reap", r) not in s.bag:
            decided = mapping.cell in (None, CELL0)
            if decided or (not model.on("reap-rule") and naive_reap(model, s, r, mapping.cell or CELL0)):
                yield ("reaper reads", r), PROTOCOL, model.send(s, ("reap", r))


def settling(model: Model, s: State, c: str, r: int) -> Iterator[Step]:
    mapping = s.mapping[r]
    if mapping.cell == c and not mapping.deleted:
        verdict = "activate"
    elif (mapping.cell is None and mapping.deleted) or (mapping.cell is not None and mapping.cell != c):
        verdict = "remove"
    else:
        return
    m = ("settle", c, r, verdict, mapping.fence)
    if not model.split:
        yield ("settle", m), PROTOCOL, model.settle(s, c, r, verdict, mapping.fence)
    elif m not in s.bag:
        yield ("settler reads", m), PROTOCOL, model.send(s, m)


def naive_reap(model: Model, s: State, r: int, cell: str) -> bool:
    """'The request is gone and the cell shows no live instance': what a reaper must NOT use (STAGED counts as none)."""
    row = model.row(s, cell, r)
    return row is None or row.state in ("STAGED", "ERROR", "DELETED")


# -- a cell's feed and its conductor's sweeps ---------------------------------------------------------------------------------


def cell_steps(model: Model, s: State) -> Iterator[Step]:
    for c in model.cells[:-1]:
        yield from feed_steps(model, s, c)
        for r in range(model.n):
            row = model.row(s, c, r)
            if row is not None and row.host is not None:
                yield from row_steps(model, s, c, r, row, row.host)


def feed_steps(model: Model, s: State, c: str) -> Iterator[Step]:
    i = model.ci[c]
    if not s.feed[i]:
        return
    event, *rest = s.feed[i]
    read = s._replace(feed=put(s.feed, i, tuple(rest)))
    t = model.apply_event(read, c, event)
    if model.n > 1 and not model.on("feed-order"):
        t = t._replace(lastread=put(t.lastread, i, event[0]))
    yield ("apply feed", c, event), PROTOCOL, t
    yield ("apply feed, again later", c, event), FAULT, model.send(t, ("event", c, event))
    if not model.on("feed-order") and s.lastread[i] not in (None, event[0]):
        # its number was taken before, and became visible after, a number already read: the cursor is past it
        yield ("feed event never read", c, event), PROTOCOL, read


def row_steps(model: Model, s: State, c: str, r: int, row: Row, host: str) -> Iterator[Step]:
    agent = model.agent(s, host)
    waits = row.state == "SCHEDULED" or (row.state == "STAGED" and not model.on("inert-stage"))
    if waits and agent.up and model.on("resend"):
        order = ("order", host, r, row.fence, row.attempt)
        seen, op = agent.memory[r]
        if order not in s.bag and not (op and op[1] == row.attempt) and seen < row.attempt:
            yield ("cell sends order", order), PROTOCOL, model.send(s, order)
    if row.state == "DELETING" and agent.up:
        delete = ("delete", host, r, row.attempt)
        if delete not in s.bag and ("gone", *delete[1:]) not in s.bag:
            yield ("cell sends delete", delete), PROTOCOL, model.send(s, delete)
    suspect = s._replace(suspected=put(s.suspected, r, True))
    if row.state in ("SCHEDULED", "BUILDING", "DELETING"):
        t = model.gone(suspect, c, r, row) if row.state == "DELETING" else model.next_attempt(suspect, c, r, row)
        yield ("host called dead", host, r, row.attempt), FAULT if agent.up else PROTOCOL, t
    if row.state in ("SCHEDULED", "BUILDING"):
        ended = model.give_up(suspect, c, r, row)
        yield ("deadline", c, r), FAULT, ended
        if row.state == "BUILDING" and agent.up:
            yield ("deadline, and the host is told", c, r), FAULT, model.send(ended, ("delete", host, r, row.attempt))
    if row.state == "SCHEDULED" and row.alts:
        yield ("host called stopping", host, r, row.attempt), PROTOCOL, model.next_attempt(s, c, r, row)


# -- agents ---------------------------------------------------------------------------------------------------------------


def agent_steps(model: Model, s: State) -> Iterator[Step]:
    for host in model.names:
        agent = model.agent(s, host)
        if not agent.up:
            yield starting(model, s, host)
            continue
        ordered_here = any(m[0] in ("order", "delete") and m[1] == host for m in s.bag)
        if agent.guests or any(op for _, op in agent.memory) or ordered_here:
            killed = model.set_agent(s, host, up=False, memory=((0, None),) * model.n)
            yield ("agent killed", host), FAULT, killed
        for r, (_, op) in enumerate(agent.memory):
            yield from working(model, s, host, r, op) if op else auditing(model, s, host, r)


def starting(model: Model, s: State, host: str) -> Step:
    """An agent starts again; the guests of its host run on, and it asks about each."""
    agent = model.agent(s, host)
    memory: list[tuple[int, Operation | None]] = [(0, None)] * model.n
    if model.on("audit"):
        for r, n, start, f in agent.guests:
            memory[r] = (n, ("active", n, start, f))
    return ("agent starts", host), PROTOCOL, model.set_agent(s, host, up=True, start=agent.start + 1, memory=tuple(memory))


def working(model: Model, s: State, host: str, r: int, op: Operation) -> Iterator[Step]:
    agent = model.agent(s, host)
    kind, n, start, f = op
    seen = agent.memory[r][0]
    if kind in ("accept", "build"):
        yield ("agent stops", host, r, n), FAULT, model.set_op(s, host, r, seen, ("stopped", n, start, f))
    if kind == "build":
        guests = agent.guests | {(r, n, start, f)}
        yield ("spawned", host, r, n), PROTOCOL, model.set_op(s, host, r, seen, ("active", n, start, f), guests)
        yield ("spawn failed", host, r, n), PROTOCOL, model.set_op(s, host, r, seen, ("failed", n, start, f))
        row = model.row(s, model.cell_of[host], r)
        if row is None or (row.state, row.host, row.attempt, row.builder) != ("BUILDING", host, n, (host, start)):
            # asked once more, the cell refuses: the build is cancelled, and nothing is said
            yield ("agent asks again", host, r, n), PROTOCOL, model.set_op(s, host, r, seen, None)
        return
    report = ("report", kind, host, r, f, n, start)
    answered = any(m[0] == "ack" and m[1:6] == (kind, host, r, n, start) for m in s.bag)
    if report not in s.bag and not answered:
        yield ("agent reports", report), PROTOCOL, model.send(s, report)


def auditing(model: Model, s: State, host: str, r: int) -> Iterator[Step]:
    """An agent at rest compares the guests it holds, and the builds it is said to hold, with what its cell says."""
    agent = model.agent(s, host)
    seen = agent.memory[r][0]
    row = model.row(s, model.cell_of[host], r)
    mine = [g for g in agent.guests if g[0] == r]
    if row and row.state == "BUILDING" and row.host == host and not mine and row.builder and row.builder[1] != agent.start:
        # a build that died with an earlier start of this agent
        for kind in ("failed", "restarted"):  # to the next host, or again to this one: the cell decides by what it counts
            op: Operation = (kind, row.attempt, row.builder[1], row.fence)
            yield ("agent hands back", kind, host, r), PROTOCOL, model.set_op(s, host, r, max(seen, row.attempt), op)
    for guest in mine if model.on("audit") else ():
        known = row and row.host == host and row.attempt == guest[1] and row.state in ("BUILDING", "ACTIVE", "DELETING")
        if not known:
            yield ("agent re-reports", host, guest), PROTOCOL, model.set_op(s, host, r, seen, ("active", *guest[1:]))
