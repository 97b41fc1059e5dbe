"""What must hold in a region that runs step by step: after every step, and when it has come to rest.

The numbers are those of ``docs/protocol.md``. Everything is read from the databases' files and the hosts' journals.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cli.demo import evidence
from cli.demo.evidence import Evidence, misplaced
from conductor.audit.audit import Audit
from conductor.audit.places import Places
from db.api.claims import Ledger
from objects import stored
from objects.group import GroupPolicy
from objects.instance import Attempt, FailureClass
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


class Mapping_(NamedTuple):  # noqa: N801 - Mapping is taken
    uuid: str
    cell: str | None
    deleted: bool
    state: str
    requested: bool


class Row(NamedTuple):
    uuid: str
    cell: str
    state: str
    fence: int
    attempt: int
    host: str | None
    history: str | None


class Look:
    """All there is at one moment."""

    def __init__(self, world: SteppedWorld) -> None:
        raw = world.files.raw
        names = {key: name for name, key in CELLS.items()}
        query = (
            "SELECT m.instance_uuid, m.cell_uuid, m.deleted, m.state, r.instance_uuid IS NOT NULL FROM instance_mappings m "
            "LEFT JOIN build_requests r ON r.instance_uuid = m.instance_uuid"
        )
        self.mappings = {
            row[0]: Mapping_(row[0], names[row[1]] if row[1] else None, bool(row[2]), row[3], bool(row[4]))
            for row in _all(raw["api"], query)
        }
        self.rows: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        query = "SELECT uuid, state, fence, attempt, host, b.history FROM instances LEFT JOIN builds b ON b.instance_uuid = uuid"
        for cell in CELLS:
            for uuid, *rest in _all(raw[cell], query):
                self.rows[uuid][cell] = Row(uuid, cell, *rest)
        query = "SELECT a.instance_uuid, i.host FROM allocations a JOIN inventories i ON i.id = a.inventory_id"
        self.claims: dict[str, str] = dict(_all(raw["api"], query))
        self.guests: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
        self.crowds: Counter[str] = Counter()
        for host in HOMES:
            for guest in world.guests(host):
                self.guests[guest.uuid].append((host, guest.fence, guest.attempt))
                self.crowds[host] += 1


def _all(connection: sqlite3.Connection, query: str) -> list[Any]:
    return connection.execute(query).fetchall()


# -- always ------------------------------------------------------------------------------------------------------------------


def unsafe(world: SteppedWorld, story: Story) -> list[str]:
    """What must never be, and is."""
    look = Look(world)
    broken = [f"S1: {number} guests on {host}" for host, number in look.crowds.items() if number > ROOM]
    for uuid, asked in story.asked.items():
        broken += [f"{uuid}: {text}" for text in _unsafe(look, uuid, excused=bool(story.called_dead) or asked.struck)]
    return broken


def _unsafe(look: Look, uuid: str, *, excused: bool) -> Iterator[str]:
    mapping, rows, guests = look.mappings.get(uuid), look.rows[uuid], look.guests[uuid]
    if mapping is None:
        yield "S5: it is nowhere"
        return
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
    if home.state == "active" and (home.host, home.fence, home.attempt) not in guests:
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
    return under_way + evidence.unfinished(written(world))


def leftovers(world: SteppedWorld) -> list[str]:
    """What does not belong to a server that is ACTIVE."""
    return evidence.leftovers(written(world))


def findings(world: SteppedWorld) -> list[str]:
    """What ``superconductor verify`` would print."""
    api = world.files.databases["api"]
    places = Places(api, Ledger(api, "verify"), world.registry, overdue=-1.0)
    return [f"verify: {finding}" for found in Audit(places).look().values() for finding in found]


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
    mapping, rows = look.mappings[uuid], look.rows[uuid]
    if asked.deleted:
        if not mapping.deleted or mapping.state != "deleted":
            yield f"deleted, but {mapping}"
        if any(row.state != "deleted" for row in rows.values()):
            yield f"deleted, but {list(rows.values())}"
        return
    if mapping.deleted or list(rows) != [mapping.cell]:
        yield f"not deleted, but {mapping} with rows {list(rows.values())}"
        return
    [row] = rows.values()
    if row.state != mapping.state or row.state not in ("active", "error"):
        yield f"{row.state}, and {mapping.state} at the API level"
    history = stored.load(row.history, tuple[Attempt, ...]) if row.history else ()
    for attempt in history:
        if not _excused(story, asked, attempt):
            yield f"attempt {attempt.number} on {attempt.host} failed for nothing: {attempt.failure.message}"
    tried = Counter(
        attempt.host for attempt in history if attempt.failure.kind not in (FailureClass.RESTARTED, FailureClass.STOPPING)
    )
    if any(number > 1 for number in tried.values()):
        yield f"a host was tried twice: {history}"
    if row.state == "active":
        if asked.fails_on(row.host or "") or not asked.fits:
            yield f"ACTIVE on {row.host}, where it cannot be"
        return
    fault = _fault(world, row)
    if not _right(look, story, asked, row, history, fault):
        yield f"ERROR for nothing: {fault}"


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
    members: defaultdict[tuple[int, GroupPolicy], list[str]] = defaultdict(list)
    for uuid, asked in story.asked.items():
        for row in look.rows[uuid].values():
            if asked.policy is not None and row.state == "active":
                members[asked.batch, asked.policy].append(row.host or "")
    for (_, policy), hosts in members.items():
        if wrong := misplaced(policy, hosts):
            yield f"a group {wrong}"
