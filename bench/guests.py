"""What real guests cost under libvirt: beside the hypervisor's own time, in memory and CPU, and in a region of two hosts.

    python bench/guests.py            the figures of docs/performance.md (about ten minutes)
    python bench/guests.py --smoke    the same paths in a minute; figures not to be quoted

``--part turns|many|region`` measures one part only, ``--rounds N`` and ``--guests N`` other numbers of turns and guests. Guests are
``spark``, 512 bytes that QEMU emulates. Each host is a libvirtd of its own.

turns: a guest is spawned and destroyed by the driver, and the same guest with ready files by libvirt alone. Our part of a spawn is
what it takes beyond libvirt's start of the guest and a define; of a destroy what it takes beyond libvirt's destroy and undefine.
many: what the agent's audit and its stats ask of the driver on a host that is full of guests.
region: separate processes on RabbitMQ and MariaDB, with one cell. Servers are booted in one request on two hosts; then one host has
guests and the other none, with the default intervals of all periodic work.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from rich.console import Console
from rich.table import Table

from bench._calls import LibvirtCalls
from bench._counters import MIB, Meter, subtract_values
from bench._place import IMAGE, Client, prepared_region, start_processes
from bench._script import parser_of
from ci.stages import ACCEPT
from compute.libvirt import binding, qemu_img
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from db.api.servers import mappings
from db.sql.engine import Database
from deploy.local.options import LIBVIRT, set_options, use_libvirt
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.servers import Unavailable
from images import spark
from images.store import FolderStore
from objects.base import Object
from service.periodic import wait_until
from tests.support import libvirt_host
from tests.support.libvirt_driver import add_spark, guest, opened, settings_of, spawn, spec

SHAPE = Shape(cells=1, apis=1, supers=1, schedulers=1, conductors=1, agents=2)
SPAWN_THREADS = 4
CPU_RATIO = 100
"""Capacity limits nothing."""
PATIENCE_S = 600.0
MAIN_CALLS = ("DomainCreateWithFlags", "DomainDefineXMLFlags", "DomainDestroy", "DomainUndefineFlags")
"""Calls in which libvirt itself starts or ends a guest."""


class Sizes(Object, frozen=True, kw_only=True):
    """How much is measured: turns, guests on a full host, servers of one request, seconds of an idle region."""

    rounds: int = 25
    guests: int = 60
    boots: int = 100
    idle_s: float = 180.0


SMOKE = Sizes(rounds=2, guests=3, boots=4, idle_s=2.0)


class Turn(Object, frozen=True, kw_only=True):
    """One guest's life: seconds of each step, by name, and the CPU seconds of this process and of libvirtd."""

    seconds: Mapping[str, float]
    cpu: Mapping[str, float]


# -- by turns ----------------------------------------------------------------------------------------------------------------------


