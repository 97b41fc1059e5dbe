"""What a command forks in a region whose agents share processes."""

from __future__ import annotations

from objects.base import Object


class CellHosts(Object, frozen=True, kw_only=True):
    """Hosts of one cell, and the configuration files that they have in common."""

    files: tuple[str, ...]
    hosts: tuple[str, ...]


class Forks(Object, frozen=True, kw_only=True):
    """What a command forks. ``conductors``: the configuration files of each. ``agents``: the hosts of each process."""

    conductors: tuple[tuple[str, ...], ...] = ()
    agents: tuple[tuple[CellHosts, ...], ...] = ()
