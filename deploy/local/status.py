"""What of a region runs, what it says of itself, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deploy.local import health
from deploy.local.backing import is_running
from deploy.local.health import MemberHealth
from deploy.local.processes import is_master, resident_bytes
from deploy.local.region import Region

MIB = 1024 * 1024


class Line(NamedTuple):
    """One command with the processes it consists of, the master first. ``memory`` is theirs together, in bytes.

    ``port``: of its metrics and its health, 0 where there are none; ``member_health``: what it says of that, None where it was not
    asked.
    """

    name: str
    role: str
    state: str
    pids: tuple[int, ...]
    memory: int
    port: int = 0
    member_health: MemberHealth | None = None


def read_status(region: Region) -> list[Line]:
    """Servers and processes as they are now. The state of what is as it should be is ``alive``."""
    return [*_server_lines(region), *_member_lines(region)]


def show_status(region: Region) -> bool:
    """Say what there is, in columns, and what is wedged. Whether all of it runs."""
    lines = read_status(region)
    region.say(f"{'NAME':<20} {'ROLE':<16} {'STATE':<16} {'HEALTH':<7} {'PORT':>5} {'MiB':>5}  PIDS")
    for line in lines:
        health_word, port = line.member_health.state if line.member_health else "-", line.port or "-"
        pids = " ".join(str(pid) for pid in line.pids)
        shown = f"{line.name:<20} {line.role:<16} {line.state:<16} {health_word:<7} {port:>5} {line.memory // MIB:>5}  {pids}"
        region.say(shown.rstrip())
    for line in lines:
        for trouble in line.member_health.troubles if line.member_health else ():
            region.say(f"{line.name} is wedged: {trouble}")
    region.say(f"{sum(line.memory for line in lines) // MIB} MiB in all; the APIs are {' and '.join(region.notes.api_endpoints())}")
    return all(line.state == "alive" for line in lines)


def _server_lines(region: Region) -> Iterator[Line]:
    for server in region.backing.servers:
        pids = sorted(server.leftover_processes())
        yield _status_line(server.NAME, "server", is_running(server), pids)._replace(port=server.port)


def _member_lines(region: Region) -> Iterator[Line]:
    alive = region.table.pids_by_member()
    monitored, health_by_member = region.notes.monitored_ports(), health.ask_members(region.notes)
    for member in region.notes.shape.list_members():
        pids = alive.get(member.name, [])
        line = _status_line(member.name, member.role, bool(pids) and is_master(pids[0]), pids)
        yield line._replace(port=monitored.get(member.name, 0), member_health=health_by_member.get(member.name))


def _status_line(name: str, role: str, runs: bool, pids: Iterable[int]) -> Line:
    known_pids = tuple(pids)
    state = "alive" if runs else "without master" if known_pids else "dead"
    return Line(name, role, state, known_pids, resident_bytes(known_pids))
