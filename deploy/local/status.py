"""What of a region runs, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deploy.local.backing import runs
from deploy.local.processes import leads, resident
from deploy.local.region import Region

MIB = 1024 * 1024


class Line(NamedTuple):
    """One command with the processes it consists of, the master first. ``memory`` is theirs together, in bytes."""

    name: str
    role: str
    state: str
    pids: tuple[int, ...]
    memory: int


def look(region: Region) -> list[Line]:
    """Servers and processes as they are now. The state of what is as it should be is ``alive``."""
    return [*_servers(region), *_members(region)]


def show(region: Region) -> bool:
    """Say what there is, in columns. Whether all of it runs."""
    lines = look(region)
    region.say(f"{'NAME':<20} {'ROLE':<16} {'STATE':<16} {'MiB':>5}  PIDS")
    for line in lines:
        pids = " ".join(str(pid) for pid in line.pids)
        region.say(f"{line.name:<20} {line.role:<16} {line.state:<16} {line.memory // MIB:>5}  {pids}".rstrip())
    region.say(f"{sum(line.memory for line in lines) // MIB} MiB in all; the APIs are {' and '.join(region.notes.endpoints())}")
    return all(line.state == "alive" for line in lines)


def _servers(region: Region) -> Iterator[Line]:
    for server in region.backing.servers:
        pids = sorted(server.leftovers())
        yield _line(server.NAME, "server", runs(server), pids)


def _members(region: Region) -> Iterator[Line]:
    alive = region.table.alive()
    for member in region.notes.shape.members():
        pids = alive.get(member.name, [])
        yield _line(member.name, member.role, bool(pids) and leads(pids[0]), pids)


def _line(name: str, role: str, runs: bool, pids: Iterable[int]) -> Line:
    found = tuple(pids)
    state = "alive" if runs else "without master" if found else "dead"
    return Line(name, role, state, found, resident(found))
