"""What real guests cost under libvirt: beside the hypervisor's own time, and an idle host that is full of them.

    python bench/guests.py            the figures of docs/performance.md (about ten minutes)
    python bench/guests.py --smoke    the same paths in a minute; figures not to be quoted

``--part turns|idle`` measures one part only, ``--rounds N`` and ``--guests N`` other numbers of turns and guests. Guests are
``spark``, 512 bytes that QEMU emulates. Each host is a libvirtd of its own.

turns: a guest is spawned and destroyed by the driver, and the same guest with ready files by libvirt alone. Our part of a spawn is
what it takes beyond libvirt's start of the guest and a define; of a destroy what it takes beyond libvirt's destroy and undefine.
idle: separate processes on RabbitMQ and MariaDB, with one cell. One host has guests and the other none, with the default intervals
of all periodic work.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from rich.console import Console

from bench._calls import LibvirtCalls
from bench._counters import MIB
from bench._place import IMAGE, end_unmeasured, running_region
from bench._script import parser_of, print_table, take_quantile
from compute.libvirt import binding, qemu_img
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from deploy.local.options import LIBVIRT, set_options, use_libvirt
from deploy.local.region import Region
from deploy.local.shape import Shape
from images import spark
from images.store import FolderStore
from objects.base import Object
from tests.support import libvirt_host
from tests.support.libvirt_driver import add_spark, guest, opened, settings_of, spawn, spec

SHAPE = Shape(cells=1, apis=1, supers=1, schedulers=1, conductors=1, agents=2)
CPU_RATIO = 100
"""Capacity limits nothing."""
PATIENCE_S = 600.0
MAIN_CALLS = ("DomainCreateWithFlags", "DomainDefineXMLFlags", "DomainDestroy", "DomainUndefineFlags")
"""Calls in which libvirt itself starts or ends a guest."""


class Sizes(Object, frozen=True, kw_only=True):
    """How much is measured: turns, guests on a full host, seconds of an idle region."""

    rounds: int = 25
    guests: int = 60
    idle_s: float = 180.0


SMOKE = Sizes(rounds=2, guests=3, idle_s=2.0)


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
    rows = []
    for name in turns[0].seconds:
        times = [turn.seconds[name] * 1000 for turn in turns]
        cpu = [
            statistics.mean(turn.cpu[key] * 1000 for turn in turns) for key in (name, f"{name}, libvirtd") if key in turns[0].cpu
        ]
        figures = (statistics.median(times), take_quantile(times, 0.95), min(times), *cpu)
        rows.append((name, *(f"{figure:.1f}" for figure in figures)))
    title = f"{len(turns)} guests {label}, load {os.getloadavg()[0]:.1f}"
    print_table(console, title, ("", "p50, ms", "p95, ms", "least, ms", "CPU ms", "of libvirtd"), rows)


# -- idle --------------------------------------------------------------------------------------------------------------------------


def measure_idle(console: Console, sizes: Sizes, *, smoke: bool) -> None:
    """Print what idle guests cost their agent."""
    daemons: dict[str, PrivateDaemon] = {}

    def start_daemons(region: Region) -> None:
        """Give each host a libvirtd."""
        hosts = region.folder.hosts
        spark.write_disk(hosts / "spark.raw")
        FolderStore(region.folder.images).add_image(hosts / "spark.raw", name="spark", image_id=IMAGE, disk_format="raw")
        for cell in SHAPE.cell_names():
            set_options(region.folder.etc / f"{cell}.conf", "conductor", {"cpu_allocation_ratio": str(CPU_RATIO)})
        for plan in SHAPE.list_hosts():
            daemons[plan.name] = PrivateDaemon(hosts / plan.name / LIBVIRT, cache=libvirt_host.capability_cache())
            daemons[plan.name].start()
            use_libvirt(region.folder.etc / f"{plan.name}.conf", hosts / plan.name, daemons[plan.name])

    with running_region(SHAPE, smoke=smoke, messages=False, prepare=start_daemons) as bench:
        full, empty = daemons
        bench.client.boot_servers("idle", sizes.guests, full)
        bench.meter.wait_active("idle", sizes.guests, timeout_s=PATIENCE_S)
        pids = bench.region.table.pids_by_member()
        groups = {f"agent of {sizes.guests} guests": pids[full], "agent of none": pids[empty]}
        libvirtds = {name: [pid for pid in (daemon.daemon_pid,) if pid is not None] for name, daemon in daemons.items()}
        groups |= {f"libvirtd of {sizes.guests} guests": libvirtds[full], "libvirtd of none": libvirtds[empty]}
        groups["their QEMU"] = list(daemons[full].guest_pids().values())
        _show_idle(console, {name: [psutil.Process(pid) for pid in members] for name, members in groups.items()}, sizes)


def _show_idle(console: Console, groups: Mapping[str, Sequence[psutil.Process]], sizes: Sizes) -> None:
    before = {name: sum(map(_cpu_seconds, processes)) for name, processes in groups.items()}
    began = time.monotonic()
    time.sleep(sizes.idle_s)  # what is used meanwhile runs by the clock
    seconds = time.monotonic() - began
    rows = []
    for name, processes in groups.items():
        share = (sum(map(_cpu_seconds, processes)) - before[name]) / seconds
        rows.append((name, f"{100 * share:.2f}", _describe_memory(processes)))
    title = f"Idle, default intervals, {seconds:.0f} s, load {os.getloadavg()[0]:.1f}"
    print_table(console, title, ("", "% of a core", "memory"), rows)


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


def main() -> None:
    parser = parser_of(__doc__, "few guests; the figures mean nothing")
    parser.add_argument("--part", choices=("turns", "idle"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--guests", type=int)
    options = parser.parse_args()
    usual = SMOKE if options.smoke else Sizes()
    sizes = Sizes(rounds=options.rounds or usual.rounds, guests=options.guests or usual.guests, idle_s=usual.idle_s)
    if why := libvirt_host.why_missing():
        end_unmeasured(f"No guests can be had here: {why}", smoke=options.smoke)
    console = Console(width=160)
    if options.part != "idle":
        measure_turns(console, sizes)
    if options.part != "turns":
        measure_idle(console, sizes, smoke=options.smoke)


if __name__ == "__main__":
    main()
