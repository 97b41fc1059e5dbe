"""Options of the agent and of its simulated driver."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
from oslo_config import cfg

from objects import errors, extra_specs, typed
from objects.base import Object
from objects.text import checked_name

COMPUTE = [
    cfg.HostAddressOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<this machine's name>",
        help="Name of this host, unique in the whole deployment. An agent does not start under another name than the one that its "
        "host's guests were built under.",
    ),
    cfg.StrOpt("driver", default="simulated", help="Hypervisor driver: an entry point of superconductor.compute.drivers."),
    cfg.IntOpt(
        "max_concurrent_builds",
        default=10,
        min=1,
        help="Builds that may spawn at once. More wait in the agent; how many is part of the host's stats.",
    ),
    cfg.FloatOpt(
        "spawn_timeout",
        default=600.0,
        min=0.0,
        help="Seconds after which a spawn is cancelled and another host is tried. 0: never.",
    ),
    cfg.FloatOpt(
        "outage_retry_max",
        default=30.0,
        min=0.1,
        help="Longest pause, in seconds, before a build that met a service that is down (images, networks) is tried again on this "
        "host. Such tries use up no attempt and end with the deadline of the build.",
    ),
    cfg.FloatOpt(
        "failed_build_half_life",
        default=600.0,
        min=1.0,
        help="Seconds after which a build that failed by this host's fault counts half. Schedulers prefer hosts on which fewer "
        "builds have failed; see [scheduler] build_failure_weight_multiplier.",
    ),
    cfg.StrOpt(
        "unknown_guests",
        default="report",
        choices=[
            ("report", "logged as an error and counted in the host's stats; it stays"),
            ("remove", "the same, and destroyed after unknown_guest_age"),
            ("keep", "it stays, without a word"),
        ],
        help="What becomes of a guest that the cell has no record of at all: its database was restored from an older copy, or this "
        "host was given to another cell. A guest that its record proves deleted or superseded is destroyed in any case, a guest "
        "whose record is another one stays in any case.",
    ),
    cfg.FloatOpt(
        "unknown_guest_age",
        default=1800.0,
        min=0.0,
        help="Seconds for which the cell must have had no record of a guest before unknown_guests = remove removes it.",
    ),
    cfg.FloatOpt("report_interval", default=10.0, min=0.1, help="Seconds between two heartbeats."),
    cfg.FloatOpt(
        "stats_interval", default=5.0, min=0.1, help="Seconds between two looks at the host's stats, sent if they changed."
    ),
    cfg.FloatOpt("stats_full_interval", default=300.0, min=1.0, help="Seconds after which unchanged stats are sent all the same."),
    cfg.FloatOpt(
        "audit_interval", default=60.0, min=0.1, help="Seconds between two comparisons of guests with the cell's records."
    ),
    cfg.FloatOpt(
        "report_window",
        default=0.005,
        min=0.0,
        max=1.0,
        help="Seconds that a report on a finished build or delete waits for others to share its message. That of a build "
        "waits only while the host has others under way.",
    ),
    cfg.FloatOpt(
        "call_timeout", default=10.0, min=0.1, help="Seconds to wait for the cell conductor's answer before asking again."
    ),
    cfg.FloatOpt(
        "report_retry_max", default=5.0, min=0.1, help="Longest pause, in seconds, before an unanswered report is repeated."
    ),
    cfg.IntOpt(
        "dispatch_threads",
        default=0,
        min=0,
        help="Threads that take orders from the bus. 0: the one that listens to it does so itself, which costs least.",
    ),
    cfg.FloatOpt(
        "drain_timeout",
        default=10.0,
        min=0.0,
        help="Seconds that a stopping agent gives to what it is spawning, less if graceful_shutdown_timeout is shorter. What it "
        "has not begun goes to other hosts at once, what it cannot finish when this time is over.",
    ),
    cfg.FloatOpt("cpu_allocation_ratio", default=4.0, min=0.0, help="Virtual CPUs to offer per physical one."),
    cfg.FloatOpt("ram_allocation_ratio", default=1.0, min=0.0, help="Guest memory to offer per memory of the host."),
    cfg.FloatOpt("disk_allocation_ratio", default=1.0, min=0.0, help="Guest disk to offer per disk of the host."),
    cfg.IntOpt("reserved_memory_mb", default=0, min=0, help="Memory in MiB kept for the host itself."),
    cfg.IntOpt("reserved_disk_gb", default=0, min=0, help="Disk in GiB kept for the host itself."),
]

SIMULATED = [
    cfg.IntOpt("vcpus", default=16, min=0, help="CPUs of the simulated host."),
    cfg.IntOpt("memory_mb", default=65536, min=0, help="Memory of the simulated host in MiB."),
    cfg.IntOpt("disk_gb", default=1000, min=0, help="Disk of the simulated host in GiB."),
    cfg.FloatOpt("spawn_delay_min", default=0.0, min=0.0, help="Shortest time a spawn takes, in seconds."),
    cfg.FloatOpt("spawn_delay_max", default=0.0, min=0.0, help="Longest time a spawn takes, in seconds."),
    cfg.FloatOpt(
        "failure_rate", default=0.0, min=0.0, max=1.0, help="Share of builds that fail on this host (and may succeed on another)."
    ),
    cfg.StrOpt(
        "attributes",
        default="{}",
        help="What the simulated host tells of itself, as a JSON object that the scheduler's filters look at, for instance "
        '{"traits": ["SSD"], "rack": "r1", "host_ip": "10.0.0.1"}.',
    ),
    cfg.StrOpt(
        "resources",
        default="{}",
        help="Custom resource classes that the simulated host offers, as a JSON object of whole numbers, for instance "
        '{"CUSTOM_GPU": 4}. Flavors ask for them with the extra spec resources:CUSTOM_GPU.',
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/superconductor/simulated",
        help="Folder of the files in which simulated hosts keep their guests: one file per host.",
    ),
    cfg.BoolOpt(
        "shared_folder",
        default=False,
        help="Several simulated hosts keep their guests in state_path. Where only one does, the guests there are its guests, "
        "whatever name it had when they were built.",
    ),
]


class SimulatedSettings(Object, frozen=True, kw_only=True):
    """``[simulated]``: CPUs, MiB, GiB, seconds."""

    state_path: str
    vcpus: int = 16
    memory_mb: int = 65536
    disk_gb: int = 1000
    spawn_delay_min: float = 0.0
    spawn_delay_max: float = 0.0
    failure_rate: float = 0.0
    attributes: str = "{}"
    resources: str = "{}"
    shared_folder: bool = False

    def told(self) -> dict[str, Any]:
        """``attributes``, parsed. Raises Misconfigured."""
        try:
            return typed.decode(self.attributes, dict[str, Any])
        except msgspec.MsgspecError:
            raise errors.Misconfigured(f"[simulated] attributes: {self.attributes[:80]!r} is not a JSON object") from None

    def offered(self) -> dict[str, int]:
        """``resources``, parsed. Raises Misconfigured."""
        try:
            offered = typed.decode(self.resources, dict[str, int])
            extra_specs.check_offer(offered)
        except msgspec.MsgspecError:
            text = f"[simulated] resources: {self.resources[:80]!r} is not a JSON object of whole numbers"
            raise errors.Misconfigured(text) from None
        except errors.Invalid as error:
            raise errors.Misconfigured(f"[simulated] resources: {error}") from None
        return offered


class ComputeSettings(Object, frozen=True, kw_only=True):
    """``[compute]`` with the settings of the simulated driver; times in seconds. The defaults are those of the options."""

    host: str
    simulated: SimulatedSettings
    driver: str = "simulated"
    max_concurrent_builds: int = 10
    spawn_timeout: float = 600.0
    outage_retry_max: float = 30.0
    failed_build_half_life: float = 600.0
    unknown_guests: str = "report"
    unknown_guest_age: float = 1800.0
    report_interval: float = 10.0
    stats_interval: float = 5.0
    stats_full_interval: float = 300.0
    audit_interval: float = 60.0
    report_window: float = 0.005
    call_timeout: float = 10.0
    report_retry_max: float = 5.0
    dispatch_threads: int = 0
    drain_timeout: float = 10.0
    cpu_allocation_ratio: float = 4.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    reserved_memory_mb: int = 0
    reserved_disk_gb: int = 0


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Groups and options, for the generated sample and for loading a configuration."""
    return [("compute", list(COMPUTE)), ("simulated", list(SIMULATED))]


def settings(conf: cfg.ConfigOpts) -> ComputeSettings:
    """Read both groups once. Raises ``errors.Misconfigured`` for invalid values or combinations."""
    try:
        checked_name("[compute] host", conf.compute.host)
    except errors.Invalid as error:
        raise errors.Misconfigured(f"{error}. Set [compute] host; its default is this machine's name.") from None
    simulated = SimulatedSettings(**{option.dest: conf.simulated[option.dest] for option in SIMULATED})
    simulated.told()
    simulated.offered()
    if simulated.spawn_delay_max < simulated.spawn_delay_min:
        raise errors.Misconfigured("[simulated] spawn_delay_max must not be less than spawn_delay_min.")
    return ComputeSettings(simulated=simulated, **{option.dest: conf.compute[option.dest] for option in COMPUTE})
