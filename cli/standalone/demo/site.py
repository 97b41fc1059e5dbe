"""What the demo needs of a deployment, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from objects.base import Object


class HostPlan(Object, frozen=True, kw_only=True):
    """One simulated host; ``failure_rate`` of its builds fail, the same ones in every run."""

    name: str
    cell: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    failure_rate: float = 0.0


class Records(Protocol):
    """Where a deployment writes down what it does: the state folder of an all-in-one, the folder of a region."""

    @property
    def path(self) -> Path:
        """Its folder; the guests of the simulated hosts are in ``hosts/`` of it."""
        ...

    def database_url(self, name: str, /) -> str:
        """URL of the database ``api``. Where the others are is in its cell mappings."""
        ...


class CommandRunner(Protocol):
    """Runs commands of ``superconductor`` on a deployment."""

    def run(self, *words: str) -> None:
        """Run one. Raises ``errors.Invalid`` if it fails."""
        ...


class Site(NamedTuple):
    """A deployment that serves. Requests go to its ``endpoints`` in turn."""

    records: Records
    commands: CommandRunner
    endpoints: Sequence[str]
    hosts: Sequence[HostPlan]
