"""Options of the groups [api] and [quota]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oslo_config import cfg

from api import console_opts
from api.console_opts import ConsoleUrls
from images import opts as images_opts
from objects import errors
from objects.base import INT32_MAX, Object
from objects.ids import checked_identifier
from objects.quota import UNLIMITED, ImageLimits, QuotaLimits
from objects.server_name import NameScope
from objects.shared_defaults import AVAILABILITY_ZONE, SERVICE_DOWN_TIME_S
from service import opts as service_opts
from service.option_maker import OptionMaker

GROUP = "api"
QUOTA_GROUP = "quota"

WORKERS = cfg.IntOpt("workers", default=1, min=1, help="Processes that share the port. Each serves its own requests.")


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
    default_availability_zone: str = AVAILABILITY_ZONE
    public_endpoint: str = ""
    max_limit: int = 1000
    max_body_size: int = 114688
    boot_rate: float = 0.0
    boot_burst: int = 10
    list_rate: float = 0.0
    list_burst: int = 20
    max_servers_per_request: int = 1000
    max_hold_seconds: int = 3600
    max_holds: int = 100
    unique_server_names: NameScope = NameScope.OFF
    max_attempts: int = 3
    enable_instance_password: bool = True
    fault_detail: str = "plain"
    build_timeout: float = 600.0
    task_timeout: float = 600.0
    move_timeout: float = 3600.0
    cell_timeout: float = 2.0
    list_records_by_skipping_down_cells: bool = True
    reclaim_instance_interval: int = 0
    service_down_time: float = SERVICE_DOWN_TIME_S
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


_option = OptionMaker(ApiSettings)
_limit = OptionMaker(QuotaLimits)


OPTIONS: tuple[cfg.Opt, ...] = (
    _option("host", "Address to listen on. With auth_strategy noauth all but loopback needs noauth_anywhere."),
    _option("port", "Port to listen on; 0 takes a free one.", kind=cfg.PortOpt),
    _option("threads", "Maximum concurrent requests of each worker.", min=1),
    _option(
        "max_connections",
        "Connections that each worker keeps open. At the limit a new one replaces the connection that has waited longest "
        "without a complete request.",
        min=10,
    ),
    _option(
        "max_connections_per_peer",
        "Connections that each worker keeps open for one client address; at the limit as for max_connections.",
        min=1,
    ),
    _option(
        "trusted_proxies",
        "Addresses or networks, such as 10.0.0.0/24, of proxies and load balancers. max_connections_per_peer does not limit them.",
    ),
    _option(
        "auth_strategy",
        "How callers are authenticated.",
        choices=[
            ("noauth", "Callers are not authenticated: they name their own user and project. Only this machine is served."),
            ("keystone", "An identity service checks tokens: see [keystone_authtoken] of keystonemiddleware."),
        ],
    ),
    _option(
        "noauth_anywhere",
        "Serve other machines too, although callers are not authenticated: every caller can name any project and role.",
    ),
    _option(
        "allowed_hosts",
        "Names of this API, besides loopback, the address listened on and the host of public_endpoint. Links hold no other "
        "Host of a request. With auth_strategy noauth, requests with another Host or Origin are refused, because a "
        "web page could otherwise make a browser on this machine use the API; noauth_anywhere takes them.",
    ),
    _option("default_project", "Project of a request that names none in its path or in X-Project-Id."),
    _option(
        "public_endpoint",
        "Scheme, host and port in links, where clients reach the API through a proxy. Default: those of the request if its "
        "Host is a name of this API (allowed_hosts), else the address that the connection has reached.",
        mutable=True,
    ),
    _option("max_limit", "Maximum servers on one page of a list.", min=1, mutable=True),
    _option("max_body_size", "Maximum size of a request body in bytes.", min=1024, mutable=True),
    _option(
        "boot_rate",
        "Average boot requests per second that each worker accepts from one project; more are answered with 429. 0: no limit.",
        min=0.0,
        mutable=True,
    ),
    _option("boot_burst", "Boot requests of a project that boot_rate allows at once.", min=1, mutable=True),
    _option(
        "list_rate",
        "Average server lists per second that each worker answers for one project; more are answered with 429. 0: no limit.",
        min=0.0,
        mutable=True,
    ),
    _option("list_burst", "Lists of a project that list_rate allows at once.", min=1, mutable=True),
    _option("max_servers_per_request", "Largest max_count of one request.", min=1, mutable=True),
    _option(
        "max_hold_seconds",
        "Most seconds of a hold of hosts; 0: there are no holds.",
        min=0,
        mutable=True,
        deprecated_name="longest_hold",
    ),
    _option("max_holds", "Maximum number of holds in the deployment.", min=1, mutable=True),
    _option(
        "unique_server_names",
        "Where the name of a new or renamed server must be unique, without regard to case; a name that is taken is refused "
        "with 409. Give all API processes the same value. After a change, and the restart of all of them, run 'superconductor db "
        "backfill-names': it records the names of the servers that exist.",
        choices=[
            ("", "Servers may have the same name."),
            ("project", "Servers of a project must have different names."),
            ("global", "All servers must have different names."),
        ],
    ),
    _option("max_attempts", "Hosts of a cell that one build may try before its server is in ERROR.", min=1, mutable=True),
    _option(
        "enable_instance_password",
        "Generate an admin password for each request without one, and return the password in the answer to a boot. "
        "This needs [secrets] keys: without them no password is generated.",
        mutable=True,
    ),
    _option(
        "fault_detail",
        "What faults, actions and explanations show tenants of a request that found no host. Administrators see everything.",
        choices=[
            ("plain", "That no valid host was found, and which part of the request could not be met."),
            (
                "detailed",
                "Also how many hosts there are, how many each filter left, and by how much the request was too large.",
            ),
        ],
        mutable=True,
        deprecated_name="tenant_faults",
    ),
    _option("build_timeout", "Seconds after which a build that is not ACTIVE becomes ERROR.", min=1.0, mutable=True),
    _option(
        "task_timeout",
        "Seconds after which a stop, a start or another change of a server's power that its host has not carried out is given "
        "up. What the server was to be before is then ordered again.",
        min=1.0,
        mutable=True,
    ),
    _option(
        "move_timeout",
        "Seconds after which a migration, resize or evacuation that has not come to its end is given up. The server then "
        "stays where it was.",
        min=1.0,
        mutable=True,
    ),
    _option("cell_timeout", "Seconds to wait for a cell before answering from the API database.", min=0.1, mutable=True),
    _option(
        "list_records_by_skipping_down_cells",
        "List servers even if a cell with servers of the project does not answer: its servers are shown as last known, "
        "and from microversion 2.69 on as UNKNOWN. If false, such a list fails with status 500.",
        mutable=True,
    ),
    _option(
        "reclaim_instance_interval",
        "Seconds for which a deleted server can be restored: until then it is SOFT_DELETED, off on its host, and charged. "
        "0: servers are deleted at once.",
        min=0,
        mutable=True,
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
    _limit(
        "instances",
        "Maximum servers of a project, unless 'superconductor quota set' gives it another limit; -1: no "
        "limit. A server counts from its acceptance to its delete, in ERROR too.",
        min=UNLIMITED,
        max=INT32_MAX,
        mutable=True,
    ),
    _limit("cores", "Maximum virtual CPUs of a project, as for instances.", min=UNLIMITED, max=INT32_MAX, mutable=True),
    _limit("ram", "Maximum memory of a project in MiB, as for instances.", min=UNLIMITED, max=INT32_MAX, mutable=True),
)

KEY_PAIRS = _option("key_pairs", "Maximum key pairs of a user; -1: no limit.", min=UNLIMITED, max=INT32_MAX, mutable=True)

SERVER_GROUPS = _option(
    "server_groups",
    "Maximum server groups of a project that its users create; -1: no limit.",
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
)
SERVER_GROUP_MEMBERS = _option(
    "server_group_members",
    "Maximum servers of a server group when servers are booted into it; -1: no limit.",
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
)
PORTS = _option(
    "ports",
    "Maximum ports that a project makes at /network; those that are made with servers do not count. -1: no limit.",
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
)
IMAGES = _option(
    "images",
    "Maximum images that a project has in the image store: uploads, and images and backups of its servers. -1: no limit.",
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
)
IMAGE_GIGABYTES = _option(
    "image_gigabytes",
    "GiB of the image store from which on a project makes no further image. -1: no limit.",
    min=UNLIMITED,
    max=INT32_MAX,
    mutable=True,
)
USER_QUOTAS = (KEY_PAIRS, SERVER_GROUPS, SERVER_GROUP_MEMBERS, PORTS, IMAGES, IMAGE_GIGABYTES)
"""Quotas that a project cannot have of its own."""


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator of the sample configuration."""
    return [(GROUP, [WORKERS, *OPTIONS]), (QUOTA_GROUP, [*QUOTAS, *USER_QUOTAS]), (POLICY_GROUP, list(POLICY))]


