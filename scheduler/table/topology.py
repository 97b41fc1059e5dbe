"""The cells and zones that the host table knows, by number, and which of them operators put hosts into."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from objects.cell import CellMapping, CellState


class Topology:
    """``cells`` and ``zones`` by their numbers, which stand for the same ones ever after. Zone 0 is that of hosts without any."""

    def __init__(self, default_zone: str) -> None:
        self.cells: list[CellMapping] = []
        self.zones: list[str] = [default_zone]
        self._cell_numbers: dict[str, int] = {}
        self._zone_numbers: dict[str, int] = {default_zone: 0}
        self._homes: Mapping[str, str] = {}
        self._zone_names: Mapping[str, str] = {}
        self._mapped_at: dict[str, float] = {}

    def place(self, homes: Mapping[str, str], zones: Mapping[str, str]) -> None:
        """The host mappings (host -> cell uuid) and the zones (host -> name) are these from now on."""
        self._mapped_at = {host: at for host, at in self._mapped_at.items() if host in homes}
        self._mapped_at |= dict.fromkeys(homes.keys() - self._homes.keys(), time.monotonic())
        self._homes, self._zone_names = homes, zones

    def home(self, host: str) -> str | None:
        """The uuid of the cell that the host is mapped to."""
        return self._homes.get(host)

    def zone(self, host: str) -> int:
        """The number of the zone that the host is in."""
        name = self._zone_names.get(host)
        if name is None:
            return 0
        if name not in self._zone_numbers:
            self._zone_numbers[name] = len(self.zones)
            self.zones.append(name)
        return self._zone_numbers[name]

    def number(self, cell_uuid: str) -> int:
        """The number of the cell. One that is new takes no builds until more is known of it."""
        if cell_uuid not in self._cell_numbers:
            self._cell_numbers[cell_uuid] = len(self.cells)
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

    def awaited(self, since: float, is_told: Callable[[str], bool]) -> bool:
        """Whether a host mapped after ``since`` (monotonic clock) is not told of yet by those who must."""
        for host, at in list(self._mapped_at.items()):
            if at < since or is_told(host):
                del self._mapped_at[host]
        return bool(self._mapped_at)
