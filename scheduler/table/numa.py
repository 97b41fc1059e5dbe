"""What is free on the NUMA nodes of hosts, and which of them a server gets.

A host's nodes are numbered from 0. What is free on a node is its capacity, less the claims that are tied to it, less all that is
used on the host by servers that are tied to no node::

    free[n] = cap[n] - claimed[n] - (used on the host - sum of claimed)

A server of ``nodes`` nodes takes an equal part of each of so many different ones. A host takes ``k`` such servers if and only if::

    sum over its nodes of min(parts that fit on the node, k) >= nodes * k
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from objects import numa
from scheduler.table.arrays import Floats, Ints, Mask, divide_by
from scheduler.table.kernels import at_least
from scheduler.table.resource_classes import Classes, RoomColumn


class NodeRoom(NamedTuple):
    """What is free on a node of each host: see ``RoomColumn``. Not to be written to."""

    vcpus: Floats
    memory_mb: Floats


class NodeRooms:
    """What is free on the nodes of the hosts in some rows of a table of ``size`` rows. ``count``: of nodes of a host, at most."""

    def __init__(self, classes: Classes, rows: Ints | slice, size: int) -> None:
        self._classes, self._rows, self._size = classes, rows, size
        self.count = len(classes.numa)

    def rooms_by_node(self) -> list[NodeRoom]:
        """By the numbers of the nodes."""
        return [self._room_of(node.vcpus.room, node.memory_mb.room) for node in self._classes.numa]

    @property
    def first_room(self) -> NodeRoom:
        """On the nodes of number 0."""
        node = self._classes.numa[0]
        return self._room_of(node.vcpus.room, node.memory_mb.room)

    @property
    def least_room(self) -> NodeRoom:
        """On the nodes with the least of each host."""
        return self._room_of(*self._classes.least)

    def _room_of(self, vcpus: RoomColumn, memory_mb: RoomColumn) -> NodeRoom:
        return NodeRoom(vcpus.room_of(self._rows, self._size), memory_mb.room_of(self._rows, self._size))


class NodePart(NamedTuple):
    """What a server takes of each of ``nodes`` nodes. ``nodes`` 0: it cannot be divided equally."""

    nodes: int
    vcpus: int
    memory_mb: int

    @classmethod
    def divide_over(cls, nodes: int, vcpus: int, memory_mb: int) -> NodePart:
        if not nodes:
            return cls(0, vcpus, memory_mb)
        return cls(nodes, numa.share_per_node(vcpus, nodes), numa.share_per_node(memory_mb, nodes))


def take_mask(rooms: NodeRooms, part: NodePart, more: Ints | int = 0) -> Mask:
    """Which hosts take a server after ``more`` others like it."""
    if not part.nodes or part.nodes > rooms.count:
        uncounted: Mask = np.isposinf(rooms.first_room.vcpus)
        return uncounted
    if isinstance(more, int) and not more:
        if part.nodes == rooms.count:
            return _fits_room(rooms.least_room, part)
        fitting = [_fits_room(node_parts, part) for node_parts in rooms.rooms_by_node()]
        if part.nodes == 1:
            for other in fitting[1:]:
                fitting[0] |= other
            return fitting[0]
        several: Mask = np.asarray(np.sum(fitting, axis=0, dtype=np.uint8) >= part.nodes)
        return several
    needed_parts = np.asarray(more, np.float64) + 1.0
    parts = np.sum([np.minimum(node_parts, needed_parts) for node_parts in _parts_by_node(rooms.rooms_by_node(), part)], axis=0)
    enough: Mask = parts >= part.nodes * needed_parts
    return enough


def most_servers(rooms: NodeRooms, part: NodePart) -> Floats:
    """An upper limit of how many such servers each host takes; inf where nodes are not counted, less than 1 where none fits.

    Rounded down, it is exact for servers of one node, and for those that are divided over all nodes.
    """
    if not part.nodes or part.nodes > rooms.count:
        return np.where(np.isposinf(rooms.first_room.vcpus), np.inf, 0.0)
    if part.nodes == rooms.count:  # each server takes some of every node
        return _part_quotient(rooms.least_room, part)
    first, *others = _parts_by_node(rooms.rooms_by_node(), part)
    for parts in others:
        first += parts
    return np.divide(first, part.nodes, out=first) if part.nodes > 1 else first


def even_room(free_by_node: Sequence[Floats]) -> Floats:
    """What is free of one resource if each node of a host had as much as its fullest one; inf where nodes are not counted.

    ``free_by_node``: what is free on the nodes of each number, as in ``NodeRoom``.
    """
    least, count = np.full(free_by_node[0].size, np.inf), np.zeros(free_by_node[0].size)
    for room in free_by_node:
        exists = room > -np.inf
        np.minimum(least, room, out=least, where=exists)
        count += exists
    least *= count
    return least


def choose_nodes(classes: Classes, row: int, part: NodePart) -> tuple[int, ...] | None:
    """The nodes for a server on the host in this row; empty if the host's nodes are not counted, None if it does not fit.

    A server of one node gets the one with the fewest vCPUs free, so that large holes stay. One of several gets those with room for
    the most parts, so that as many servers as possible fit. Equal nodes: the lowest number.
    """
    nodes = classes.numa_with_row(row)
    if part.nodes == len(nodes):
        least = classes.least.vcpus.free.item(row), classes.least.memory_mb.free.item(row)
        if least[0] == np.inf:
            return ()
        return tuple(range(part.nodes)) if _holds_amount(least[0], part.vcpus) and _holds_amount(least[1], part.memory_mb) else None
    free = [(vcpus.room.free.item(row), memory_mb.room.free.item(row)) for vcpus, memory_mb in nodes]
    if free[0][0] == np.inf:
        return ()
    if part.nodes == 1 and part.vcpus and part.memory_mb:  # most servers
        enough = [(cpus, memory, n) for n, (cpus, memory) in enumerate(free) if cpus >= part.vcpus and memory >= part.memory_mb]
        return (min(enough)[2],) if enough else None
    fitting = [
        n
        for n, (vcpus, memory_mb) in enumerate(free)
        if _holds_amount(vcpus, part.vcpus) and _holds_amount(memory_mb, part.memory_mb)
    ]
    if not part.nodes or len(fitting) < part.nodes:
        return None
    if part.nodes == len(fitting):
        return tuple(fitting)
    if part.nodes == 1:
        return (min([(*free[n], n) for n in fitting])[2],)
    ordered = sorted(fitting, key=lambda n: (-_parts_on(free[n], part), n))
    return tuple(sorted(ordered[: part.nodes]))


def _holds_amount(free: float, amount: int) -> bool:
    return free >= amount if amount else free > -np.inf


def _fits_room(room: NodeRoom, part: NodePart) -> Mask:
    if not part.vcpus and not part.memory_mb:
        exists: Mask = room.vcpus > -np.inf
        return exists
    if not part.memory_mb:
        return at_least(room.vcpus, part.vcpus)
    fitting = at_least(room.memory_mb, part.memory_mb)
    if part.vcpus:
        fitting &= at_least(room.vcpus, part.vcpus)
    return fitting


def _parts_by_node(rooms: Sequence[NodeRoom], part: NodePart) -> Iterator[Floats]:
    """How many parts of such servers each node takes."""
    for room in rooms:
        parts = _part_quotient(room, part)
        np.maximum(parts, 0.0, out=parts)
        yield np.floor(parts, out=parts)


def _part_quotient(room: NodeRoom, part: NodePart) -> Floats:
    """How many parts there is room for, not rounded; 0 or less where there is room for none."""
    amounts = (room.vcpus, part.vcpus), (room.memory_mb, part.memory_mb)
    parts = [divide_by(free, amount) for free, amount in amounts if amount]
    first = parts[0] if parts else np.where(room.vcpus > -np.inf, np.inf, 0.0)
    for other in parts[1:]:
        np.minimum(first, other, out=first)
    return first


def _parts_on(free: tuple[float, float], part: NodePart) -> float:
    amounts = zip(free, (part.vcpus, part.memory_mb), strict=True)
    return min((free // amount for free, amount in amounts if amount), default=np.inf)
