"""Options of the conductors: group [conductor]."""

from __future__ import annotations

import enum

from oslo_config import cfg, types

from objects import errors
from objects.base import Object
from objects.host_limits import HostLimits
from rpc import agents
from rpc.agents import AgentUsers

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
        help="What a conductor process does: super (the API level's builds), cell (one cell's), or both. Empty: super where "
        "[api_database] connection is set, cell where [cell_database] connection is set.",
    ),
    cfg.IntOpt("processes", default=1, min=1, help="Processes that one superconductor-conductor runs, each in all of its roles."),
]

CONDUCTOR_OPTS = [
    cfg.IntOpt("workers", default=8, min=1, help="Builds and deletes that one process drives at a time."),
    cfg.FloatOpt(
        "lease_seconds",
        default=10.0,
        min=1.0,
        help="How long after a sign of its conductor a build is taken over by another one, in seconds; a conductor extends the "
        "leases of what takes it longer. It only decides when to try: a conductor that wakes up after its lease can do no "
        "harm. It also waits so long for a scheduler's answer before it asks again.",
    ),
    cfg.FloatOpt("sweep_interval", default=2.0, min=0.05, help="Seconds between two looks at the queue and at pending deletes."),
    cfg.FloatOpt(
        "round_pace",
        default=0.02,
        min=0.0,
        max=1.0,
        help="Seconds from one round of builds to the next, at least. What is accepted meanwhile is built together: under load "
        "fewer transactions and messages for each server, for this much more time in the queue.",
    ),
    cfg.FloatOpt("feed_interval", default=0.5, min=0.02, help="Seconds between two looks at each cell's change feed."),
    cfg.FloatOpt("retry_pause", default=2.0, min=0.1, help="Seconds before a build that could not go on is tried again."),
    cfg.FloatOpt("settle_age", default=5.0, min=0.1, help="Age in seconds at which a staged row is settled against its mapping."),
    cfg.FloatOpt(
        "reap_interval",
        default=30.0,
        min=0.1,
        help="Seconds between looks for claims that nobody holds, and for requests past their deadline whose spec is gone.",
    ),
    cfg.FloatOpt("resend_age", default=5.0, min=0.1, help="Seconds after which an unanswered build or delete order is sent again."),
    cfg.FloatOpt(
        "service_down_time",
        default=60.0,
        min=1.0,
        help="Seconds of silence, while other hosts of the cell are heard of, after which a host counts as down.",
    ),
    cfg.FloatOpt(
        "audit_interval",
        default=3600.0,
        min=0.0,
        help="Seconds between two looks of the audit at all servers, claims, rows and hosts; 0: it does not run. What lasts is "
        "logged once, and put right where that is safe; 'superconductor verify' shows and repairs the rest.",
    ),
    cfg.FloatOpt(
        "decision_age",
        default=604800.0,
        min=60.0,
        help="Seconds for which scheduling decisions are kept, the newest 20 of each batch.",
    ),
    cfg.FloatOpt(
        "token_age", default=86400.0, min=60.0, help="Seconds for which an Idempotency-Key answers with the same servers."
    ),
    cfg.Opt(
        "map_hosts",
        type=_MapHostsType(),
        default=str(MapHosts.AUTO),
        help="Map each host to the cell that it first reports in: auto, true or false. With auto, only a host whose agent has a "
        "broker user of its own, or is in the conductor's process: agents that share a user could report hosts that do not exist, "
        "and get their servers. Hosts that are not mapped get servers after 'superconductor host discover'.",
    ),
    cfg.StrOpt(
        "agent_users",
        default="shared",
        choices=[
            ("required", "each agent logs in to the cell's broker as the user of its host, and is believed about that host only"),
            ("shared", "agents may share a user; whoever has its password can speak for every host of the cell"),
        ],
        help="Whether the agents of a cell must have broker users of their own. Read by the cell's conductors.",
    ),
    cfg.StrOpt(
        "agent_user_prefix",
        default="",
        regex=r"[A-Za-z0-9._-]*",
        help="What the name of a host's broker user begins with; the rest is the host's name. Empty: compute.VHOST. (compute. on "
        "the virtual host /), as 'superconductor host user' makes them. A user of such a name speaks for that host only, whatever "
        "agent_users is.",
    ),
    cfg.IntOpt(
        "host_max_vcpus", default=4096, min=1, help="vCPUs that one host may offer at most; an agent that says more is refused."
    ),
    cfg.IntOpt("host_max_memory_mb", default=64 * 2**20, min=1, help="MiB of memory that one host may offer at most."),
    cfg.IntOpt("host_max_disk_gb", default=10 * 2**20, min=1, help="GiB of disk that one host may offer at most."),
    cfg.IntOpt("host_max_resource", default=1_000_000, min=1, help="What one host may offer at most of a custom resource class."),
    cfg.FloatOpt("host_max_allocation_ratio", default=256.0, min=1.0, help="The largest allocation ratio that a host may have."),
    cfg.FloatOpt(
        "purge_age",
        default=0.0,
        min=0.0,
        help="Seconds after which deleted servers are forgotten, a day (86400) at least; 0: never, unless by 'superconductor db "
        "purge' or 'db archive'. Until then they are listed with deleted=true.",
    ),
    cfg.FloatOpt("feed_age", default=86400.0, min=60.0, help="Seconds for which a cell keeps its change feed."),
]


