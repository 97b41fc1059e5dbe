"""The requested destination of a server."""

from __future__ import annotations

from objects.base import Object


class Destination(Object, frozen=True, kw_only=True):
    """A host (its name ignores case), a node (case-sensitive), a cell (its uuid); None: any.

    Unlike a forced host, the destination must pass all filters. ``allow_cross_cell_move``: a move may leave the server's cell,
    which is otherwise not allowed.
    """

    host: str | None = None
    node: str | None = None
    cell_uuid: str | None = None
    allow_cross_cell_move: bool = False
