"""A region of its own whose every connection to a server goes through a proxy."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from chaos import links, plan
from chaos.mixed import OldCommands
from chaos.plan import Boot
from chaos.proxy import Proxies
from chaos.real_hosts import RealHosts
from cli.standalone.demo.boots import define_flavors, define_groups
from cli.standalone.demo.hosts import HostFindings, SimulatedFindings
from deploy import ports
from deploy.local.backing import Backing
from deploy.local.folder import Folder
from deploy.local.make import make_region, notes_of
from deploy.local.options import set_options, use_libvirt
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.stop import stop
from images import spark
from images.store import FolderStore

CAPACITY_FACTOR = 3
"""Room for so many times the load: with hosts down and one cell out of reach all of it fits."""
CPU_ALLOCATION_RATIO = 4
"""Virtual CPUs that an agent offers for each of its host's, by default."""
SPAWNS = {"spawn_delay_min": "0.1", "spawn_delay_max": "2", "copy_delay": "0.5"}
"""Seconds. Long enough to be hit by a fault."""
AUTO_CONFIRM_S = "10"
"""Seconds that users have for a resize. Members of its affinity group wait as long."""


class RoutedBacking(Backing):
    """Its URLs lead through the links of the API level; a cell's, which go into its mapping, through those from above."""

    def __init__(self, region: Region, proxies: Proxies) -> None:
        super().__init__(region.folder, region.notes)
        self._broker, self._server = region.notes.broker_port, region.notes.database_port
        self._cells = region.notes.shape.cell_names()
        self._proxies = proxies

    def make_hosts(self, names: Iterable[str]) -> Mapping[str, str]:
        urls = super().make_hosts(names)
        return {name: self._routed_url(url, self._broker, name, links.BUS) for name, url in urls.items()}

    def make_databases(self, names: Iterable[str]) -> Mapping[str, str]:
        urls = super().make_databases(names)
        return {name: self._routed_url(url, self._server, name, links.DATABASE) for name, url in urls.items()}

    def _routed_url(self, url: str, port: int, name: str, server: str) -> str:
        level = f"{links.ABOVE}{name}" if name in self._cells else links.API
        return url.replace(f"@{ports.HOST}:{port}", f"@{ports.HOST}:{self._proxies.port_of(f'{level}-{server}')}")


class Place(NamedTuple):
    """A region behind proxies. ``room``: what every host offers, in vCPUs and MiB."""

    region: Region
    proxies: Proxies
    hosts: HostFindings
    room: tuple[int, int]


@contextmanager
def open_place(
    path: Path,
    shape: Shape,
    planned: Sequence[Boot],
    say: Callable[[str], None],
    *,
    real: RealHosts | None = None,
    old: Path | None = None,
) -> Iterator[Place]:
    """A new region with its servers, flavors and groups, and none of its own processes yet; stopped at the end.

    ``real``: hosts with libvirt; None: they are simulated. ``old``: the folder of the commands of an older release, which makes the
    region and begins. Then flavors and groups come later.

    Raises ``deploy.servers.Unavailable`` where a server cannot be had, and ``errors.Misconfigured`` where libvirt cannot.
    """
    folder = Folder(path)
    with folder.hold_lock():
        region = Region(folder, notes_of(folder, shape), lambda _: None)
        if old is not None:
            region.commands = OldCommands(folder, region.say, old)
            region.table.programs = {member.name: old for member in shape.list_members()}
        notes = region.notes
        targets = {links.BUS: notes.broker_port, links.DATABASE: notes.database_port}
        proxies = Proxies({link: targets[link.rpartition("-")[2]] for link in links.links_of(shape)})
        region.backing = RoutedBacking(region, proxies)
        try:
            make_region(region)
            for cell in shape.cell_names():
                _use_own_links(folder, shape, cell, proxies)
            _set_hosts(folder, shape, planned)
            if old is None:
                define_resources(region, planned)
            if real is None:
                vcpus, memory = cores_and_memory(shape, planned)
                simulated = SimulatedFindings(folder.hosts, [host.name for host in shape.list_hosts()])
                yield Place(region, proxies, simulated, (vcpus * CPU_ALLOCATION_RATIO, memory))
            else:
                real.start()
                yield Place(region, proxies, real, _use_real_hosts(folder, shape, planned, real))
        finally:
            before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
            say("stopping the region")  # a second Ctrl-C must not keep it running
            proxies.restore_links(links.links_of(shape))
            stop(region)
            proxies.close()
            for number, handler in before.items():
                signal.signal(number, handler)


def _use_own_links(folder: Folder, shape: Shape, cell: str, proxies: Proxies) -> None:
    """The cell's own processes take the cell's own links: its conductors, and its agents, each of which has a URL of the bus."""
    for name in (f"{cell}.conf", *(f"{host.name}.conf" for host in shape.list_hosts() if host.cell == cell)):
        text = (folder.etc / name).read_text()
        for server in (links.BUS, links.DATABASE):
            above, own_port = proxies.port_of(f"{links.ABOVE}{cell}-{server}"), proxies.port_of(f"{cell}-{server}")
            text = text.replace(f"@{ports.HOST}:{above}", f"@{ports.HOST}:{own_port}")
        folder.write(f"etc/{name}", text)


def cores_and_memory(shape: Shape, planned: Sequence[Boot]) -> tuple[int, int]:
    """What every host has: CPUs, of which an agent offers ``CPU_ALLOCATION_RATIO`` times as many, and MiB."""
    hosts = len(shape.list_hosts())
    return math.ceil(CAPACITY_FACTOR * plan.vcpus_of(planned) / hosts / CPU_ALLOCATION_RATIO), math.ceil(
        CAPACITY_FACTOR * plan.memory_of(planned) / hosts
    )


def _set_hosts(folder: Folder, shape: Shape, planned: Sequence[Boot]) -> None:
    vcpus, memory = cores_and_memory(shape, planned)
    for host in shape.list_hosts():
        set_options(folder.etc / f"{host.name}.conf", "simulated", {"vcpus": str(vcpus), "memory_mb": str(memory)})
    for cell in shape.cell_names():
        set_options(folder.etc / f"{cell}-compute.conf", "simulated", SPAWNS)
    set_options(folder.etc / "api.conf", "conductor", {"auto_confirm": AUTO_CONFIRM_S})


def _use_real_hosts(folder: Folder, shape: Shape, planned: Sequence[Boot], real: RealHosts) -> tuple[int, int]:
    """Give every agent a libvirtd, and the images of the load. What every host offers: vCPUs, and MiB."""
    cores, memory = psutil.cpu_count() or 1, psutil.virtual_memory().total >> 20
    ratio = math.ceil(CAPACITY_FACTOR * plan.vcpus_of(planned) / len(shape.list_hosts()) / cores)
    for name, daemon in real.daemons.items():
        use_libvirt(folder.etc / f"{name}.conf", folder.hosts / name, daemon)
    for cell in shape.cell_names():
        set_options(folder.etc / f"{cell}.conf", "conductor", {"cpu_allocation_ratio": str(ratio)})
    spark.write_disk(folder.path / "spark.raw")
    store = FolderStore(folder.images)
    for image in plan.images_of(planned):
        store.add_image(folder.path / "spark.raw", name=spark.NAME, image_id=image, disk_format="raw")
    return cores * ratio, memory


def define_resources(region: Region, planned: Sequence[Boot]) -> None:
    """Make the flavors and groups of the load."""
    define_flavors(region.commands, plan.FLAVORS)
    define_groups(region.commands, plan.groups_of(planned), plan.PROJECT)
