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
    """The scheduler's data on a move. ``instance_uuid`` is the server; the other fields say where it is now.

    ``image_id``: the snapshot of a server that is shelved, whose host and cell are empty strings.

    The server keeps its own claim until the operation is confirmed. The claim of the move belongs to a uuid of the operation, whose
    build request no super conductor leases, because it has no mapping: see ``docs/decisions/0017-moves.md``.
    """

    kind: MoveKind
    instance_uuid: str
    source_host: str
    source_cell_uuid: str
    image_id: str | None = None
