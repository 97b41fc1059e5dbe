"""What a plan takes of the hosts for the time being, and gives back exactly."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from scheduler.classes import NONE, Classes
from scheduler.columns import Columns


class Takings(Columns):
    """Columns of which plans take. The last that was taken is given back first."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = Classes()
        self._taken: list[tuple[int, tuple[float, float, float], Mapping[str, int]]] = []

    def tentative(self) -> Tentative:
        """Whatever ``take`` took inside is given back at the end, exactly."""
        return Tentative(self)

    @property
    def mark(self) -> int:
        """A point to ``give_back`` to."""
        return len(self._taken)

    def take(self, row: int, vcpus: int, memory_mb: int, disk_gb: int, resources: Mapping[str, int] = NONE) -> None:
        """One more instance on the row, as far as this plan is concerned. ``resources``: amounts by custom resource class."""
        free = self.free_vcpus.item(row), self.free_memory_mb.item(row), self.free_disk_gb.item(row)
        self._taken.append((row, free, resources))
        if resources:
            self.classes.take(row, resources)
        self.instances[row] += 1
        self.building[row] += 1
        self.set_free(row, free[0] - vcpus, free[1] - memory_mb, free[2] - disk_gb)

    def give_back(self, mark: int) -> None:
        """All that was taken since then."""
        while len(self._taken) > mark:
            row, free, resources = self._taken.pop()
            if resources:
                self.classes.give_back(row, resources)
            self.instances[row] -= 1
            self.building[row] -= 1
            self.set_free(row, *free)


class Tentative:
    """The time of one plan. Entered once for every decision, by which a generator would be felt."""

    def __init__(self, table: Takings) -> None:
        self._table = table
        self._mark = table.mark

    def __enter__(self) -> None:
        self._mark = self._table.mark

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._table.give_back(self._mark)
