"""Options of the [api] group."""

from __future__ import annotations

from oslo_config import cfg

from objects.base import Object

GROUP = "api"

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt("host", default="127.0.0.1", help="Address to listen on. Anything but loopback needs noauth_anywhere."),
    cfg.PortOpt("port", default=8774, help="Port to listen on; 0 takes a free one."),
    cfg.IntOpt("threads", default=8, min=1, help="Requests served at once."),
    cfg.BoolOpt(
        "noauth_anywhere",
        default=False,
        help="Serve other machines too, although nobody who asks is authenticated: every caller can name any project and role.",
    ),
    cfg.StrOpt("default_project", default="admin", help="Project of a request that names none, in its path or in X-Project-Id."),
    cfg.StrOpt(
        "default_availability_zone",
        default="nova",
        help="The zone of hosts that no aggregate puts into one: as in the schedulers' option of the same name.",
    ),
    cfg.StrOpt("public_endpoint", default="", help="Scheme, host and port in links, where clients reach the API through a proxy."),
    cfg.IntOpt("max_limit", default=1000, min=1, help="Most servers on one page of a list."),
    cfg.IntOpt("max_body_size", default=114688, min=1024, help="Largest request body accepted, in bytes."),
    cfg.IntOpt("max_servers_per_request", default=1000, min=1, help="Largest max_count of one request."),
    cfg.IntOpt("max_attempts", default=3, min=1, help="Hosts of a cell that one build may try before its server is in ERROR."),
    cfg.FloatOpt("build_timeout", default=600.0, min=1.0, help="Seconds after which a build that is not ACTIVE becomes ERROR."),
    cfg.FloatOpt("cell_timeout", default=2.0, min=0.1, help="Seconds to wait for a cell before showing what is known without it."),
    cfg.FloatOpt(
        "service_down_time", default=60.0, min=1.0, help="Seconds without a heartbeat after which a host is shown as down."
    ),
)


class Settings(Object, frozen=True, kw_only=True):
    """The options as a frozen record. Times in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8774
    threads: int = 8
    noauth_anywhere: bool = False
    default_project: str = "admin"
    default_availability_zone: str = "nova"
    public_endpoint: str = ""
    max_limit: int = 1000
    max_body_size: int = 114688
    max_servers_per_request: int = 1000
    max_attempts: int = 3
    build_timeout: float = 600.0
    cell_timeout: float = 2.0
    service_down_time: float = 60.0


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator of the sample configuration."""
    return [(GROUP, list(OPTIONS))]


def settings(conf: cfg.ConfigOpts) -> Settings:
    """The options as a frozen record. Registers them where that has not been done."""
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf[GROUP]
    return Settings(**{name: group[name] for name in Settings.__struct_fields__})
