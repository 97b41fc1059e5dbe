"""What of a region runs, what it says of itself, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deploy.local import health
from deploy.local.backing import runs
from deploy.local.health import MemberHealth
from deploy.local.processes import leads, resident
from deploy.local.region import Region

MIB = 1024 * 1024


class Line(NamedTuple):
    """One command with the processes it consists of, the master first. ``memory`` is theirs together, in bytes.

    ``port``: of its metrics and its health, 0 where there are none; ``told``: what it says of that, None where it was not asked.
    """

    name: str
    role: str
    state: str
    pids: tuple[int, ...]
    memory: int
    port: int = 0
    told: MemberHealth | None = None


def look(region: Region) -> list[Line]:
    """Servers and processes as they are now. The state of what is as it should be is ``alive``."""
    return [*_servers(region), *_members(region)]


def show(region: Region) -> bool:
    """Say what there is, in columns, and what is wedged. Whether all of it runs."""
    lines = look(region)
    region.say(f"{'NAME':<20} {'ROLE':<16} {'STATE':<16} {'HEALTH':<7} {'PORT':>5} {'MiB':>5}  PIDS")
    for line in lines:
        told, port = line.told.state if line.told else "-", line.port or "-"
        pids = " ".join(str(pid) for pid in line.pids)
        shown = f"{line.name:<20} {line.role:<16} {line.state:<16} {told:<7} {port:>5} {line.memory // MIB:>5}  {pids}"
        region.say(shown.rstrip())
    for line in lines:
        for trouble in line.told.troubles if line.told else ():
            region.say(f"{line.name} is wedged: {trouble}")
    region.say(f"{sum(line.memory for line in lines) // MIB} MiB in all; the APIs are {' and '.join(region.notes.endpoints())}")
    return all(line.state == "alive" for line in lines)


def _servers(region: Region) -> Iterator[Line]:
    for server in region.backing.servers:
        pids = sorted(server.leftovers())
        yield _line(server.NAME, "server", runs(server), pids)._replace(port=server.port)


def _members(region: Region) -> Iterator[Line]:
    alive = region.table.alive()
    monitored, told = region.notes.monitoring(), health.look(region.notes)
    for member in region.notes.shape.members():
        pids = alive.get(member.name, [])
        line = _line(member.name, member.role, bool(pids) and leads(pids[0]), pids)
        yield line._replace(port=monitored.get(member.name, 0), told=told.get(member.name))


def _line(name: str, role: str, runs: bool, pids: Iterable[int]) -> Line:
    found = tuple(pids)
    state = "alive" if runs else "without master" if found else "dead"
    return Line(name, role, state, found, resident(found))
