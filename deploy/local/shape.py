"""How large a region is, and which processes that makes."""

from __future__ import annotations

import enum

from cli.demo import plan
from cli.demo.plan import HostPlan
from objects.base import Object
from objects.process import AGENT_BINARY, API_BINARY, CONDUCTOR_BINARY, CONSOLE_PROXY_BINARY, SCHEDULER_BINARY


class Role(enum.StrEnum):
    """What a process is. In the order in which they are told to stop: who asks others goes before those it asks."""

    CONSOLE_PROXY = "console proxy"
    API = "API"
    COMPUTE = "agent"
    SUPER = "super conductor"
    SCHEDULER = "scheduler"
    CONDUCTOR = "cell conductor"


PROGRAMS = {
    Role.CONSOLE_PROXY: CONSOLE_PROXY_BINARY,
    Role.API: API_BINARY,
    Role.COMPUTE: AGENT_BINARY,
    Role.SUPER: CONDUCTOR_BINARY,
    Role.SCHEDULER: SCHEDULER_BINARY,
    Role.CONDUCTOR: CONDUCTOR_BINARY,
}


class Member(Object, frozen=True, kw_only=True):
    """One command that runs, and the configuration files it reads, by their names in the region's ``etc``."""

    name: str
    role: Role
    files: tuple[str, ...]

    @property
    def program(self) -> str:
        return PROGRAMS[self.role]


class Shape(Object, frozen=True, kw_only=True):
    """How many of what. ``conductors`` and ``agents`` are those of each cell. ``demo``: the hosts are those of the demo's plan."""

    cells: int = 2
    apis: int = 2
    proxies: int = 0
    supers: int = 2
    schedulers: int = 2
    conductors: int = 2
    agents: int = 10
    database: str = "mariadb"
    broker: str = "rabbitmq"
    demo: bool = False

    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"cell{number + 1}" for number in range(self.cells))

    def hosts(self) -> tuple[HostPlan, ...]:
        """The simulated hosts of all cells. Raises errors.Invalid for a demo without room."""
        if self.demo:
            return plan.hosts(self.agents)
        return tuple(
            HostPlan(name=f"{cell}-host{number + 1}", cell=cell, vcpus=16, memory_mb=65536, disk_gb=1000)
            for cell in self.cell_names()
            for number in range(self.agents)
        )

    def members(self) -> tuple[Member, ...]:
        """Every process, those that others wait for first."""
        found = [
            _member(f"{cell}-conductor-{n + 1}", Role.CONDUCTOR, f"{cell}.conf")
            for cell in self.cell_names()
            for n in range(self.conductors)
        ]
        found += [_member(f"scheduler-{n + 1}", Role.SCHEDULER, "api.conf") for n in range(self.schedulers)]
        found += [_member(f"super-conductor-{n + 1}", Role.SUPER, "api.conf") for n in range(self.supers)]
        found += [_member(f"api-{n + 1}", Role.API, "api.conf") for n in range(self.apis)]
        found += [_member(f"console-proxy-{n + 1}", Role.CONSOLE_PROXY, "api.conf") for n in range(self.proxies)]
        found += [_member(host.name, Role.COMPUTE, f"{host.cell}-compute.conf") for host in self.hosts()]
        return tuple(found)


def _member(name: str, role: Role, common: str) -> Member:
    """``common``: the file that it shares with others; what only it has is in a file of its own name."""
    return Member(name=name, role=role, files=(common, f"{name}.conf"))
