"""Options of the groups [api] and [quota]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oslo_config import cfg

from api import console_opts
from api.console_opts import ConsoleUrls
from images import opts as images_opts
from objects import errors, text
from objects.base import INT32_MAX, Object
from objects.ids import checked_identifier
from objects.quota import UNLIMITED, ImageLimits, QuotaLimits
from objects.server_name import NameScope

GROUP = "api"
QUOTA_GROUP = "quota"

WORKERS = cfg.IntOpt("workers", default=1, min=1, help="Processes that share the port. Each serves its own requests.")

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "host",
        default="127.0.0.1",
        help="Address to listen on. With auth_strategy noauth all but loopback needs noauth_anywhere.",
    ),
    cfg.PortOpt("port", default=8774, help="Port to listen on; 0 takes a free one."),
    cfg.IntOpt("threads", default=8, min=1, help="Maximum concurrent requests of each worker."),
    cfg.IntOpt(
        "max_connections",
        default=1000,
        min=10,
        help="Connections that each worker keeps open. At the limit a new one replaces the connection that has waited longest "
        "without a complete request.",
    ),
    cfg.IntOpt(
        "max_connections_per_peer",
        default=500,
        min=1,
        help="Connections that each worker keeps open for one client address; at the limit as for max_connections.",
    ),
    cfg.ListOpt(
        "trusted_proxies",
        default=[],
        help="Addresses or networks, such as 10.0.0.0/24, of proxies and load balancers. max_connections_per_peer does not limit "
        "them.",
    ),
    cfg.StrOpt(
        "auth_strategy",
        default="noauth",
        choices=[
            ("noauth", "Callers are not authenticated: they name their own user and project. Only this machine is served."),
            ("keystone", "An identity service checks tokens: see [keystone_authtoken] of keystonemiddleware."),
        ],
        help="How callers are authenticated.",
    ),
    cfg.BoolOpt(
        "noauth_anywhere",
        default=False,
        help="Serve other machines too, although callers are not authenticated: every caller can name any project and role.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=[],
        help="Names of this API, besides loopback, the address listened on and the host of public_endpoint. Links hold no other "
        "Host of a request. With auth_strategy noauth, requests with another Host or Origin are refused, because a "
        "web page could otherwise make a browser on this machine use the API; noauth_anywhere takes them.",
    ),
    cfg.StrOpt("default_project", default="admin", help="Project of a request that names none in its path or in X-Project-Id."),
    cfg.StrOpt(
        "default_availability_zone",
        default="nova",
        help="Zone of hosts whose aggregates name none. Set it to the schedulers' option of the same name.",
    ),
    cfg.StrOpt(
        "public_endpoint",
        default="",
        mutable=True,
        help="Scheme, host and port in links, where clients reach the API through a proxy. Default: those of the request if its "
        "Host is a name of this API (allowed_hosts), else the address that the connection has reached.",
    ),
    cfg.IntOpt("max_limit", default=1000, min=1, mutable=True, help="Maximum servers on one page of a list."),
    cfg.IntOpt("max_body_size", default=114688, min=1024, mutable=True, help="Maximum size of a request body in bytes."),
    cfg.FloatOpt(
        "boot_rate",
        default=0.0,
        min=0.0,
        mutable=True,
        help="Average boot requests per second that each worker accepts from one project; more are answered with 429. 0: no limit.",
    ),
    cfg.IntOpt("boot_burst", default=10, min=1, mutable=True, help="Boot requests of a project that boot_rate allows at once."),
    cfg.FloatOpt(
        "list_rate",
        default=0.0,
        min=0.0,
        mutable=True,
        help="Average server lists per second that each worker answers for one project; more are answered with 429. 0: no limit.",
    ),
    cfg.IntOpt("list_burst", default=20, min=1, mutable=True, help="Lists of a project that list_rate allows at once."),
    cfg.IntOpt("max_servers_per_request", default=1000, min=1, mutable=True, help="Largest max_count of one request."),
    cfg.IntOpt(
        "longest_hold",
        default=3600,
        min=0,
        mutable=True,
        help="Most seconds of a hold of hosts; 0: there are no holds.",
    ),
    cfg.IntOpt("max_holds", default=100, min=1, mutable=True, help="Maximum number of holds in the deployment."),
    cfg.StrOpt(
        "unique_server_names",
        default="",
        choices=[
            ("", "Servers may have the same name."),
            ("project", "Servers of a project must have different names."),
            ("global", "All servers must have different names."),
        ],
        help="Where the name of a new or renamed server must be unique, without regard to case; a name that is taken is refused "
        "with 409. Give all API processes the same value. After a change, and the restart of all of them, run 'superconductor db "
        "record-names': it records the names of the servers that exist.",
    ),
    cfg.IntOpt(
        "max_attempts", default=3, min=1, mutable=True, help="Hosts of a cell that one build may try before its server is in ERROR."
    ),
    cfg.BoolOpt(
        "enable_instance_password",
        default=True,
        mutable=True,
        help="Generate an admin password for each request without one, and return the password in the answer to a boot. "
        "This needs [secrets] keys: without them no password is generated.",
    ),
    cfg.StrOpt(
        "tenant_faults",
        default="plain",
        choices=[
            ("plain", "That no valid host was found, and which part of the request could not be met."),
            (
                "detailed",
                "Also how many hosts there are, how many each filter left, and by how much the request was too large.",
            ),
        ],
        mutable=True,
        help="What faults, actions and explanations show tenants of a request that found no host. Administrators see everything.",
    ),
    cfg.FloatOpt(
        "build_timeout", default=600.0, min=1.0, mutable=True, help="Seconds after which a build that is not ACTIVE becomes ERROR."
    ),
    cfg.FloatOpt(
        "task_timeout",
        default=600.0,
        min=1.0,
        mutable=True,
        help="Seconds after which a stop, a start or another change of a server's power that its host has not carried out is given "
        "up. What the server was to be before is then ordered again.",
    ),
    cfg.FloatOpt(
        "move_timeout",
        default=3600.0,
        min=1.0,
        mutable=True,
        help="Seconds after which a migration, resize or evacuation that has not come to its end is given up. The server then "
        "stays where it was.",
    ),
    cfg.FloatOpt(
        "cell_timeout",
        default=2.0,
        min=0.1,
        mutable=True,
        help="Seconds to wait for a cell before answering from the API database.",
    ),
    cfg.BoolOpt(
        "list_records_by_skipping_down_cells",
        default=True,
        mutable=True,
        help="List servers even if a cell with servers of the project does not answer: its servers are shown as last known, "
        "and from microversion 2.69 on as UNKNOWN. If false, such a list fails with status 500.",
    ),
    cfg.IntOpt(
        "reclaim_instance_interval",
        default=0,
        min=0,
        mutable=True,
        help="Seconds for which a deleted server can be restored: until then it is SOFT_DELETED, off on its host, and charged. "
        "0: servers are deleted at once.",
    ),
    cfg.FloatOpt(
        "service_down_time",
        default=60.0,
        min=1.0,
        mutable=True,
        help="Seconds without a heartbeat after which a host is shown as down.",
    ),
)

POLICY_GROUP = "oslo_policy"
POLICY: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "policy_file",
        default="policy.yaml",
        help="File with policy rules that differ from the defaults, by its path or by its name beside the configuration. The "
        "default one may be missing. A change takes effect within a second.",
    ),
    cfg.MultiStrOpt(
        "policy_dirs",
        default=["policy.d"],
        help="Folders of further policy files, *.yaml, read after policy_file in the order of their names.",
    ),
)

QUOTAS: tuple[cfg.Opt, ...] = (
    cfg.IntOpt(
        "instances",
        default=UNLIMITED,
        min=UNLIMITED,
        max=INT32_MAX,
        mutable=True,
        help="Maximum servers of a project, unless 'superconductor quota set' gives it another limit; -1: no "
        "limit. A server counts from its acceptance to its delete, in ERROR too.",
    ),
    cfg.IntOpt(
        "cores",
        default=UNLIMITED,
        min=UNLIMITED,
        max=INT32_MAX,
        mutable=True,
        help="Maximum virtual CPUs of a project, as for instances.",
    ),
    cfg.IntOpt(
        "ram",
        default=UNLIMITED,
        min=UNLIMITED,
        max=INT32_MAX,
        mutable=True,
        help="Maximum memory of a project in MiB, as for instances.",
    ),
)

KEY_PAIRS = cfg.IntOpt(
    "key_pairs", default=100, min=UNLIMITED, max=INT32_MAX, mutable=True, help="Maximum key pairs of a user; -1: no limit."
)

SERVER_GROUPS = cfg.IntOpt(
    "server_groups",
    default=UNLIMITED,
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
    help="Maximum server groups of a project that its users create; -1: no limit.",
)
SERVER_GROUP_MEMBERS = cfg.IntOpt(
    "server_group_members",
    default=UNLIMITED,
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
    help="Maximum servers of a server group when servers are booted into it; -1: no limit.",
)
PORTS = cfg.IntOpt(
    "ports",
    default=500,
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
    help="Maximum ports that a project makes at /network; those that are made with servers do not count. -1: no limit.",
)
IMAGES = cfg.IntOpt(
    "images",
    default=200,
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
    help="Maximum images that a project has in the image store: uploads, and images and backups of its servers. -1: no limit.",
)
IMAGE_GIGABYTES = cfg.IntOpt(
    "image_gigabytes",
    default=1000,
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
    help="GiB of the image store from which on a project makes no further image. -1: no limit.",
)
USER_QUOTAS = (KEY_PAIRS, SERVER_GROUPS, SERVER_GROUP_MEMBERS, PORTS, IMAGES, IMAGE_GIGABYTES)
"""Quotas that a project cannot have of its own."""


class ApiSettings(Object, frozen=True, kw_only=True):
    """The options as a frozen record. Times in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8774
    threads: int = 8
    max_connections: int = 1000
    max_connections_per_peer: int = 500
    trusted_proxies: tuple[str, ...] = ()
    auth_strategy: str = "noauth"
    noauth_anywhere: bool = False
    allowed_hosts: tuple[str, ...] = ()
    default_project: str = "admin"
    default_availability_zone: str = "nova"
    public_endpoint: str = ""
    max_limit: int = 1000
    max_body_size: int = 114688
    boot_rate: float = 0.0
    boot_burst: int = 10
    list_rate: float = 0.0
    list_burst: int = 20
    max_servers_per_request: int = 1000
    longest_hold: int = 3600
    max_holds: int = 100
    unique_server_names: NameScope = NameScope.OFF
    max_attempts: int = 3
    enable_instance_password: bool = True
    tenant_faults: str = "plain"
    build_timeout: float = 600.0
    task_timeout: float = 600.0
    move_timeout: float = 3600.0
    cell_timeout: float = 2.0
    list_records_by_skipping_down_cells: bool = True
    reclaim_instance_interval: int = 0
    service_down_time: float = 60.0
    quota: QuotaLimits = QuotaLimits()
    key_pairs: int = 100
    server_groups: int = UNLIMITED
    server_group_members: int = UNLIMITED
    ports: int = 500
    images: int = 200
    image_gigabytes: int = 1000
    policy_files: tuple[str, ...] = ()
    images_folder: str = ""
    consoles: ConsoleUrls = ConsoleUrls()

    @property
    def image_limits(self) -> ImageLimits:
        """What each project may have in the image store."""
        return ImageLimits(images=self.images, gigabytes=self.image_gigabytes)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator of the sample configuration."""
    return [(GROUP, [WORKERS, *OPTIONS]), (QUOTA_GROUP, [*QUOTAS, *USER_QUOTAS]), (POLICY_GROUP, list(POLICY))]


def settings(conf: cfg.ConfigOpts) -> ApiSettings:
    """The options as a frozen record. Registers them if necessary."""
    conf.register_opts(OPTIONS, group=GROUP)
    conf.register_opts(USER_QUOTAS, group=QUOTA_GROUP)
    group = conf[GROUP]
    values: dict[str, Any] = {option.dest: group[option.dest] for option in OPTIONS}
    zone = group.default_availability_zone
    if not text.is_zone(zone):
        raise errors.Misconfigured(f"[{GROUP}] default_availability_zone: {zone!r} is not the name of a zone")
    try:
        checked_identifier(f"[{GROUP}] default_project", group.default_project)
    except errors.Invalid as error:
        raise errors.Misconfigured(str(error)) from None
    more = {
        "allowed_hosts": tuple(group.allowed_hosts),
        "trusted_proxies": tuple(group.trusted_proxies),
        "unique_server_names": unique_names(conf),
        "quota": default_limits(conf),
        **{option.dest: conf[QUOTA_GROUP][option.dest] for option in USER_QUOTAS},
        "policy_files": policy_files(conf),
        "images_folder": images_opts.folder(conf),
        "consoles": console_opts.urls(conf),
    }
    return ApiSettings(**values | more)


def unique_names(conf: cfg.ConfigOpts) -> NameScope:
    """Where names of servers must be unique. Registers the options if necessary."""
    conf.register_opts(OPTIONS, group=GROUP)
    return NameScope(conf[GROUP].unique_server_names)


def default_limits(conf: cfg.ConfigOpts) -> QuotaLimits:
    """The limits of a project without limits of its own. Registers the options if necessary."""
    conf.register_opts(QUOTAS, group=QUOTA_GROUP)
    group = conf[QUOTA_GROUP]
    return QuotaLimits(instances=group.instances, cores=group.cores, ram=group.ram)


def policy_files(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """The paths of the policy files, weakest first. Raises Misconfigured if a configured file does not exist."""
    conf.register_opts(POLICY, group=POLICY_GROUP)
    group = conf[POLICY_GROUP]
    file = conf.find_file(group.policy_file)
    if file is None and is_given(conf, "policy_file"):
        raise errors.Misconfigured(f"[{POLICY_GROUP}] policy_file: {group.policy_file} cannot be found")
    folders = [found for name in group.policy_dirs if (found := conf.find_file(name)) is not None]
    return (*([file] if file else []), *(str(path) for folder in folders for path in sorted(Path(folder).glob("*.yaml"))))


def is_given(conf: cfg.ConfigOpts, option: str) -> bool:
    """Whether a file or the environment sets this option of [oslo_policy]."""
    found = conf.get_location(option, POLICY_GROUP)
    return found is not None and found.location.is_user_controlled