class Turns:
    """The driver and libvirt alone with the same guest."""

    def __init__(self, place: Path, daemon: PrivateDaemon, driver: LibvirtDriver, calls: LibvirtCalls) -> None:
        self._libvirt = binding.load_libvirt()
        self._connection = self._libvirt.open(daemon.connection_uri)
        self._daemon = psutil.Process(daemon.daemon_pid)
        self._driver = driver
        self._settings = _driver_settings(daemon, place)
        self._place = place
        self._calls = calls
        self.counts_by_step: dict[str, Counter[str]] = {}
        """What a spawn and a destroy ask of libvirt, and how many processes they start."""

    def close(self) -> None:
        self._connection.close()

    def run(self, *, config_drive: bool) -> Turn:
        """One turn of each."""
        one = guest()
        seconds: dict[str, float] = {}
        cpu: dict[str, float] = {}
        folder = Path(self._settings.instances_path) / one.uuid
        drive = Path(self._settings.config_drive_path) / f"{one.uuid}.iso"
        with self._time_step("spawn", seconds, cpu):
            spawn(self._driver, one, spec(config_drive=config_drive))
        seconds["create in spawn"] = self._calls.seconds["DomainCreateWithFlags"]
        domain = self._connection.lookupByUUIDString(one.uuid)
        xml = domain.XMLDesc(self._libvirt.VIR_DOMAIN_XML_INACTIVE)
        base = qemu_img.backing_file(folder / "disk")
        assert base is not None
        drive_copy = self._place / "drive.iso"
        if config_drive:
            shutil.copy(drive, drive_copy)
        with self._time_step("destroy", seconds, cpu):
            self._driver.destroy(one.uuid)
        seconds["destroy in destroy"] = sum(self._calls.seconds[name] for name in MAIN_CALLS)
        folder.mkdir()
        qemu_img.create_overlay(folder / "disk", base, "raw", 1 << 30)
        if config_drive:
            shutil.copy(drive_copy, drive)
        with self._time_step("bare spawn", seconds, cpu):
            domain = self._connection.defineXML(xml)
            seconds["bare define"] = self._calls.seconds["DomainDefineXML"]
            domain.create()
        with self._time_step("bare destroy", seconds, cpu):
            domain.destroy()
            domain.undefine()
        shutil.rmtree(folder)
        drive.unlink(missing_ok=True)
        seconds["our part of spawn"] = seconds["spawn"] - seconds["create in spawn"] - seconds["bare define"]
        seconds["our part of destroy"] = seconds["destroy"] - seconds["destroy in destroy"]
        return Turn(seconds=seconds, cpu=cpu)

    @contextmanager
    def _time_step(self, name: str, seconds: dict[str, float], cpu: dict[str, float]) -> Iterator[None]:
        self._calls.reset_counts()
        used, daemon, began = _own_cpu(), _cpu_seconds(self._daemon), time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - began
        cpu[name], cpu[f"{name}, libvirtd"] = _own_cpu() - used, _cpu_seconds(self._daemon) - daemon
        self.counts_by_step[name] = self._calls.counts + Counter({"processes": self._calls.processes})


def measure_turns(console: Console, sizes: Sizes) -> None:
    """Print what a spawn and a destroy take of the driver and of libvirt alone."""
    with (
        running_host() as (folder, daemon, store),
        opened(_driver_settings(daemon, folder), store) as driver,
        LibvirtCalls() as calls,
    ):
        driver.guests()
        turns = Turns(folder, daemon, driver, calls)
        for config_drive in (False, True):
            turns.run(config_drive=config_drive)  # what is done once: the image, the host's facts, imports
            timed_turns = [turns.run(config_drive=config_drive) for _ in range(sizes.rounds)]
            _show_turns(console, timed_turns, "with a config drive" if config_drive else "without a config drive")
        for name in ("spawn", "destroy"):
            console.print(f"a {name} asks: {_describe_counts(turns.counts_by_step[name])}", highlight=False)
        turns.close()


