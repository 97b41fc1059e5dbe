"""Options that no single role owns: the URLs of databases and bus, and the shutdown time. No process needs all of them."""

from __future__ import annotations

from oslo_config import cfg

from objects import errors, text
from objects.shared_defaults import AVAILABILITY_ZONE, IDLE_INTERVAL_S, SERVICE_DOWN_TIME_S
from service import monitor
from service.config import Listing

BUS = cfg.StrOpt(
    "transport_url",
    secret=True,
    sample_default="rabbit://user:password@broker:5672/vhost",
    help="URL of the bus this process serves on: the API level's for the API, the super conductor and the scheduler; its cell's "
    "for a cell conductor and an agent. embedded://NAME/ is a bus inside one process. Options of the RabbitMQ driver may follow as "
    "a query, such as ?rabbit_quorum_queue=true.",
)

API_BUS = cfg.StrOpt(
    "api_transport_url",
    secret=True,
    sample_default="rabbit://user:password@broker:5672/api",
    help="URL of the API level's bus, for a conductor that serves the API level and a cell whose buses differ. "
    "If unset, transport_url is used for both. Processes of a cell must not have it.",
)

SHUTDOWN = cfg.IntOpt(
    "graceful_shutdown_timeout",
    default=30,
    min=1,
    help="Seconds that a process may take to finish its work after SIGTERM. Work that is cut off continues in another process.",
)

REPORT = cfg.FloatOpt(
    "report_interval",
    default=20.0,
    min=0.1,
    help="Seconds between two heartbeats that a conductor, a scheduler or an API writes for 'superconductor service list'. "
    "Agents have [compute] report_interval.",
)

DOWN_TIME = cfg.FloatOpt(
    "service_down_time",
    default=SERVICE_DOWN_TIME_S,
    min=1.0,
    help="Seconds without a heartbeat after which a host counts as down, while other hosts of its cell report. Give all APIs, "
    "schedulers and conductors the same value, and make it several times [compute] report_interval.",
)

IDLE_INTERVAL = cfg.FloatOpt(
    "idle_interval",
    default=IDLE_INTERVAL_S,
    min=0.02,
    help="Maximum seconds between two reads of what a cell or the API level tells while nothing is asked of it. What nobody asked "
    "for, such as a guest that ends, shows within this time. Conductors and schedulers have it.",
)

ZONE = cfg.StrOpt(
    "default_availability_zone",
    default=AVAILABILITY_ZONE,
    help="Availability zone of hosts that no aggregate puts into a zone. Give all APIs and schedulers the same value.",
)

SHARED = (DOWN_TIME, IDLE_INTERVAL, ZONE)
"""What several roles must agree on."""

API_DATABASE = cfg.StrOpt(
    "connection",
    secret=True,
    sample_default="mysql+pymysql://user:password@server/api",
    help="URL of the API database. Cell conductors and agents must not have it.",
)

CELL_DATABASE = cfg.StrOpt(
    "connection",
    secret=True,
    sample_default="mysql+pymysql://user:password@server/cell",
    help="URL of the database of the cell that a cell conductor serves. No other process needs it: the API level finds the "
    "databases of all cells in its cell mappings.",
)

KEYS = cfg.ListOpt(
    "keys",
    default=[],
    secret=True,
    sample_default="KEY",
    help="Keys that encrypt user data and admin passwords until their server is built: the first one encrypts, all of them "
    "decrypt. Made by 'superconductor secrets new' for the API level, by 'superconductor secrets derive' for conductors of a cell. "
    "Without a key, no admin password is made and boots with user data are refused. Agents need none and must not have any.",
)


def list_opts() -> Listing:
    """For the generator of the sample configuration and for loading a configuration."""
    return [
        (None, [BUS, API_BUS, SHUTDOWN, REPORT, *SHARED]),
        ("api_database", [API_DATABASE]),
        ("cell_database", [CELL_DATABASE]),
        ("secrets", [KEYS]),
        (monitor.GROUP, monitor.OPTIONS),
    ]


def down_time(conf: cfg.ConfigOpts) -> float:
    """``service_down_time``. Registers it if necessary, like the next two."""
    conf.register_opt(DOWN_TIME)
    return float(conf.service_down_time)


def idle_interval(conf: cfg.ConfigOpts) -> float:
    conf.register_opt(IDLE_INTERVAL)
    return float(conf.idle_interval)


def default_zone(conf: cfg.ConfigOpts) -> str:
    """Raises Misconfigured for what cannot be the name of a zone."""
    conf.register_opt(ZONE)
    zone = str(conf.default_availability_zone)
    if not text.is_zone(zone):
        raise errors.Misconfigured(f"[DEFAULT] default_availability_zone: {zone!r} is not the name of a zone")
    return zone


def required_option(conf: cfg.ConfigOpts, option: str, option_meaning: str) -> str:
    """The value of ``group.option`` (or ``option`` of DEFAULT). If it is unset, raises Misconfigured with ``option_meaning`` it
    is.
    """
    group, _, name = option.rpartition(".")
    value = conf[group][name] if group else conf[name]
    if not value:
        section = group or "DEFAULT"
        variable = f"OS_{section.upper()}__{name.upper()}"
        raise errors.Misconfigured(
            f"[{section}] {name} is not set: it is {option_meaning}. Set it in a --config-file, or as {variable}."
        )
    return str(value)


def refuse_option(conf: cfg.ConfigOpts, option: str, why: str) -> None:
    """Raise Misconfigured if ``group.option`` (or ``option`` of DEFAULT) is set: this process must not know it."""
    group, _, name = option.rpartition(".")
    if conf[group][name] if group else conf[name]:
        raise errors.Misconfigured(f"[{group or 'DEFAULT'}] {name} is set, and must not be here: {why}.")
