"""Options of the [scheduler] group, and the frozen settings made of them."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from scheduler.settings import Settings

__all__ = ["GROUP", "OPTIONS", "Settings", "list_opts", "settings"]

GROUP = "scheduler"
_DEFAULT = Settings()


def _multiplier(name: str, what: str) -> cfg.FloatOpt:
    return cfg.FloatOpt(
        f"{name}_weight_multiplier",
        default=getattr(_DEFAULT, f"{name}_weight_multiplier"),
        help=f"How much {what} counts. Negative turns it round, 0 switches it off.",
    )


OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt("driver", default=_DEFAULT.driver, help="How hosts are chosen: filter, chance, or one that was installed."),
    cfg.ListOpt(
        "enabled_filters",
        default=list(_DEFAULT.enabled_filters),
        help="Filters a host must pass, in the order asked. What the request demands (forced, ignored hosts) always holds.",
    ),
    cfg.ListOpt("enabled_weighers", default=list(_DEFAULT.enabled_weighers), help="Weighers whose opinions are added up."),
    cfg.IntOpt(
        "host_subset_size",
        default=_DEFAULT.host_subset_size,
        min=1,
        help="The host is drawn at random from so many of the best. More than 1 keeps schedulers out of each other's way.",
    ),
    cfg.BoolOpt(
        "shuffle_best_same_weighed_hosts",
        default=_DEFAULT.shuffle_best_same_weighed_hosts,
        help="Order hosts of equal weight by chance (replayable from the batch) rather than by their age in the table.",
    ),
    _multiplier("ram", "free memory"),
    _multiplier("cpu", "free vCPUs"),
    _multiplier("disk", "free disk"),
    _multiplier("num_instances", "the number of instances on a host"),
    _multiplier("soft_affinity", "being with other members of a soft-affinity group"),
    _multiplier("soft_anti_affinity", "being away from other members of a soft-anti-affinity group"),
    cfg.StrOpt(
        "default_availability_zone",
        default=_DEFAULT.default_availability_zone,
        help="The zone of hosts that no aggregate puts into one.",
    ),
    cfg.FloatOpt(
        "service_down_time",
        default=_DEFAULT.service_down_time,
        min=1.0,
        help="Seconds without a heartbeat, by this process's own clock, after which a host is taken for down.",
    ),
    cfg.FloatOpt(
        "service_poll_interval",
        default=_DEFAULT.service_poll_interval,
        min=0.05,
        help="Seconds between two looks at heartbeats.",
    ),
    cfg.FloatOpt(
        "feed_poll_interval",
        default=_DEFAULT.feed_poll_interval,
        min=0.02,
        help="Seconds between two looks at a cell's change feed.",
    ),
    cfg.FloatOpt(
        "claims_poll_interval",
        default=_DEFAULT.claims_poll_interval,
        min=0.02,
        help="Seconds between two looks, while idle, at the log of claims, at cells, host mappings and zones. Every decision looks "
        "at the log of claims by itself.",
    ),
    cfg.FloatOpt(
        "claim_window",
        default=_DEFAULT.claim_window,
        min=0.0,
        help="Seconds that a decision waits for others to share its transaction.",
    ),
    cfg.FloatOpt(
        "warm_up",
        default=_DEFAULT.warm_up,
        min=0.0,
        help="Seconds after its start in which the scheduler waits for hosts not heard of yet before it refuses a request.",
    ),
)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator of the sample configuration, and for whoever loads a configuration."""
    return [(GROUP, list(OPTIONS))]


def settings(conf: cfg.ConfigOpts) -> Settings:
    """The options as a frozen record. Registers them where that has not been done."""
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf[GROUP]
    values: dict[str, Any] = {option.dest: group[option.dest] for option in OPTIONS}
    values |= {name: tuple(values[name]) for name in ("enabled_filters", "enabled_weighers")}
    return Settings(**values)