def read_settings(conf: cfg.ConfigOpts) -> ApiSettings:
    """The options as a frozen record. Registers them if necessary."""
    conf.register_opts(OPTIONS, group=GROUP)
    conf.register_opts(USER_QUOTAS, group=QUOTA_GROUP)
    group = conf[GROUP]
    values: dict[str, Any] = {option.dest: group[option.dest] for option in OPTIONS}
    try:
        checked_identifier(f"[{GROUP}] default_project", group.default_project)
    except errors.Invalid as error:
        raise errors.Misconfigured(str(error)) from None
    more = {
        "default_availability_zone": service_opts.default_zone(conf),
        "service_down_time": service_opts.down_time(conf),
        "allowed_hosts": tuple(group.allowed_hosts),
        "trusted_proxies": tuple(group.trusted_proxies),
        "unique_server_names": unique_names(conf),
        "quota": default_limits(conf),
        **{option.dest: conf[QUOTA_GROUP][option.dest] for option in USER_QUOTAS},
        "policy_files": policy_files(conf),
        "images_folder": images_opts.read_folder(conf),
        "consoles": console_opts.read_urls(conf),
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
    folders = [location for name in group.policy_dirs if (location := conf.find_file(name)) is not None]
    return (*([file] if file else []), *(str(path) for folder in folders for path in sorted(Path(folder).glob("*.yaml"))))


def is_given(conf: cfg.ConfigOpts, option: str) -> bool:
    """Whether a file or the environment sets this option of [oslo_policy]."""
    origin = conf.get_location(option, POLICY_GROUP)
    return origin is not None and origin.location.is_user_controlled
