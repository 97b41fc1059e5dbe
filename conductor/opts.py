"""Options of the conductors: group [conductor]."""

from __future__ import annotations

import enum

from oslo_config import cfg, types

from images import opts as images_opts
from objects import errors
from objects.base import Object
from objects.host_limits import HostLimits
from objects.host_terms import RATIO_LIMIT, Ratios
from objects.shared_defaults import IDLE_INTERVAL_S, SERVICE_DOWN_TIME_S
from rpc import agents
from rpc.agents import AgentUsers
from service import opts as service_opts
from service.option_maker import OptionMaker

DAY_S = 86400.0


class MapHosts(enum.StrEnum):
    """Which hosts are mapped automatically to the cell they report in."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"


class _MapHostsType(types.ConfigType):
    """auto, or a boolean as oslo.config spells it."""

    def __init__(self) -> None:
        super().__init__(type_name="auto or boolean value")
        self._boolean = types.Boolean()

    def __call__(self, value: object) -> str:
        """Raises ValueError."""
        text = str(value).strip().lower()
        return str(MapHosts.AUTO if text == MapHosts.AUTO else MapHosts.TRUE if self._boolean(text) else MapHosts.FALSE)

    def _formatter(self, value: object) -> str:
        return str(value)


PROCESS_OPTS = [
    cfg.ListOpt(
        "roles",
        default=[],
        item_type=types.String(choices=["super", "cell"]),
        help="Roles of a conductor process: super (builds of the API level), cell (one cell), or both. Empty: super if "
        "[api_database] connection is set, and cell if [cell_database] connection is set.",
    ),
    cfg.IntOpt(
        "processes", default=1, min=1, help="Number of processes that one superconductor-conductor starts. Each has all roles."
    ),
]


class ConductorSettings(Object, frozen=True, kw_only=True):
    """Settings of both conductors; each option's help gives its meaning. Times in seconds.

    No options: ``retry_pause``, before a build that could not proceed is tried again; ``token_age``, for which an Idempotency-Key
    answers with the same servers; ``sizes_wait``, False where whoever starts the conductors says what hosts there are.
    """

    workers: int = 8
    lease_seconds: float = 10.0
    sweep_interval: float = 2.0
    build_batch_window: float = 0.15
    feed_interval: float = 0.5
    idle_interval: float = IDLE_INTERVAL_S
    retry_pause: float = 2.0
    reap_interval: float = 30.0
    resend_age: float = 5.0
    service_down_time: float = SERVICE_DOWN_TIME_S
    decision_age: float = 604800.0
    token_age: float = 86400.0
    feed_age: float = 86400.0
    audit_interval: float = 3600.0
    map_hosts: str = "auto"
    purge_age: float = 0.0
    auto_confirm: float = 0.0
    shelved_offload_time: float = 0.0
    other_cell_timeout: float = 0.0
    evacuate_dead_hosts: bool = False
    agent_users: str = "shared"
    agent_user_prefix: str = ""
    host_max_vcpus: int = 4096
    host_max_memory_mb: int = 64 * 2**20
    host_max_disk_gb: int = 10 * 2**20
    host_max_resource: int = 1_000_000
    cpu_allocation_ratio: float = 4.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    sizes_wait: bool = True
    images_folder: str = ""
    images_drop_folder: str = ""

    def agent_users_of(self, vhost: str) -> AgentUsers:
        """Which broker users may speak for a host on this virtual host."""
        return AgentUsers(required=self.agent_users == "required", prefix=self.agent_user_prefix or agents.prefix_of(vhost))

    @property
    def host_limits(self) -> HostLimits:
        """The most that a host may offer, and the ratios that it counts with."""
        names = ("vcpus", "memory_mb", "disk_gb", "resource")
        ratios = Ratios(cpu=self.cpu_allocation_ratio, ram=self.ram_allocation_ratio, disk=self.disk_allocation_ratio)
        return HostLimits(**{name: getattr(self, f"host_max_{name}") for name in names}, ratios=ratios, sizes_wait=self.sizes_wait)

    @property
    def step_time(self) -> float:
        """Seconds; longer than any protocol step takes, including the sweep that repeats a lost step."""
        idle = max(self.idle_interval, self.sweep_interval, self.feed_interval)
        sweeps = 2 * self.resend_age + self.reap_interval + self.sweep_interval + idle
        return 2 * (self.lease_seconds + sweeps)


_option = OptionMaker(ConductorSettings)


CONDUCTOR_OPTS = [
    _option("workers", "Number of builds and deletes that one process works on at a time.", min=1),
    _option(
        "lease_seconds",
        "Seconds after which another conductor takes over a build whose lease was not renewed. A conductor renews the leases "
        "of its builds. A conductor that wakes up after its lease can do no harm. It is also the timeout of a call to a scheduler.",
        min=1.0,
    ),
    _option("sweep_interval", "Seconds between two sweeps of the queue and of pending deletes.", min=0.05),
    _option(
        "build_batch_window",
        "Minimum seconds between two rounds of builds. Requests accepted meanwhile are built together. Under load this saves "
        "transactions and messages for each server, but adds up to this time in the queue.",
        min=0.0,
        max=1.0,
        deprecated_name="round_pace",
    ),
    _option(
        "feed_interval",
        "Seconds between two reads of a cell's change feed, while the cell has been asked for something or its feed has news.",
        min=0.02,
    ),
    _option(
        "reap_interval",
        "Seconds between two searches for claims without an instance, and for overdue requests whose spec is missing.",
        min=0.1,
    ),
    _option(
        "resend_age",
        "Seconds after which an unanswered order is sent again, and a staged row is compared with its mapping.",
        min=0.1,
        max=3600.0,
    ),
    _option(
        "audit_interval",
        "Seconds between two audits of all servers, claims, rows and hosts; 0: no audit. A lasting finding is logged once, "
        "and repaired if that is safe; 'superconductor verify' shows and repairs the others.",
        min=0.0,
    ),
    _option("decision_age", "Seconds for which the newest 20 scheduling decisions of each batch are kept.", min=60.0),
    _option(
        "map_hosts",
        "Map each host to the cell that it first reports in: auto, true or false. With auto, only a host whose agent has its "
        "own broker user, or runs in the conductor's process. Agents that share a user could report hosts that do not exist, and "
        "receive their servers. Other hosts get servers after 'superconductor host discover'.",
        kind=cfg.Opt,
        type=_MapHostsType(),
    ),
    _option(
        "agent_users",
        "Whether each agent of a cell must have its own broker user. The cell's conductors read this option.",
        choices=[
            ("required", "each agent logs in to the cell's broker as the user of its host, and may report for that host only"),
            ("shared", "agents may share a user; everyone with its password can report for every host of the cell"),
        ],
    ),
    _option(
        "agent_user_prefix",
        "Prefix of the name of a host's broker user; the host's name follows. Empty: compute.VHOST. (compute. on the virtual "
        "host /), as 'superconductor host user' creates them. Such a user may report for its host only, with any agent_users.",
        regex=r"[A-Za-z0-9._-]*",
    ),
    _option("host_max_vcpus", "Maximum vCPUs that one host may offer. A report with more is refused.", min=1),
    _option("host_max_memory_mb", "Maximum memory in MiB that one host may offer.", min=1),
    _option("host_max_disk_gb", "Maximum disk in GiB that one host may offer.", min=1),
    _option("host_max_resource", "Maximum amount of one custom resource class that one host may offer.", min=1),
    _option(
        "cpu_allocation_ratio",
        "Virtual CPUs offered per physical CPU of the cell's hosts, but for hosts with another ratio set by "
        "'superconductor host set'. Hosts that were on record before conductors had this option keep their ratios.",
        min=0.0,
        max=RATIO_LIMIT,
    ),
    _option("ram_allocation_ratio", "Likewise guest memory per memory of a host.", min=0.0, max=RATIO_LIMIT),
    _option("disk_allocation_ratio", "Likewise guest disk per disk of a host.", min=0.0, max=RATIO_LIMIT),
    _option(
        "purge_age",
        "Seconds after which deleted servers are purged, at least a day (86400). 0: only 'superconductor db purge' and 'db "
        "archive' remove them. Until then they are listed with deleted=true.",
        min=0.0,
    ),
    _option(
        "auto_confirm", "Seconds after which a resize that waits for its user is confirmed. 0: only its user confirms it.", min=0.0
    ),
    _option(
        "shelved_offload_time",
        "Seconds after which a shelved server leaves its host. 0: as soon as its snapshot is complete. -1: only when an "
        "administrator sends shelveOffload.",
        min=-1.0,
    ),
    _option(
        "other_cell_timeout",
        "Seconds that a build gets in another cell, once, after its cell has used up its attempts or hosts. 0: it ends in "
        "ERROR. Builds with user data or a password, and all-or-nothing batches, always do.",
        min=0.0,
    ),
    _option(
        "evacuate_dead_hosts",
        "Evacuate the servers of hosts that are called dead by 'superconductor host set --down' or the API's forced_down. Set "
        "it if whoever calls a host dead has made sure that its guests do not run any more. The conductor must also have seen the "
        "host silent for service_down_time while others of its cell reported. Hosts that are only silent stay.",
    ),
    _option("feed_age", "Seconds for which a cell keeps its change feed.", min=60.0),
]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the sample configuration's generator."""
    return [("conductor", [*PROCESS_OPTS, *CONDUCTOR_OPTS])]


def read_settings(conf: cfg.ConfigOpts) -> ConductorSettings:
    """Register the options on ``conf`` and read them."""
    conf.register_opts(CONDUCTOR_OPTS, group="conductor")
    if 0.0 < conf.conductor.purge_age < DAY_S:
        raise errors.Misconfigured("[conductor] purge_age must be 0, or at least 86400: a delete must be remembered for a day")
    values = {option.dest: conf.conductor[option.dest] for option in CONDUCTOR_OPTS}
    values |= {"service_down_time": service_opts.down_time(conf), "idle_interval": service_opts.idle_interval(conf)}
    values |= {"images_folder": images_opts.read_folder(conf), "images_drop_folder": images_opts.drop_folder(conf)}
    return ConductorSettings(**values)
