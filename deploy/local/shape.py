"""How large a region is, and which processes that makes."""

from __future__ import annotations

import enum

from cli.standalone.demo import plan
from cli.standalone.demo.site import HostPlan
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


CONDUCTORS, AGENTS = "cell-conductors", "agents"
"""The commands that fork all cell conductors, and all agents."""


class Member(Object, frozen=True, kw_only=True):
    """One command that runs, and the configuration files it reads, by their names in the region's ``etc``."""

    name: str
    role: Role
    files: tuple[str, ...]
    forks: int = 0
    """How many processes it forks that do the work of commands of their own; 0: it is a command of the distribution."""

    @property
    def program_name(self) -> str:
        return PROGRAMS[self.role]


class Shape(Object, frozen=True, kw_only=True):
    """How many of what. ``conductors`` and ``agents`` are those of each cell. ``demo``: the hosts are those of the demo's plan.

    ``agents_per_process``: with more than one, a process has the agents of so many hosts, and one command forks all these
    processes, another one those of all cell conductors. So a machine carries many more of them.
    """

    cells: int = 2
    apis: int = 2
    proxies: int = 0
    supers: int = 2
    schedulers: int = 2
    conductors: int = 2
    agents: int = 10
    agents_per_process: int = 1
    database: str = "mariadb"
    broker: str = "rabbitmq"
    demo: bool = False

    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"cell{number + 1}" for number in range(self.cells))

    def list_hosts(self) -> tuple[HostPlan, ...]:
        """The simulated hosts of all cells. Raises errors.Invalid for a demo without room."""
        if self.demo:
            return plan.plan_hosts(self.agents)
        return tuple(
            HostPlan(name=f"{cell}-host{number + 1}", cell=cell, vcpus=16, memory_mb=65536, disk_gb=1000)
            for cell in self.cell_names()
            for number in range(self.agents)
        )

    @property
    def is_crowded(self) -> bool:
        """Whether agents share processes."""
        return self.agents_per_process > 1

    def list_crowds(self) -> tuple[tuple[HostPlan, ...], ...]:
        """The hosts of each process, where agents share processes."""
        hosts, size = self.list_hosts(), self.agents_per_process
        return tuple(hosts[start : start + size] for start in range(0, len(hosts), size))

    def conductor_members(self) -> tuple[Member, ...]:
        """The cell conductors, also where one command forks them all."""
        return tuple(
            _make_member(f"{cell}-conductor-{n + 1}", Role.CONDUCTOR, f"{cell}.conf")
            for cell in self.cell_names()
            for n in range(self.conductors)
        )

    def list_members(self) -> tuple[Member, ...]:
        """Every command, those that others wait for first."""
        members = list(self.conductor_members())
        if self.is_crowded:
            members = [Member(name=CONDUCTORS, role=Role.CONDUCTOR, files=(f"{CONDUCTORS}.json",), forks=len(members))]
        members += [_make_member(f"scheduler-{n + 1}", Role.SCHEDULER, "api.conf") for n in range(self.schedulers)]
        members += [_make_member(f"super-conductor-{n + 1}", Role.SUPER, "api.conf") for n in range(self.supers)]
        members += [_make_member(f"api-{n + 1}", Role.API, "api.conf") for n in range(self.apis)]
        members += [_make_member(f"console-proxy-{n + 1}", Role.CONSOLE_PROXY, "api.conf") for n in range(self.proxies)]
        if self.is_crowded:
            members.append(Member(name=AGENTS, role=Role.COMPUTE, files=(f"{AGENTS}.json",), forks=len(self.list_crowds())))
        else:
            members += [_make_member(host.name, Role.COMPUTE, f"{host.cell}-compute.conf") for host in self.list_hosts()]
        return tuple(members)


def _make_member(name: str, role: Role, common: str) -> Member:
    """``common``: the file that it shares with others; what only it has is in a file of its own name."""
    return Member(name=name, role=role, files=(common, f"{name}.conf"))
