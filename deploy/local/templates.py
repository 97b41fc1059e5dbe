"""Write the configuration files of a new region. From then on they are the operator's: no start looks at the templates again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cli.standalone.demo.plan import SPAWN_DELAY_S
from cli.standalone.demo.site import HostPlan
from deploy.local.folder import Folder, Notes
from deploy.local.forked import CellHosts, Forks
from deploy.local.shape import AGENTS, CONDUCTORS, Role, Shape
from objects.base import Object

TEMPLATES = Path(__file__).parent / "etc"
CELL_TIMEOUT_S, CROWDED_CELL_TIMEOUT_S = 5.0, 60.0
"""Seconds that a cell may take. With many cells on one machine, one that is only busy must not be asked again and again."""
SHORT_SPAWN_DELAY_S = (0.05, 0.2)
"""Seconds that a spawn takes on a simulated host, at least and at most, where it is not the demo's."""


class Access(Object, frozen=True, kw_only=True):
    """Where one level of the region is, with the passwords of its own user, and the keys that open its tenants' secrets."""

    transport_url: str
    database_url: str
    keys: str = ""


def write_api(folder: Folder, notes: Notes, access: Access) -> None:
    """The files of the API level."""
    timeout = CROWDED_CELL_TIMEOUT_S if notes.shape.is_crowded else CELL_TIMEOUT_S
    words = {"cell_timeout": f"{timeout:g}", "folder": folder.path, "images": folder.images, "serial_url": notes.serial_url()}
    _write(folder, "api.conf", "api.conf", words | _template_words(access))
    for number, port in enumerate(notes.api_ports, start=1):
        name = f"api-{number}"
        _write(folder, "api-port.conf", f"{name}.conf", {"port": port, "monitoring": notes.monitored_ports().get(name, 0)})
    for number, port in enumerate(notes.console_ports, start=1):
        name = f"console-proxy-{number}"
        _write(folder, "console-port.conf", f"{name}.conf", {"port": port, "monitoring": notes.monitored_ports().get(name, 0)})


def write_cell(folder: Folder, notes: Notes, cell: str, access: Access, agents: Mapping[str, str]) -> None:
    """The files of one cell: of its conductors, of its agents, and of each agent. ``agents``: their URLs of the bus, by host."""
    shortest, longest = SPAWN_DELAY_S if notes.shape.demo else SHORT_SPAWN_DELAY_S
    users = "shared" if notes.shape.is_crowded else "required"
    _write(folder, "cell.conf", f"{cell}.conf", {"cell": cell, "agent_users": users, **_template_words(access)})
    common = {"cell": cell, "hosts": folder.hosts, "images": folder.images, "shortest": shortest, "longest": longest}
    _write(folder, "compute.conf", f"{cell}-compute.conf", common)
    if notes.shape.is_crowded:
        _write(folder, "hosts.conf", f"{cell}-hosts.conf", {"cell": cell, **_template_words(access)})
        return
    for host in notes.shape.list_hosts():
        if host.cell == cell:
            words = {**msgspec.structs.asdict(host), "monitoring": notes.monitored_ports().get(host.name, 0)}
            words["transport_url"] = agents[host.name]
            _write(folder, "host.conf", f"{host.name}.conf", words)


def write_others(folder: Folder, notes: Notes) -> None:
    """The files of each process that has nothing of its own but where it is monitored, if they are missing.

    A region that was made without such files gets them at its next start, and is not monitored.
    """
    if notes.shape.is_crowded:
        _write_forks(folder, notes.shape)
    for member in notes.shape.list_members():
        if member.forks:
            continue
        if member.role not in (Role.API, Role.CONSOLE_PROXY, Role.COMPUTE) and not (folder.etc / member.files[-1]).exists():
            _write(folder, "monitoring.conf", member.files[-1], {"monitoring": notes.monitored_ports().get(member.name, 0)})


def _write_forks(folder: Folder, shape: Shape) -> None:
    """What is to be forked. A conductor is not monitored: its own file would say where."""
    conductors = Forks(conductors=tuple(member.files[:1] for member in shape.conductor_members()))
    folder.write(f"etc/{CONDUCTORS}.json", msgspec.json.format(msgspec.json.encode(conductors)).decode())
    agents = Forks(agents=tuple(_cells_of(crowd) for crowd in shape.list_crowds()))
    folder.write(f"etc/{AGENTS}.json", msgspec.json.encode(agents).decode())


def _cells_of(hosts: Sequence[HostPlan]) -> tuple[CellHosts, ...]:
    grouped = itertools.groupby(hosts, key=lambda host: host.cell)
    return tuple(
        CellHosts(files=(f"{cell}-compute.conf", f"{cell}-hosts.conf"), hosts=tuple(host.name for host in cell_hosts))
        for cell, cell_hosts in grouped
    )


def _write(folder: Folder, template: str, name: str, words: Mapping[str, object]) -> None:
    folder.write(f"etc/{name}", (TEMPLATES / template).read_text().format(**words))


def _template_words(access: Access) -> dict[str, object]:
    return {"transport_url": access.transport_url, "database_url": access.database_url, "keys": access.keys}
