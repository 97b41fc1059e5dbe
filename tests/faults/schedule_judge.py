"""What must hold in a region that runs step by step: after every step, and when it has come to rest.

The numbers are those of ``docs/protocol.md``. Everything is read from the databases' files and the hosts' journals.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from cli.standalone.demo import evidence
from cli.standalone.demo.evidence import Evidence, misplaced_reason
from compute.disks import Disk, read_disk
from compute.simulated import draw_fraction
from conductor.audit.audit import Audit
from conductor.audit.places import Places
from db.api.claims.claims import Ledger
from objects import stored
from objects.feed import INSTANCE_EVENTS
from objects.group import GroupPolicy
from objects.instance import Attempt, FailureClass
from objects.lifecycle import NO_HOST_LEFT, TOO_MANY_ATTEMPTS
from objects.operation import WANTED, OperationArgs, OperationKind, OperationState, Outcome
from objects.task import Power, TaskState
from tests.support.stepped_parts import CELLS, HOMES, ROOM
from tests.support.stepped_world import SteppedWorld

LIVE = ("scheduled", "building", "active")
ROUNDS = 12
"""Sweeps within which all must have come to rest."""


@dataclass(kw_only=True)
class Asked:
    """What was asked for one server, and what has happened to it that may end it as ERROR."""

    batch: int
    outcome: str = "ok"
    hosts: tuple[str, ...] = ()
    """Where the outcome is played; empty: everywhere."""
    fits: bool = True
    policy: GroupPolicy | None = None
    deleted: bool = False
    struck: bool = False
    """Its deadline has passed."""
    operated: bool = False
    """An operation on it was accepted: it was ACTIVE."""

    def fails_on(self, host: str) -> bool:
        return self.outcome != "ok" and (not self.hosts or host in self.hosts)


@dataclass(kw_only=True)
class Story:
    """What was done to the region so far, as far as it excuses anything."""

    asked: dict[str, Asked] = field(default_factory=dict)
    called_dead: set[str] = field(default_factory=set)
    restarted: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    """Cells that did not answer for a while: to a scheduler that starts meanwhile their hosts are down."""
    unfenced: set[str] = field(default_factory=set)
    """Hosts that were called dead, or whose guests were evacuated, while they could run guests."""


class Mapping_(NamedTuple):  # noqa: N801 - Mapping is taken
    uuid: str
    cell: str | None
    deleted: bool
    state: str
    requested: bool
    server: str
    hidden: bool
    shown_body: str | None
    """Of a home row: the body that is the server; None: itself."""
    charge: tuple[int, int]
    power: str
    task_number: int
    task_state: str


class Row(NamedTuple):
    uuid: str
    cell: str
    state: str
    fence: int
    attempt: int
    host: str | None
    power: str
    task_number: int
    task_state: str
    history: str | None

    @property
    def permits(self) -> bool:
        """Whether its guest may run."""
        return self.state in LIVE and Power(self.power).uses_disk


class GuestSeen(NamedTuple):
    host: str
    fence: int
    attempt: int
    power: str
    size: tuple[int, int]

    @property
    def runs(self) -> bool:
        return Power(self.power).uses_disk


class Asking(NamedTuple):
    """An operation."""

    kind: str
    state: str
    number: int
    power_before: str
    source: str
    twin: str | None
    outcome: str | None
    fault: str | None
    forced: bool
    source_host: str | None
    image: str | None
    """Of a rebuild."""

    @property
    def leaves(self) -> Power:
        """The power that its server is to have afterwards."""
        kind, before = OperationKind(self.kind), Power(self.power_before)
        if self.outcome in (Outcome.GIVEN_UP, Outcome.REVERTED):
            return before
        if kind is OperationKind.LIVE_MIGRATE:
            return before
        if kind.is_move:
            return Power.OFF if before is Power.OFF else Power.ON
        return WANTED.get(kind, before)


class Look:
    """All there is at one moment."""

    def __init__(self, world: SteppedWorld) -> None:
        raw = world.files.raw
        names = {key: name for name, key in CELLS.items()}
        query = (
            "SELECT m.instance_uuid, m.cell_uuid, m.deleted, m.state, r.instance_uuid IS NOT NULL, m.server_uuid, m.hidden, "
            "m.body_uuid, m.vcpus, m.memory_mb, m.power, m.task_number, m.task_state FROM instance_mappings m "
            "LEFT JOIN build_requests r ON r.instance_uuid = m.instance_uuid"
        )
        self.mappings: dict[str, Mapping_] = {}
        self.bodies: defaultdict[str, list[Mapping_]] = defaultdict(list)
        """Of each server."""
        for uuid, cell, deleted, state, requested, server, hidden, shown, cores, ram, *told in _all(raw["api"], query):
            place = names[cell] if cell else None
            charge = (cores or 0, ram or 0)
            made = Mapping_(uuid, place, bool(deleted), state, bool(requested), server or uuid, bool(hidden), shown, charge, *told)
            self.mappings[uuid] = made
            self.bodies[made.server].append(made)
        self.rows: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        query = (
            "SELECT uuid, state, fence, attempt, host, power, task_number, task_state, b.history "
            "FROM instances LEFT JOIN builds b ON b.instance_uuid = uuid"
        )
        for cell in CELLS:
            for uuid, *rest in _all(raw[cell], query):
                self.rows[uuid][cell] = Row(uuid, cell, *rest)
        query = "SELECT a.instance_uuid, i.host FROM allocations a JOIN inventories i ON i.id = a.inventory_id"
        self.claims: dict[str, str] = dict(_all(raw["api"], query))
        self.guests: defaultdict[str, list[GuestSeen]] = defaultdict(list)
        self.crowds: Counter[str] = Counter()
        for host in HOMES:
            for guest in world.guests(host):
                self.guests[guest.uuid].append(
                    GuestSeen(host, guest.fence, guest.attempt, guest.power, (guest.vcpus, guest.memory_mb))
                )
                self.crowds[host] += guest.vcpus
        self.charged = {
            table: [sum(column) for column in zip(*_all(raw["api"], query), strict=True)] or [0, 0, 0]
            for table, query in (
                ("quotas", "SELECT used_instances, used_cores, used_ram FROM quotas"),
                ("user_quotas", "SELECT used_instances, used_cores, used_ram FROM user_quotas"),
            )
        }
        query = (
            "SELECT server_uuid, kind, state, number, power_before, source_uuid, twin_uuid, outcome, fault, forced, "
            "source_host, args FROM operations ORDER BY number"
        )
        self.operations: defaultdict[str, list[Asking]] = defaultdict(list)
        for server, *values, args in _all(raw["api"], query):
            image = stored.load_text(args, OperationArgs).image_id if args else None
            self.operations[server].append(Asking._make((*values, image)))

    def shown(self, server: str) -> Mapping_:
        """The body that is the server."""
        return self.mappings[self.mappings[server].shown_body or server]

    def row_of(self, body: Mapping_) -> Row | None:
        """Its row in the cell that its mapping names."""
        return self.rows[body.uuid].get(body.cell or "")


def _all(connection: sqlite3.Connection, query: str) -> list[Any]:
    return connection.execute(query).fetchall()


# -- always ------------------------------------------------------------------------------------------------------------------


def unsafe(world: SteppedWorld, story: Story) -> list[str]:
    """What must never be, and is."""
    look = Look(world)
    story.unfenced |= _unfenced(world, look)
    broken = [f"S1: guests of {number} vCPUs on {host}" for host, number in look.crowds.items() if number > ROOM]
    for uuid, asked in story.asked.items():
        excused = bool(story.called_dead) or asked.struck
        for body in look.bodies[uuid]:
            broken += [f"{body.uuid}: {text}" for text in _unsafe(look, body.uuid, excused=excused)]
        if uuid not in look.mappings:
            broken.append(f"{uuid}: S5: it is nowhere")
        elif look.operations[uuid]:
            broken += [f"{uuid}: {text}" for text in _unsafe_server(world, look, uuid, story)]
    return broken + list(_charges(look))


def _unfenced(world: SteppedWorld, look: Look) -> set[str]:
    """Hosts that can run guests while they are called dead, or while an evacuation from them, which does not ask them, is open."""
    evacuated = {each.source_host for every in look.operations.values() for each in every if each.forced and each.outcome is None}
    at_work = {guest.host for guests in look.guests.values() for guest in guests if guest.runs} | world.processes.keys()
    return {host for host in (world.dead | evacuated) & at_work if host is not None}


def _charges(look: Look) -> Iterator[str]:
    """M3."""
    live = [body for bodies in look.bodies.values() for body in bodies if not body.deleted]
    due = [sum(not body.hidden for body in live), sum(body.charge[0] for body in live), sum(body.charge[1] for body in live)]
    for table, charged in look.charged.items():
        if due != charged:
            yield f"M3: charged {charged} in {table}, has {due}"


def _unsafe_server(world: SteppedWorld, look: Look, server: str, story: Story) -> Iterator[str]:
    """What must never be of a server that has had an operation (``docs/moves.md``).

    Until a respawn has ended its body is in ERROR, so M5 to M8 say nothing of it.
    """
    bodies, shown = look.bodies[server], look.shown(server)
    rows = {body.uuid: row for body in bodies for row in look.rows[body.uuid].values()}
    permitted = [row for body in bodies if (row := look.row_of(body)) is not None and row.permits]
    # an agent may begin by the order before the settler makes the row SCHEDULED
    permitted += [
        row
        for body in bodies
        if (row := look.row_of(body)) is not None and row.state == "staged" and not body.deleted and Power(row.power).uses_disk
    ]
    if len(permitted) > 1:
        yield f"M0: permitted {permitted}"
    running = [(body.uuid, guest) for body in bodies for guest in look.guests[body.uuid] if guest.runs]
    if len(running) > 1 and len([guest for _, guest in running if guest.host not in story.unfenced]) > 1:
        yield f"M1: run {running}"
    if [body for body in bodies if not body.hidden] != [shown]:
        yield f"M2: shown {[body.uuid for body in bodies if not body.hidden]}, pointer {shown.uuid}"
    for row in rows.values():
        done = row.state == "active" and row.task_state == TaskState.DONE and not Power(row.power).uses_disk
        done = done and row.power != Power.INCOMING  # its guest runs as soon as it has come
        if done and any(guest.runs for guest in look.guests[row.uuid]):
            yield f"M9: {row}, guests {look.guests[row.uuid]}"
    for body in bodies:
        if body.deleted and body.requested:
            yield f"M10: {body}"
        asked = sum(each.kind == OperationKind.REBOOT and each.source == body.uuid for each in look.operations[server])
        if world.reboots[body.uuid] > asked:
            yield f"R1: {body.uuid} was asked to reboot {asked} times, rebooted {world.reboots[body.uuid]} times"
    if not shown.deleted and story.asked[server].operated:
        yield from _unsafe_shown(world, look, shown)


def _unsafe_shown(world: SteppedWorld, look: Look, shown: Mapping_) -> Iterator[str]:
    row = look.row_of(shown)
    if shown.state != "active" or row is None or row.state != "active":
        yield f"M6: the server is {shown}, {row}"
        return
    own = _disk(world, row)
    if own is None or own.torn or own.server_uuid != shown.server:
        yield f"M7: on {row.host} its disk is {own}"
        return
    for each in look.operations[shown.server]:
        if each.twin != shown.uuid or each.kind in (OperationKind.EVACUATE, OperationKind.RESPAWN):
            continue
        source = look.row_of(look.mappings[each.source])
        before = _disk(world, source) if source is not None and source.state == "active" else None
        if before is not None and before.writes > own.writes:
            yield f"M8: its disk is {own}, and what it was copied from {before}"


def _disk(world: SteppedWorld, row: Row) -> Disk | None:
    return read_disk(str(world.path / "hosts"), row.host or "", row.uuid)


def _unsafe(look: Look, uuid: str, *, excused: bool) -> Iterator[str]:
    mapping, rows, guests = look.mappings[uuid], look.rows[uuid], look.guests[uuid]
    home = rows.get(mapping.cell or "")
    if len(guests) > 1 and not excused:
        yield f"S2: guests {guests}"
    if any(HOMES[host] != mapping.cell for host, *_ in guests):
        yield f"S3: guests {guests}, mapped to {mapping.cell}"
    for cell, row in rows.items():
        if row.state not in ("staged", "deleted") and cell != mapping.cell:
            yield f"S4: {row.state} in {cell}, mapped to {mapping.cell}"
    if mapping.requested and mapping.cell:
        yield f"S6: requested, and mapped to {mapping.cell}"
    if not mapping.deleted and not mapping.requested and home is None and mapping.cell != "cell0":
        yield f"S5: mapped to {mapping.cell}, and no row there"
    if home is None or mapping.cell == "cell0":
        return
    if home.state in LIVE and uuid not in look.claims:
        yield f"S7: {home.state} without a claim"
    if home.state == "active" and (home.host, home.fence, home.attempt) not in [guest[:3] for guest in guests]:
        yield f"S8: ACTIVE on {home.host}, attempt {home.attempt}, guests {guests}"
    if home.state in ("error", "deleted") and guests and not excused:
        yield f"S9: {home.state}, guests {guests}"


# -- at rest -----------------------------------------------------------------------------------------------------------------


def written(world: SteppedWorld) -> Evidence:
    databases = world.files.databases
    guests = {host: [guest.uuid for guest in world.guests(host)] for host in HOMES}
    return evidence.read(databases["api"], {cell: databases[cell] for cell in CELLS}, guests)


def unrest(world: SteppedWorld) -> list[str]:
    """What is on its way still."""
    under_way = [*(f"{held!r} waits" for held in world.network.letters()), *(f"{task!r}" for task in world.tasks)]
    return under_way + list(_unread_events(world)) + evidence.list_unfinished(written(world))


def _unread_events(world: SteppedWorld) -> Iterator[str]:
    """What cells have told of instances since their feeds were read: a host may report that a guest is off in the same round."""
    cursors = dict(_all(world.files.raw["api"], "SELECT cell_uuid, sequence FROM feed_cursors"))
    for cell, key in ((cell, key) for cell, key in CELLS.items() if cell != "cell0"):  # nobody follows the feed of cell0
        for sequence, kind, instance in _all(world.files.raw[cell], "SELECT sequence, kind, key FROM feed ORDER BY sequence"):
            if sequence > cursors.get(key, 0) and kind in INSTANCE_EVENTS:
                yield f"{instance}: event {kind} of {cell} is not read"


def leftovers(world: SteppedWorld) -> list[str]:
    """What does not belong to a server that is ACTIVE."""
    return evidence.list_leftovers(written(world))


def findings(world: SteppedWorld) -> list[str]:
    """What ``superconductor verify`` would print."""
    api = world.files.databases["api"]
    places = Places(api, Ledger(api, "verify"), world.registry, overdue=-1.0)
    return [f"verify: {finding}" for found in Audit(places).check_all().values() for finding in found]


def come_to_rest(world: SteppedWorld, story: Story, *, verify: bool) -> int:
    """Let all that is down come back and everything go on until nothing is on its way; the number of sweeps that this took.

    Raises AssertionError where it comes to no rest, or to one that is not right. ``verify`` takes as long as all the rest.
    """
    world.heal()
    world.drain()
    faults, rounds = ["never looked"], 0
    while faults and rounds < ROUNDS:
        world.round()
        rounds += 1
        broken = unsafe(world, story)
        assert not broken, broken
        faults = unrest(world) or leftovers(world)
        if faults and rounds == ROUNDS // 2:
            _confirm_all(world, story)
    assert not faults, ("there is no rest", faults)
    faults = wrong(world, story)
    assert not faults, faults
    for _ in range(ROUNDS if verify else 0):  # the feed holds what agents have said of themselves since it was read
        world.round()
        faults = findings(world)
        if not faults:
            break
    assert not faults, faults
    return rounds


def _confirm_all(world: SteppedWorld, story: Story) -> None:
    """Users confirm the resizes of members of affinity groups: until then other members wait, which may be for ever."""
    for uuid, every in Look(world).operations.items():
        if every[-1].state == OperationState.VERIFY and story.asked[uuid].policy is GroupPolicy.AFFINITY:
            world.answer(uuid, confirm=True)


def wrong(world: SteppedWorld, story: Story) -> list[str]:
    """Servers that did not end as they should."""
    look = Look(world)
    judged = {uuid: asked for uuid, asked in story.asked.items() if not _ended_without_row(look, uuid, asked)}
    found = [f"{uuid}: {text}" for uuid, asked in judged.items() for text in _ends(world, look, story, uuid, asked)]
    return found + list(_groups(look, story))


def _ended_without_row(look: Look, uuid: str, asked: Asked) -> bool:
    """Whether its deadline struck while cell0 was away."""
    mapping = look.mappings[uuid]
    ended = not mapping.deleted and (mapping.cell, mapping.state) == ("cell0", "error")
    return ended and asked.struck and not asked.deleted and not look.rows[uuid]


def _ends(world: SteppedWorld, look: Look, story: Story, uuid: str, asked: Asked) -> Iterator[str]:
    if asked.operated:
        yield from _operated(world, look, story, uuid)
    shown = look.shown(uuid)
    needed = {body for each in look.operations[uuid] if each.outcome is None for body in (each.source, each.twin)}
    for body in look.bodies[uuid]:
        yield from _failures(story, asked, look.row_of(body))
        if asked.deleted or (body is not shown and body.uuid not in needed):
            yield from _gone(look, body)
    if asked.deleted:
        return
    mapping, rows = shown, look.rows[shown.uuid]
    if mapping.deleted or list(rows) != [mapping.cell]:
        yield f"not deleted, but {mapping} with rows {list(rows.values())}"
        return
    [row] = rows.values()
    if row.state != mapping.state or row.state not in ("active", "error"):
        yield f"{row.state}, and {mapping.state} at the API level"
    if row.state == "active":
        if asked.fails_on(row.host or "") or not asked.fits:
            yield f"ACTIVE on {row.host}, where it cannot be"
        return
    fault = _fault(world, row)
    if not _right(look, story, asked, row, _history(row), fault):
        yield f"ERROR for nothing: {fault}"
    if world.other_cell_timeout and fault.startswith((TOO_MANY_ATTEMPTS, NO_HOST_LEFT)) and not look.operations[uuid]:
        yield f"it was not tried in another cell: {fault}"


def _gone(look: Look, body: Mapping_) -> Iterator[str]:
    rows = list(look.rows[body.uuid].values())
    if not body.deleted or body.state != "deleted" or any(row.state != "deleted" for row in rows):
        yield f"deleted, but {body} with rows {rows}"


def _history(row: Row) -> tuple[Attempt, ...]:
    return stored.load_text(row.history, tuple[Attempt, ...]) if row.history else ()


def _failures(story: Story, asked: Asked, row: Row | None) -> Iterator[str]:
    """Attempts at a body that failed for nothing."""
    history = _history(row) if row is not None and row.cell != "cell0" else ()
    for attempt in history:
        if not _excused(story, asked, attempt):
            yield f"attempt {attempt.number} on {attempt.host} failed for nothing: {attempt.failure.message}"
    tried = Counter(
        attempt.host for attempt in history if attempt.failure.kind not in (FailureClass.RESTARTED, FailureClass.STOPPING)
    )
    if any(number > 1 for number in tried.values()):
        yield f"a host was tried twice: {history}"


def _operated(world: SteppedWorld, look: Look, story: Story, server: str) -> Iterator[str]:
    """What its operations have left that they should not have."""
    asked, every, shown = story.asked[server], look.operations[server], look.shown(server)
    wanted = Power.ON
    for each in every:
        before, wanted = wanted, each.leaves
        interrupts = each.forced and each.power_before != before  # of the task that it ended the cell may have told or not
        if each.power_before != before and not interrupts:
            yield f"{each} began with {each.power_before}, after {before}"
        if not _has_right_end(story, asked, each):
            yield f"{each} ended for nothing"
    if asked.deleted:
        return
    row = look.row_of(shown)
    if row is not None and (disk := _disk(world, row)) is not None and disk.image_id not in _images(every):
        yield f"its disk is {disk}, after {every}"
    powers = [guest.power for guest in look.guests[shown.uuid]]
    failed = shown.task_state == TaskState.FAILED or any(each.outcome == Outcome.FAILED for each in every)
    # after a power cut its host could not start it, and has reported that it is off
    stayed_off = any(draw_fraction(guest.host, shown.uuid, "task") < world.task_failure_rate for guest in look.guests[shown.uuid])
    failed = failed or stayed_off
    if row is not None and (row.power, shown.power) not in ((wanted, wanted), (Power.OFF, Power.OFF) if stayed_off else ()):
        yield f"its user wants it {wanted}, its row says {row.power}, the API level {shown.power}"
    if powers != [wanted] and not failed:
        yield f"its user wants it {wanted}, its guest is {powers}"
    live = [body for body in look.bodies[server] if not body.deleted]
    charged = tuple(sum(body.charge[n] for body in live) for n in (0, 1))
    sizes = [guest.size for body in live for guest in look.guests[body.uuid]]
    if charged != tuple(max(size[n] for size in sizes) for n in (0, 1)):
        yield f"charged {charged}, has {sizes}"


def _images(every: list[Asking]) -> set[str | None]:
    """The images that a disk may be made from: a rebuild that did not end well may have come to its end on the host."""
    images: set[str | None] = {None}
    for each in every:
        if each.kind == OperationKind.REBUILD:
            images = {each.image} if each.outcome == Outcome.DONE else {*images, each.image}
    return images


def _has_right_end(story: Story, asked: Asked, each: Asking) -> bool:
    fault = each.fault or ""
    match each.outcome:
        case None:
            return each.state == OperationState.VERIFY
        case Outcome.DONE:
            return not fault or each.kind == OperationKind.RESPAWN  # the history of the first cell
        case Outcome.FAILED:  # some guests do not react, and nobody knows how far an agent came that was killed
            return not OperationKind(each.kind).is_move
        case Outcome.GIVEN_UP if fault.startswith("The server did not go over"):
            return each.kind == OperationKind.LIVE_MIGRATE
        case Outcome.GIVEN_UP if "in time" in fault or "timed out" in fault:
            return asked.struck
        case Outcome.GIVEN_UP if not OperationKind(each.kind).is_move:
            return fault == "The server's host was called dead."
        case Outcome.GIVEN_UP:
            return fault.startswith(("No valid host", "Build of instance", "Exceeded maximum", "Exhausted all"))
        case Outcome.REVERTED:
            return each.kind == OperationKind.RESIZE
        case _:
            return asked.deleted


def _excused(story: Story, asked: Asked, attempt: Attempt) -> bool:
    kind, host = attempt.failure.kind, attempt.host
    if kind is FailureClass.HOST and attempt.failure.error == "HostDown":
        return host in story.called_dead
    return {
        FailureClass.HOST: asked.outcome in ("fail", "error") and asked.fails_on(host),
        FailureClass.NO_ROOM: True,  # moves and new claims may meet on a host
        FailureClass.POLICY: asked.outcome == "policy" and asked.fails_on(host),
        FailureClass.REQUEST: asked.outcome == "abort" and asked.fails_on(host),
        FailureClass.RESTARTED: host in story.restarted,
        FailureClass.STOPPING: host in story.restarted,
        FailureClass.DEADLINE: asked.struck,
    }[kind]


def _right(look: Look, story: Story, asked: Asked, row: Row, history: tuple[Attempt, ...], fault: str) -> bool:
    if row.cell != "cell0":
        return bool(history)  # each of them was judged
    if fault == "Build timed out in scheduling.":
        return asked.struck
    if not fault.startswith("No valid host was found"):
        return False
    hosts = [host for host, cell in HOMES.items() if host not in story.called_dead | story.restarted and cell not in story.away]
    return not asked.fits or asked.policy is not None or len(story.asked) > ROOM * len(hosts)


def _fault(world: SteppedWorld, row: Row) -> str:
    query = "SELECT message FROM instance_faults WHERE instance_uuid = ? ORDER BY created_at DESC"
    found = world.files.raw[row.cell].execute(query, (row.uuid,)).fetchone()
    return str(found[0]) if found else ""


def _groups(look: Look, story: Story) -> Iterator[str]:
    """Members of groups whose live bodies break the policy. Two bodies of one server may be anywhere: only one of them stays.

    Members that an evacuation has left behind are lost to the others of an affinity group.
    """
    members: defaultdict[tuple[int, GroupPolicy], list[list[str]]] = defaultdict(list)
    left: defaultdict[int, set[str | None]] = defaultdict(set)
    for uuid, asked in story.asked.items():
        if asked.policy is GroupPolicy.AFFINITY:
            moves = [each for each in look.operations[uuid] if (each.kind, each.outcome) == (OperationKind.EVACUATE, Outcome.DONE)]
            left[asked.batch].update(each.source_host for each in moves)
    for uuid, asked in story.asked.items():
        if asked.policy is not None:
            rows = [row for body in look.bodies[uuid] for row in look.rows[body.uuid].values() if row.state == "active"]
            members[asked.batch, asked.policy].append([row.host or "" for row in rows if row.host not in left[asked.batch]])
    for (_, policy), found in members.items():
        for hosts in product(*(hosts for hosts in found if hosts)):
            if wrong := misplaced_reason(policy, hosts):
                yield f"a group {wrong}, of {found}"
