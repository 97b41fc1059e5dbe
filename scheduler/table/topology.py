"""The cells and zones that the host table knows, by number, and which of them operators put hosts into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from objects.aggregate import Aggregate
from objects.cell import CellMapping, CellState
from scheduler.table.aggregation import Aggregates
from scheduler.table.arrays import Ints, Mask


class Layout:
    """Where operators have put hosts. That does not change.

    ``home_numbers``: host -> cell uuid. ``zones``: host -> name of its zone.
    ``moved``: hosts of which this says something else than the layout before. ``mapped``: hosts that had no home in that.
    """

    def __init__(
        self,
        homes: Mapping[str, str],
        zones: Mapping[str, str],
        aggregates: Iterable[Aggregate] = (),
        before: Layout | None = None,
    ) -> None:
        """Takes time in proportion to the number of hosts, so make it without the lock of the table."""
        then_homes: Mapping[str, str] = before.homes if before else {}
        then_zones: Mapping[str, str] = before.zones if before else {}
        self.homes: Mapping[str, str] = homes
        self.zones: Mapping[str, str] = zones
        self.aggregates: Aggregates = Aggregates(aggregates, before.aggregates if before else None)
        self.mapped: Set[str] = frozenset(homes.keys() - then_homes.keys())
        self.moved: Set[str] = self.aggregates.moved | _differing_hosts(then_homes, homes) | _differing_hosts(then_zones, zones)

    def forget_changes(self) -> None:
        """Its changes have been entered: of a first layout they are all hosts twice."""
        self.mapped = self.moved = frozenset()


def _differing_hosts(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """The hosts with another value, or with one in only one of the two."""
    if before is now:
        return frozenset()
    return frozenset(
        [host for host, value in now.items() if before.get(host) != value] + [host for host in before if host not in now]
    )


class Topology:
    """``cells`` and ``zones`` by their numbers, which stand for the same ones ever after. Zone 0 is that of hosts without any."""

    def __init__(self, default_zone: str) -> None:
        self.cells: list[CellMapping] = []
        self.zones: list[str] = [default_zone]
        self.layout = Layout({}, {})
        self._takes_builds = np.zeros(1, np.bool_)
        self._feed_read = np.array([np.iinfo(np.int64).max])
        self._cell_numbers: dict[str, int] = {}
        self._zone_numbers: dict[str, int] = {default_zone: 0}

    def set_cell(self, mapping: CellMapping) -> bool:
        """This is how the cell is now. Returns whether its state has changed."""
        number = self.number_of(mapping.uuid)
        changed = self.cells[number].state is not mapping.state
        self.cells[number] = mapping
        self._takes_builds[number] = mapping.state is CellState.ENABLED
        return changed

    @property
    def takes_builds(self) -> Mask:
        """By cell number: whether the cell is enabled. The last element, -1, is for hosts without a home."""
        return self._takes_builds

    @property
    def feed_read(self) -> Ints:
        """By cell number: up to which event of the cell's feed its services are known. The last element is for hosts without a
        home.
        """
        return self._feed_read

    def home_cell(self, host: str) -> str | None:
        """The uuid of the cell that the host is mapped to."""
        return self.layout.homes.get(host)

    def home_numbers(self, hosts: Sequence[str]) -> Ints:
        """The numbers of the cells that the hosts are mapped to; -1: to none."""
        uuids = map(self.layout.homes.get, hosts)
        return np.fromiter((-1 if uuid is None else self.number_of(uuid) for uuid in uuids), np.int64, len(hosts))

    def zones_of(self, hosts: Sequence[str]) -> Ints:
        """The numbers of the zones that the hosts are in."""
        names = map(self.layout.zones.get, hosts)
        return np.fromiter((0 if name is None else self._number_of_zone(name) for name in names), np.int64, len(hosts))

    def _number_of_zone(self, name: str) -> int:
        if name not in self._zone_numbers:
            self._zone_numbers[name] = len(self.zones)
            self.zones.append(name)
        return self._zone_numbers[name]

    def number_of(self, cell_uuid: str) -> int:
        """The number of the cell. One that is new takes no builds until more is known of it."""
        if cell_uuid not in self._cell_numbers:
            self._cell_numbers[cell_uuid] = len(self.cells)
            self._takes_builds = np.append(self._takes_builds, False)
            self._feed_read = np.insert(self._feed_read, -1, 0)
            self.cells.append(
                CellMapping(uuid=cell_uuid, name=cell_uuid, database_url="", transport_url="", state=CellState.DISABLED)
            )
        return self._cell_numbers[cell_uuid]

    def cell_number(self, uuid: str) -> int:
        """-1 for a cell never heard of."""
        return self._cell_numbers.get(uuid, -1)

    def zone_number(self, name: str) -> int:
        """-1 for a zone that no host was ever in."""
        return self._zone_numbers.get(name, -1)