def _show_turns(console: Console, turns: Sequence[Turn], label: str) -> None:
    table = Table(title=f"{len(turns)} guests {label}, load {os.getloadavg()[0]:.1f}", title_justify="left")
    for heading in ("", "p50, ms", "p95, ms", "least, ms", "CPU ms", "of libvirtd"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in turns[0].seconds:
        times = sorted(turn.seconds[name] * 1000 for turn in turns)
        cpu = [
            statistics.mean(turn.cpu[key] * 1000 for turn in turns) for key in (name, f"{name}, libvirtd") if key in turns[0].cpu
        ]
        figures = (statistics.median(times), times[int(len(times) * 0.95)], times[0], *cpu)
        table.add_row(name, *(f"{figure:.1f}" for figure in figures), style="bold" if name.startswith("our") else None)
    console.print(table)


# -- many guests -------------------------------------------------------------------------------------------------------------------


def measure_many(console: Console, sizes: Sizes) -> None:
    """Print what it takes to look at a host full of guests."""
    with running_host() as (folder, daemon, store):
        settings = settings_of(daemon, folder)
        with opened(settings, store) as driver:
            driver.guests()
            began = time.perf_counter()
            with ThreadPoolExecutor(SPAWN_THREADS) as pool:
                list(pool.map(lambda _: spawn(driver), range(sizes.guests)))
            rate = sizes.guests / (time.perf_counter() - began)
            console.print(f"{sizes.guests} spawns by {SPAWN_THREADS} threads: {rate:.1f}/s, load {os.getloadavg()[0]:.1f}")
        with opened(settings, store) as driver, LibvirtCalls() as calls:
            for name, function in (("first guests()", driver.guests), ("guests()", driver.guests), ("nodes()", driver.nodes)):
                took = [_time_call(function, calls) for _ in range(1 if name.startswith("first") else sizes.rounds)]
                console.print(
                    f"{name} of {sizes.guests} guests: p50 {statistics.median(took) * 1000:.1f} ms, least {min(took) * 1000:.1f};"
                    f" asks {_describe_counts(calls.counts + Counter({'processes': calls.processes}))}",
                    highlight=False,
                )
        console.print(f"libvirtd: {_describe_memory([psutil.Process(daemon.daemon_pid)])}", highlight=False)


def _time_call(function: Callable[[], object], calls: LibvirtCalls) -> float:
    calls.reset_counts()
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


# -- a region ----------------------------------------------------------------------------------------------------------------------


class LibvirtRegion:
    """A region whose hosts have a libvirtd each."""

    def __init__(self, region: Region, daemons: Mapping[str, PrivateDaemon]) -> None:
        self._region = region
        self.daemons = daemons
        self.meter = Meter(region)
        start_processes(region)
        self._client = Client(region)
        self._database = Database(region.folder.database_url("api"), name="api")

    def close(self) -> None:
        self._database.dispose_connections()
        self.meter.close()

    def boot_servers(self, name: str, count: int, on: str | None = None) -> float:
        """Boot servers in one request; the seconds from its accept until all are ACTIVE."""
        self._client.boot_servers(name, count, on)
        query = mappings.ServerQuery(name=f"^{name}", limit=1000)

        def is_settled() -> bool:
            return all(server.state in ("active", "error") for server in self._database.read(mappings.list_, query))

        assert wait_until(is_settled, PATIENCE_S, pause=0.1)
        servers = self._database.read(mappings.list_, query)
        active = [server.launched_at for server in servers if server.launched_at is not None]
        assert len(active) == count, f"{len(active)} of {count} are ACTIVE"
        return max(active) - min(server.created_at for server in servers)

    def delete(self, name: str) -> float:
        """Delete these servers, one request each; the seconds until all are gone and no QEMU is left."""

        def is_gone() -> bool:
            guests = any(daemon.guest_pids() for daemon in self.daemons.values())
            return not guests and not self._database.read(mappings.list_, query)

        began = time.monotonic()
        query = mappings.ServerQuery(name=f"^{name}", limit=1000)
        for server in self._database.read(mappings.list_, query):
            self._client.delete(server.uuid)
        assert wait_until(is_gone, PATIENCE_S, pause=0.1)
        return time.monotonic() - began

    def agent_processes(self, name: str) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self._region.table.pids_by_member()[name]]


def measure_region(console: Console, sizes: Sizes) -> None:
    """Print what boots on two hosts take, and what idle guests cost their agent. Raises ``Unavailable``."""
    with ExitStack() as stack:
        region = stack.enter_context(prepared_region(SHAPE))
        hosts = region.folder.hosts
        daemons = {
            plan.name: PrivateDaemon(hosts / plan.name / LIBVIRT, cache=libvirt_host.capability_cache())
            for plan in SHAPE.list_hosts()
        }
        spark.write_disk(hosts / "spark.raw")
        FolderStore(region.folder.images).add_image(hosts / "spark.raw", name="spark", image_id=IMAGE, disk_format="raw")
        for cell in SHAPE.cell_names():
            set_options(region.folder.etc / f"{cell}.conf", "conductor", {"cpu_allocation_ratio": str(CPU_RATIO)})
        for name, daemon in daemons.items():
            daemon.start()
            use_libvirt(region.folder.etc / f"{name}.conf", hosts / name, daemon)
        bench = LibvirtRegion(region, daemons)
        stack.callback(bench.close)
        _measure_boots(console, bench, sizes)
        _measure_idle(console, bench, sizes)


