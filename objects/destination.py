"""Where a server is asked to go, by whoever may ask so."""

from __future__ import annotations

from objects.base import Object


class Destination(Object, frozen=True, kw_only=True):
    """A host (its name without case), a node (with case), a cell (its uuid); None: any.

    Unlike a forced host the destination must pass all filters, as any other would. ``allow_cross_cell_move``: a move may leave the
    cell that the server is in, which it may not otherwise.
    """

    host: str | None = None
    node: str | None = None
    cell_uuid: str | None = None
    allow_cross_cell_move: bool = False
