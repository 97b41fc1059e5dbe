"""Moves: operations that take a server from the host it is on to another."""

from __future__ import annotations

import enum

from objects.base import Object


class MoveKind(enum.StrEnum):
    RESIZE = "resize"  # to another flavor, maybe on the same host
    MIGRATE = "migrate"  # cold or live
    EVACUATE = "evacuate"  # from a host that is lost, which stays lost


class Move(Object, frozen=True, kw_only=True):
    """What a scheduler must know of a move. ``instance_uuid`` is the server, and the rest is where it is now.

    The claim of a move is not the server's: the server keeps its own until the operation is confirmed. It belongs to a uuid of the
    operation, under which a build request is queued and leased like any other: see ``docs/decisions/0017-moves.md``.
    """

    kind: MoveKind
    instance_uuid: str
    source_host: str
    source_cell_uuid: str
