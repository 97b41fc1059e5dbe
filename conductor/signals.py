"""How parts of a super conductor tell each other of new work, so that nothing waits for the next sweep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class WorkSignals(Protocol):
    """Who does the work that another part has found. A lost signal costs time only: a sweep finds the same work."""

    def build_batches(self, batch_ids: Sequence[str]) -> None:
        """Build these accepted batches, in a round with others."""

    def advance_operations(self, operations: Collection[str]) -> None:
        """Take these operations as far as they go, now."""

    def advance_servers(self, servers: Sequence[str]) -> None:
        """Take the operations of these servers as far as they go, in a round with others: a feed has told of a change."""

    def check_services(self) -> None:
        """Look for hosts that operators have called dead: a cell has told of changed services."""

    def note_request(self) -> None:
        """A doorbell rang: loops that were idle look soon."""

    def hurry_cells(self, cell_uuids: Collection[str]) -> None:
        """Read the feeds of these cells often: they were asked for something."""

    def follow_changes(self) -> None:
        """Cells, hosts or feed positions were changed by another process: follow the cells anew."""


class NoSignals:
    """Nobody listens: sweeps find all work."""

    def build_batches(self, batch_ids: Sequence[str]) -> None:
        """See ``WorkSignals``."""

    def advance_operations(self, operations: Collection[str]) -> None:
        """See ``WorkSignals``."""

    def advance_servers(self, servers: Sequence[str]) -> None:
        """See ``WorkSignals``."""

    def check_services(self) -> None:
        """See ``WorkSignals``."""

    def note_request(self) -> None:
        """See ``WorkSignals``."""

    def hurry_cells(self, cell_uuids: Collection[str]) -> None:
        """See ``WorkSignals``."""

    def follow_changes(self) -> None:
        """See ``WorkSignals``."""
