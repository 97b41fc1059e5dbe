"""Flavors: named sizes."""

from __future__ import annotations

from objects import extra_specs
from objects.amounts import Amounts
from objects.base import Object


class Flavor(Object, frozen=True, kw_only=True):
    """A size a server can have. Memory in MiB, disk in GiB, swap in MiB."""

    flavor_id: str
    name: str
    vcpus: int
    memory_mb: int
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap_mb: int = 0
    is_public: bool = True
    disabled: bool = False
    description: str | None = None
    extra_specs: dict[str, str] = {}

    @property
    def disk_gb(self) -> int:
        """Local disk that a server of this flavor takes, in GiB, with swap rounded up."""
        return self.root_gb + self.ephemeral_gb + -(-self.swap_mb // 1024)

    @property
    def takes(self) -> Amounts:
        """The resources that a server of this flavor takes: its size and the ``resources:CLASS`` of its extra specs."""
        return Amounts.of(self.vcpus, self.memory_mb, self.disk_gb, extra_specs.resources(self.extra_specs))
