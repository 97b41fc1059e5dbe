"""Options of the agent and of its simulated driver."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Any

import msgspec
from oslo_config import cfg

from images import opts as images_opts
from objects import errors, extra_specs, typed
from objects.base import Object
from objects.console import ADDRESS_PATTERN
from objects.numa import HOST_NODES_LIMIT
from objects.text import checked_name
from service.option_maker import OptionMaker


class SimulatedSettings(Object, frozen=True, kw_only=True):
    """``[simulated]``: CPUs, MiB, GiB, seconds."""

    state_path: str
    vcpus: int = 16
    memory_mb: int = 65536
    disk_gb: int = 1000
    spawn_delay_min: float = 0.0
    spawn_delay_max: float = 0.0
    failure_rate: float = 0.0
    task_failure_rate: float = 0.0
    copy_delay: float = 0.0
    task_delay: float = 0.0
    attributes: str = "{}"
    resources: str = "{}"
    numa_nodes: int = 0
    shared_folder: bool = False

    def parsed_attributes(self) -> dict[str, Any]:
        """``attributes``, parsed. Raises Misconfigured."""
        try:
            return typed.decode_json(self.attributes, dict[str, Any])
        except msgspec.MsgspecError:
            raise errors.Misconfigured(f"[simulated] attributes: {self.attributes[:80]!r} is not a JSON object") from None

    def parse_resources(self) -> dict[str, int]:
        """``resources``, parsed. Raises Misconfigured."""
        try:
            offered = typed.decode_json(self.resources, dict[str, int])
            extra_specs.check_offer(offered)
        except msgspec.MsgspecError:
            text = f"[simulated] resources: {self.resources[:80]!r} is not a JSON object of whole numbers"
            raise errors.Misconfigured(text) from None
        except errors.Invalid as error:
            raise errors.Misconfigured(f"[simulated] resources: {error}") from None
        return offered


class ComputeSettings(Object, frozen=True, kw_only=True):
    """``[compute]`` with the settings of the simulated driver and the image store's folder; times in seconds.

    No options: ``report_window``, for which a report on a finished build or delete waits for others to share its message;
    ``call_timeout`` and ``report_retry_max``, of a call to the cell conductor and the longest pause before it is repeated;
    ``dispatch_threads``, which process orders from the bus (0: the listening thread does).
    """

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
    hypervisor_interval: float = 1.0
    stats_interval: float = 5.0
    stats_full_interval: float = 300.0
    audit_interval: float = 60.0
    resume_guests_on_start: bool = True
    report_window: float = 0.005
    call_timeout: float = 10.0
    report_retry_max: float = 5.0
    dispatch_threads: int = 0
    drain_timeout: float = 10.0
    reserved_memory_mb: int | None = None
    reserved_disk_gb: int = 0
    console_host: str = "127.0.0.1"
    console_port: int = 0
    console_address: str = ""
    images_folder: str = ""
    images_drop: str = ""


_option = OptionMaker(ComputeSettings)
_simulated = OptionMaker(SimulatedSettings)


COMPUTE = [
    cfg.HostAddressOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<this machine's name>",
        help="Name of this host, unique in the whole deployment. An agent does not start if its host has guests that were built "
        "under another name.",
    ),
    _option("driver", "Hypervisor driver: an entry point of superconductor.compute.drivers, or module:factory."),
    _option(
        "max_concurrent_builds",
        "Number of builds that may spawn at once. The others wait in the agent; the host's stats count them.",
        min=1,
    ),
    _option("spawn_timeout", "Seconds after which a spawn is cancelled and the build moves to another host. 0: never.", min=0.0),
    _option(
        "outage_retry_max",
        "Longest pause in seconds before a build is retried on this host after a service (images, networks) was down. "
        "Such retries do not count as attempts, and end at the deadline of the build.",
        min=0.1,
    ),
    _option(
        "failed_build_half_life",
        "Seconds after which a failed build counts half, if this host caused the failure. Schedulers prefer hosts on which "
        "fewer builds have failed; see [scheduler] build_failure_weight_multiplier.",
        min=1.0,
    ),
    _option(
        "unknown_guests",
        "What to do with a guest that the cell has no record of. Causes: its database was restored from an older copy, or "
        "this host was moved to another cell. A guest whose record proves it deleted or superseded is always destroyed. A guest "
        "whose record differs otherwise always stays.",
        choices=[
            ("report", "it stays, is logged as an error and counted in the host's stats"),
            ("remove", "the same, but it is destroyed after unknown_guest_age"),
            ("keep", "it stays, and nothing is logged"),
        ],
    ),
    _option(
        "unknown_guest_age", "Seconds without a record in the cell after which unknown_guests = remove destroys a guest.", min=0.0
    ),
    _option("report_interval", "Seconds between two heartbeats.", min=0.1),
    _option("hypervisor_interval", "Seconds between two looks whether the hypervisor can be used.", min=0.1),
    _option("stats_interval", "Seconds between two checks of the host's stats, which are sent if they have changed.", min=0.1),
    _option("stats_full_interval", "Seconds after which unchanged stats are sent too, and the release of the agent.", min=1.0),
    _option(
        "audit_interval",
        "Seconds between two comparisons of guests with the cell's records. Only one in five reads the records while nothing "
        "changes on the host.",
        min=0.1,
    ),
    _option(
        "resume_guests_on_start",
        "Whether the agent, when it starts, also starts guests that are to run and are off, because the host was restarted. "
        "If false, it reports them, and their servers become SHUTOFF.",
    ),
    _option(
        "drain_timeout",
        "Seconds that a stopping agent waits for its spawns, fewer if graceful_shutdown_timeout is shorter. Builds that it "
        "has not begun move to other hosts at once, unfinished ones after this time.",
        min=0.0,
    ),
    _option(
        "reserved_memory_mb",
        "Memory in MiB reserved for the host itself. What the hypervisor takes for each guest comes on top.",
        kind=cfg.IntOpt,
        min=0,
        sample_default="<512 with the driver libvirt, 0 with simulated>",
    ),
    _option("reserved_disk_gb", "Disk in GiB reserved for the host itself.", min=0),
    _option(
        "console_host",
        "IP address on which the agent waits for the console proxy. The proxy must show a secret of a user's token. What goes "
        "over the connection is not encrypted: listen on a network of the operator's. Empty: no remote consoles on this host.",
    ),
    _option("console_port", "Port for the console proxy. 0: a free one, opened with the first console.", kind=cfg.PortOpt),
    _option(
        "console_address",
        "Name or address by which proxies reach console_host. Empty: console_host. Needed if that is an address of all interfaces.",
    ),
]

SIMULATED = [
    _simulated("vcpus", "CPUs of the simulated host.", min=0),
    _simulated("memory_mb", "Memory of the simulated host in MiB.", min=0),
    _simulated("disk_gb", "Disk of the simulated host in GiB.", min=0),
    _simulated("spawn_delay_min", "Shortest time a spawn takes, in seconds.", min=0.0),
    _simulated("spawn_delay_max", "Longest time a spawn takes, in seconds.", min=0.0),
    _simulated("failure_rate", "Share of builds that fail on this host (and may succeed on another).", min=0.0, max=1.0),
    _simulated(
        "task_failure_rate",
        "Share of guests on this host whose tasks (stop, start, pause, reboot, rebuild) fail unless they are hard.",
        min=0.0,
        max=1.0,
    ),
    _simulated("copy_delay", "Time that the copy of a disk from another host takes, in seconds.", min=0.0),
    _simulated(
        "task_delay",
        "Time that a reboot, a rebuild, an image of a guest and a new password take, in seconds. Clients that poll for "
        "REBOOT, REBUILD, PASSWORD or SAVING miss a shorter one.",
        min=0.0,
    ),
    _simulated(
        "attributes",
        "Attributes that the simulated host reports for the scheduler's filters, as a JSON object, for instance "
        '{"traits": ["SSD"], "rack": "r1", "host_ip": "10.0.0.1"}.',
    ),
    _simulated(
        "resources",
        "Custom resource classes that the simulated host offers, as a JSON object of whole numbers, for instance "
        '{"CUSTOM_GPU": 4}. Flavors ask for them with the extra spec resources:CUSTOM_GPU.',
    ),
    _simulated(
        "numa_nodes",
        "NUMA nodes of the simulated host, of equal size. Each guest is tied to one of them, or to as many as its flavor asks "
        "for with the extra spec hw:numa_nodes. 0: it reports none.",
        min=0,
        max=HOST_NODES_LIMIT,
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/superconductor/simulated",
        help="Folder in which simulated hosts keep their guests (one file per host) and disks (one folder per host).",
    ),
    _simulated(
        "shared_folder",
        "Set this if several simulated hosts keep their guests in state_path. Otherwise all guests there belong to this host, "
        "even if it had another name when they were built.",
    ),
]


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Groups and options, for the generated sample and for loading a configuration."""
    return [("compute", list(COMPUTE)), ("simulated", list(SIMULATED))]


