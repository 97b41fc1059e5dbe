"""Options of the conductors: groups [conductor], and where the databases and the bus are."""

from __future__ import annotations

from oslo_config import cfg

from objects.base import Object

CONDUCTOR_OPTS = [
    cfg.IntOpt("workers", default=8, min=1, help="Builds and deletes that one process drives at a time."),
    cfg.FloatOpt(
        "lease_seconds",
        default=30.0,
        min=1.0,
        help="How long a conductor may drive a build before another one may take it over, in seconds. It only decides when to try: "
        "a conductor that wakes up after its lease can do no harm.",
    ),
    cfg.FloatOpt("sweep_interval", default=2.0, min=0.05, help="Seconds between two looks at the queue and at pending deletes."),
    cfg.FloatOpt("feed_interval", default=0.5, min=0.02, help="Seconds between two looks at each cell's change feed."),
    cfg.FloatOpt("retry_pause", default=2.0, min=0.1, help="Seconds before a build that could not go on is tried again."),
    cfg.FloatOpt("settle_age", default=5.0, min=0.1, help="Age in seconds at which a staged row is settled against its mapping."),
    cfg.FloatOpt("reap_interval", default=30.0, min=0.1, help="Seconds between two rounds of the claim reaper."),
    cfg.FloatOpt("resend_age", default=5.0, min=0.1, help="Seconds after which an unanswered build or delete order is sent again."),
    cfg.FloatOpt("service_down_time", default=60.0, min=1.0, help="Seconds of silence after which a host counts as down."),
    cfg.FloatOpt("decision_age", default=604800.0, min=60.0, help="Seconds for which scheduling decisions are kept."),
    cfg.FloatOpt(
        "token_age", default=86400.0, min=60.0, help="Seconds for which an Idempotency-Key answers with the same servers."
    ),
    cfg.FloatOpt("feed_age", default=86400.0, min=60.0, help="Seconds for which a cell keeps its change feed."),
]


class ConductorSettings(Object, frozen=True, kw_only=True):
    """Settings of both conductors; the meaning of each is its option's help. Times in seconds."""

    workers: int = 8
    lease_seconds: float = 30.0
    sweep_interval: float = 2.0
    feed_interval: float = 0.5
    retry_pause: float = 2.0
    settle_age: float = 5.0
    reap_interval: float = 30.0
    resend_age: float = 5.0
    service_down_time: float = 60.0
    decision_age: float = 604800.0
    token_age: float = 86400.0
    feed_age: float = 86400.0


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the sample configuration's generator."""
    return [("conductor", list(CONDUCTOR_OPTS))]


def settings(conf: cfg.ConfigOpts) -> ConductorSettings:
    """Register the options on ``conf`` and read them."""
    conf.register_opts(CONDUCTOR_OPTS, group="conductor")
    return ConductorSettings(**{name: conf.conductor[name] for name in ConductorSettings.__struct_fields__})