def _measure_boots(console: Console, bench: LibvirtRegion, sizes: Sizes) -> None:
    bench.boot_servers("first", 2)  # images are copied to the hosts
    bench.delete("first")
    libvirtds = [psutil.Process(daemon.daemon_pid) for daemon in bench.daemons.values()]
    before, daemons_before = bench.meter.cpu_by_role(), sum(map(_cpu_seconds, libvirtds))
    seconds = bench.boot_servers("many", sizes.boots)
    used, daemons = subtract_values(bench.meter.cpu_by_role(), before), sum(map(_cpu_seconds, libvirtds)) - daemons_before
    guests = sum(_cpu_seconds(process) for daemon in bench.daemons.values() for process in _guest_processes(daemon))
    console.print(
        f"{sizes.boots} servers in one request on two hosts: all ACTIVE after {seconds:.1f} s, {sizes.boots / seconds:.2f}/s, load "
        f"{os.getloadavg()[0]:.1f}",
        highlight=False,
    )
    cpu_by_part = {**used, "libvirtd": daemons, "QEMU": guests}
    shares = ", ".join(
        f"{role} {cpu / sizes.boots * 1000:.0f}" for role, cpu in sorted(cpu_by_part.items(), key=lambda pair: -pair[1])
    )
    console.print(f"  CPU ms per server: {shares}", highlight=False)
    console.print(f"  deleted, one request each: all gone after {bench.delete('many'):.1f} s", highlight=False)


def _measure_idle(console: Console, bench: LibvirtRegion, sizes: Sizes) -> None:
    full, empty = bench.daemons
    bench.boot_servers("idle", sizes.guests, on=full)
    agents = {name: bench.agent_processes(name) for name in (full, empty)}
    libvirtds = {name: [psutil.Process(daemon.daemon_pid)] for name, daemon in bench.daemons.items()}
    groups = {f"agent of {sizes.guests} guests": agents[full], "agent of none": agents[empty]}
    groups |= {f"libvirtd of {sizes.guests} guests": libvirtds[full], "libvirtd of none": libvirtds[empty]}
    groups["their QEMU"] = _guest_processes(bench.daemons[full])
    before = {name: sum(map(_cpu_seconds, processes)) for name, processes in groups.items()}
    began = time.monotonic()
    time.sleep(sizes.idle_s)  # what is used meanwhile runs by the clock
    seconds = time.monotonic() - began
    table = Table(title=f"Idle, default intervals, {seconds:.0f} s, load {os.getloadavg()[0]:.1f}", title_justify="left")
    for heading in ("", "% of a core", "memory"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, processes in groups.items():
        table.add_row(
            name, f"{(sum(map(_cpu_seconds, processes)) - before[name]) / seconds * 100:.2f}", _describe_memory(processes)
        )
    console.print(table)


# -- helpers -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def running_host() -> Iterator[tuple[Path, PrivateDaemon, FolderStore]]:
    """A libvirtd without guests, a folder for an agent's files, and images."""
    with tempfile.TemporaryDirectory(prefix="superconductor-bench-") as name:
        folder = Path(name)
        with libvirt_host.private_daemon(folder / "host") as daemon:
            yield folder, daemon, add_spark(folder / "images")


def _driver_settings(daemon: PrivateDaemon, folder: Path) -> LibvirtSettings:
    """Guests have a config drive only if they ask for it."""
    return settings_of(daemon, folder, force_config_drive=False)


def _guest_processes(daemon: PrivateDaemon) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in daemon.guest_pids().values()]


def _cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process, and of its children that have ended."""
    times: Any = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _own_cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _describe_memory(processes: Sequence[psutil.Process]) -> str:
    memories = [process.memory_full_info() for process in processes]
    return f"{sum(memory.pss for memory in memories) / MIB:.0f} MiB PSS, {sum(memory.rss for memory in memories) / MIB:.0f} RSS"


def _describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items(), key=lambda pair: -pair[1])) or "nothing"


PARTS: dict[str, Callable[[Console, Sizes], None]] = {"turns": measure_turns, "many": measure_many, "region": measure_region}


def main() -> int:
    parser = parser_of(__doc__, "few guests; the figures mean nothing")
    parser.add_argument("--part", choices=list(PARTS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--guests", type=int)
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else Sizes()
    sizes = Sizes(
        rounds=options.rounds or sizes.rounds, guests=options.guests or sizes.guests, boots=sizes.boots, idle_s=sizes.idle_s
    )
    accepted = 0 if options.smoke and any(os.environ.get(name) for name in ACCEPT) else 1
    if why := libvirt_host.why_missing():
        print(f"No guests can be had here: {why}")
        return accepted
    console = Console(width=160)
    try:
        for name in (options.part,) if options.part else PARTS:
            PARTS[name](console, sizes)
    except Unavailable as error:
        print(f"No region can be had here: {error}")
        return accepted
    return 0


if __name__ == "__main__":
    sys.exit(main())