class ConductorSettings(Object, frozen=True, kw_only=True):
    """Settings of both conductors; each option's help gives its meaning. Times in seconds."""

    workers: int = 8
    lease_seconds: float = 10.0
    sweep_interval: float = 2.0
    round_pace: float = 0.02
    feed_interval: float = 0.5
    retry_pause: float = 2.0
    settle_age: float = 5.0
    reap_interval: float = 30.0
    resend_age: float = 5.0
    service_down_time: float = 60.0
    decision_age: float = 604800.0
    token_age: float = 86400.0
    feed_age: float = 86400.0
    audit_interval: float = 3600.0
    map_hosts: str = "auto"
    purge_age: float = 0.0
    agent_users: str = "shared"
    agent_user_prefix: str = ""
    host_max_vcpus: int = 4096
    host_max_memory_mb: int = 64 * 2**20
    host_max_disk_gb: int = 10 * 2**20
    host_max_resource: int = 1_000_000
    host_max_allocation_ratio: float = 256.0

    def users(self, vhost: str) -> AgentUsers:
        """Which broker users may speak for a host on this virtual host."""
        return AgentUsers(required=self.agent_users == "required", prefix=self.agent_user_prefix or agents.prefix_of(vhost))

    @property
    def host_limits(self) -> HostLimits:
        """The most that a host may offer."""
        names = ("vcpus", "memory_mb", "disk_gb", "resource", "allocation_ratio")
        return HostLimits(**{name: getattr(self, f"host_max_{name}") for name in names})

    @property
    def step_time(self) -> float:
        """Seconds; longer than any protocol step takes, including the sweep that repeats a lost step."""
        sweeps = self.settle_age + self.resend_age + self.reap_interval + self.sweep_interval + self.feed_interval
        return 2 * (self.lease_seconds + sweeps)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the sample configuration's generator."""
    return [("conductor", [*PROCESS_OPTS, *CONDUCTOR_OPTS])]


def settings(conf: cfg.ConfigOpts) -> ConductorSettings:
    """Register the options on ``conf`` and read them."""
    conf.register_opts(CONDUCTOR_OPTS, group="conductor")
    if 0.0 < conf.conductor.purge_age < DAY_S:
        raise errors.Misconfigured("[conductor] purge_age must be 0, or 86400 and more: a delete is to be remembered for a day")
    return ConductorSettings(**{name: conf.conductor[name] for name in ConductorSettings.__struct_fields__})