def read_settings(conf: cfg.ConfigOpts) -> ComputeSettings:
    """Read both groups once. Raises ``errors.Misconfigured`` for invalid values or combinations."""
    try:
        checked_name("[compute] host", conf.compute.host)
    except errors.Invalid as error:
        raise errors.Misconfigured(f"{error}. Set [compute] host; its default is this machine's name.") from None
    simulated = SimulatedSettings(**{option.dest: conf.simulated[option.dest] for option in SIMULATED})
    simulated.parsed_attributes()
    simulated.parse_resources()
    if simulated.spawn_delay_max < simulated.spawn_delay_min:
        raise errors.Misconfigured("[simulated] spawn_delay_max must not be less than spawn_delay_min.")
    check_console(conf.compute.console_host, conf.compute.console_address)
    return ComputeSettings(
        simulated=simulated,
        images_folder=images_opts.read_folder(conf),
        images_drop=_drop_of(conf),
        **{option.dest: conf.compute[option.dest] for option in COMPUTE},
    )


def _drop_of(conf: cfg.ConfigOpts) -> str:
    """The host's own drop folder; empty: none."""
    folder, host = images_opts.drop_folder(conf), conf.compute.host
    if folder and not host.strip("."):
        raise errors.Misconfigured(f"[compute] host: {host!r} cannot name a folder in [images] drop_folder.")
    return str(Path(folder) / host) if folder else ""


def check_console(host: str, address: str) -> None:
    """Raises ``errors.Misconfigured`` for an address that proxies could not use."""
    try:
        anywhere = bool(host) and ipaddress.ip_address(host).is_unspecified
    except ValueError:
        raise errors.Misconfigured(f"[compute] console_host: {host[:80]!r} is not an IP address") from None
    if address and re.match(ADDRESS_PATTERN, address) is None:
        raise errors.Misconfigured(f"[compute] console_address: {address[:80]!r} is no name or address of a machine")
    if anywhere and not address:
        raise errors.Misconfigured(f"[compute] console_address: say by which address proxies reach this host; {host} is none")
