"""Moves: operations that take a server from its host to another."""

from __future__ import annotations

import enum

from objects.base import Object


class MoveKind(enum.StrEnum):
    RESIZE = "resize"  # to another flavor, maybe on the same host
    MIGRATE = "migrate"  # cold or live
    EVACUATE = "evacuate"  # from a failed host that does not come back
    UNSHELVE = "unshelve"  # from the image store; also the kind of a shelved body, which no host has


class Move(Object, frozen=True, kw_only=True):
    """The scheduler's data on a move. ``instance_uuid`` is the body that the server is; the other fields say where that is now.

    ``image_id``: the snapshot of a server that is shelved, whose host and cell are empty strings. ``image_hash``: the SHA-512 of
    its content, as its host told; empty: not known.

    That body keeps its claim until the operation ends. The request with this move is of the body that is to take its place, which
    gets a claim of its own: see ``docs/moves.md``.
    """

    kind: MoveKind
    instance_uuid: str
    source_host: str
    source_cell_uuid: str
    image_id: str | None = None
    image_hash: str = ""
