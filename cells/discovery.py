"""Map the hosts that have reported to their cells but are not in the host-mapping table yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cells.fan_out import Answered, Unanswered, fan_out
from cells.registry import CellRegistry
from db.api.deployment import host_mappings
from db.cell import services
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors, text
from objects.base import Object
from objects.cell import HostMapping
from objects.process import AGENT_BINARY

"""The binary whose service record in a cell makes a host of its host name."""


class HostConflict(Object, frozen=True, kw_only=True):
    """One host name in several cells, or in another cell than it is mapped to. It is left as it was; a person has to decide.

    ``mapped_to`` is the name (or uuid) of the cell the host stays mapped to, None where it stays unmapped.
    """

    host: str
    seen_in: tuple[str, ...]
    mapped_to: str | None

    def __str__(self) -> str:
        outcome = f"stays mapped to cell {self.mapped_to!r}" if self.mapped_to else "is not mapped"
        seen = " and ".join(repr(name) for name in self.seen_in)
        return f"Host {self.host!r} reports in cell {seen} and {outcome}: rename it, or stop its agent there."


def in_two_cells(agents: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Hosts, by name, of which live agents are in several cells, and these cells. Given are (host, cell) of each live agent.

    No server goes to such a host before one of its agents has stopped.
    """
    cells_by_host: dict[str, set[str]] = defaultdict(set)
    for host, cell in agents:
        cells_by_host[host].add(cell)
    return {host: tuple(sorted(cells)) for host, cells in sorted(cells_by_host.items()) if len(cells) > 1}


class UnreachableCell(Object, frozen=True, kw_only=True):
    """A cell that could not be asked for its hosts."""

    cell: str
    reason: str


class Discovery(Object, frozen=True, kw_only=True):
    """``mapped``: the hosts added by this run. ``hosts``: how many hosts the cells that answered have in all.

    ``refused``: hosts of an earlier release whose names cannot be mapped, each with the reason.
    """

    mapped: tuple[HostMapping, ...] = ()
    conflicts: tuple[HostConflict, ...] = ()
    unreachable: tuple[UnreachableCell, ...] = ()
    refused: tuple[str, ...] = ()
    hosts: int = 0


def discover_hosts(registry: CellRegistry, api_database: ApiDatabase, now: float | None = None) -> Discovery:
    """Ask every cell for its agents and map those that are new. Cells that do not answer are reported, the others are done.

    Safe to run several times at once: what is mapped stays, and the same host is never mapped twice. A host found in two cells is
    mapped to neither, unless it was mapped before.
    """
    answers = fan_out(registry.list_cells(), services.list_hosts, AGENT_BINARY)
    seen: dict[str, list[str]] = defaultdict(list)
    refused: dict[str, str] = {}
    for answer in answers:
        if isinstance(answer, Answered):
            for host in answer.value:
                try:
                    seen[text.checked_name("host", host)].append(answer.cell.uuid)
                except errors.Invalid as error:
                    refused[host] = f"{error}; set another [compute] host there, then run 'superconductor host delete'"
    names = {cell.uuid: cell.name for cell in registry.list_cells()}
    mapped, conflicts = _map_hosts(api_database, seen, names, api_database.current_time() if now is None else now)
    missing = [UnreachableCell(cell=a.cell.name, reason=a.reason) for a in answers if isinstance(a, Unanswered)]
    missing += [UnreachableCell(cell=name, reason=reason) for name, reason in registry.broken_by_name().items()]
    odd = tuple(refused.values())
    return Discovery(mapped=mapped, conflicts=conflicts, unreachable=tuple(missing), refused=odd, hosts=len(seen) + len(odd))


def _map_hosts(
    api_database: ApiDatabase, seen: Mapping[str, list[str]], names: Mapping[str, str], now: float
) -> tuple[tuple[HostMapping, ...], tuple[HostConflict, ...]]:
    known = api_database.read(_known_hosts)
    new = [HostMapping(host=host, cell_uuid=cells[0]) for host, cells in seen.items() if host not in known and len(cells) == 1]
    if new:  # most runs find nothing, and then nothing is written
        api_database.write(host_mappings.add_mappings, new, now)
        known = api_database.read(_known_hosts)
    mapped = tuple(mapping for mapping in new if known.get(mapping.host) == mapping.cell_uuid)
    return mapped, tuple(_find_conflicts(seen, known, names))


def _known_hosts(tx: ApiTransaction) -> dict[str, str]:
    return host_mappings.cell_uuid_by_host(tx)


def _find_conflicts(seen: Mapping[str, list[str]], known: Mapping[str, str], names: Mapping[str, str]) -> Iterable[HostConflict]:
    for host, cells in sorted(seen.items()):
        home = known.get(host)
        if len(cells) > 1 or home != cells[0]:
            seen_in = tuple(sorted(names.get(uuid, uuid) for uuid in cells))
            yield HostConflict(host=host, seen_in=seen_in, mapped_to=names.get(home, home) if home else None)
