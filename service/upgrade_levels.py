"""Options of the [upgrade_levels] group: messages versions that an operator pins."""

from __future__ import annotations

from collections.abc import Mapping

from oslo_config import cfg

from objects import errors
from objects.messages_version import KNOWN, MessagesVersion, version_of
from service.config import Listing

GROUP = "upgrade_levels"
AUTO = "auto"
COMPUTE, CONDUCTOR, SCHEDULER = "compute", "conductor", "scheduler"

Pinned = Mapping[str, MessagesVersion]
"""Messages versions by role: COMPUTE, CONDUCTOR or SCHEDULER."""

OPTIONS: tuple[cfg.Opt, ...] = tuple(
    cfg.StrOpt(
        name,
        default=AUTO,
        help=f"Messages version that this process writes to {who}. auto: {auto}. Otherwise one of {', '.join(map(str, KNOWN))}.",
    )
    for name, who, auto in (
        (COMPUTE, "agents", "the newest that the agent of the host has recorded"),
        (CONDUCTOR, "conductors", "the newest that all of them have recorded; an agent writes its own newest"),
        (SCHEDULER, "schedulers", "the newest that all of them have recorded"),
    )
)


def list_opts() -> Listing:
    """For the generator of the sample configuration and for loading a configuration."""
    return [(GROUP, list(OPTIONS))]


def read_settings(conf: cfg.ConfigOpts) -> Pinned:
    """The versions that are pinned. Registers the options if necessary. Raises errors.Misconfigured for an unknown version."""
    conf.register_opts(OPTIONS, group=GROUP)
    versions: dict[str, MessagesVersion] = {}
    for option in OPTIONS:
        if (text := conf[GROUP][option.name]) != AUTO:
            try:
                versions[option.name] = version_of(text)
            except errors.Invalid as error:
                raise errors.Misconfigured(f"[{GROUP}] {option.name}: {error}, or {AUTO}") from None
    return versions
