"""Whether notifications are sent, with which drivers and where. All processes of a deployment need the same options."""

from __future__ import annotations

from oslo_config import cfg

from objects.base import Object
from service.config import Listing

GROUP = "oslo_messaging_notifications"

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.MultiStrOpt(
        "driver",
        default=[],
        sample_default=["messagingv2"],
        help="Drivers that send notifications: messagingv2, messaging, routing, log, or noop for none. If unset, none are "
        "recorded or sent. All processes must have the same value: a process without it records no notifications.",
    ),
    cfg.StrOpt(
        "transport_url",
        secret=True,
        sample_default="rabbit://user:password@broker:5672/notifications",
        help="URL of the bus for notifications. Unset, conductors send them on their own bus.",
    ),
    cfg.ListOpt(
        "topics",
        default=["notifications"],
        help="Topics that notifications are sent to: each to the queue TOPIC.info or TOPIC.error.",
    ),
    cfg.FloatOpt(
        "keep",
        default=86400.0,
        min=1.0,
        help="Seconds that a notification is kept while its bus is unavailable. Older ones are dropped; the log says how many.",
    ),
)


class NotificationSettings(Object, frozen=True, kw_only=True):
    """``drivers`` excludes those that do nothing; if it is empty, notifications are off. ``keep`` in seconds."""

    drivers: tuple[str, ...] = ()
    transport_url: str = ""
    topics: tuple[str, ...] = ("notifications",)
    keep: float = 86400.0

    @property
    def is_on(self) -> bool:
        return bool(self.drivers)

    def __repr__(self) -> str:
        return f"NotificationSettings(drivers={self.drivers!r}, topics={self.topics!r})"  # the URL may hold a password


def list_opts() -> Listing:
    """For the generator of the sample configuration and for loading a configuration."""
    return [(GROUP, list(OPTIONS))]


def read_settings(conf: cfg.ConfigOpts) -> NotificationSettings:
    """The options as a frozen record. Registers them if necessary."""
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf[GROUP]
    return NotificationSettings(
        drivers=tuple(dict.fromkeys(name for name in group.driver if name not in ("", "noop"))),
        transport_url=group.transport_url or "",
        topics=tuple(group.topics),
        keep=group.keep,
    )
