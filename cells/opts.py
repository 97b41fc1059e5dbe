"""Options of the [cells] group: how patient a process is with a cell."""

from __future__ import annotations

from types import MappingProxyType

from oslo_config import cfg

from cells.bulkhead import BulkheadSettings
from cells.template import NOTHING, Local
from objects.base import Object
from service import notifications, upgrade_levels
from service.config import Listing
from service.upgrade_levels import Pinned

GROUP = "cells"


class RegistrySettings(Object, frozen=True, kw_only=True):
    """How soon changes are noticed, and how patient the process is with each cell. Times in seconds.

    A Cell that was replaced or removed is closed ``linger`` seconds later, when whoever still held it has finished. ``local_of`` is
    what URL templates of cells are filled in from. ``pinned``: messages versions by role.
    """

    poll_interval: float = 1.0
    linger: float = 30.0
    bulkhead: BulkheadSettings = BulkheadSettings()
    local: Local = NOTHING
    pinned: Pinned = MappingProxyType({})


OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.FloatOpt(
        "timeout",
        default=10.0,
        min=0.1,
        help="Seconds that a call to a cell's database or bus may take before it fails because the cell is unavailable.",
    ),
    cfg.IntOpt(
        "threads",
        default=4,
        min=1,
        help="Maximum concurrent calls to one cell's database, and to its bus. SQLite and the embedded bus need no threads.",
    ),
    cfg.IntOpt(
        "breaker_failures",
        default=3,
        min=1,
        help="Calls to a cell that fail in a row before further calls are refused at once.",
    ),
    cfg.FloatOpt(
        "poll_interval",
        default=1.0,
        min=0.1,
        help="Seconds between two checks for changed cells or host mappings.",
    ),
)


def list_opts() -> Listing:
    """For the generator of the sample configuration. What a change of a cell tells is for everyone who may change one."""
    return [(GROUP, list(OPTIONS)), *upgrade_levels.list_opts(), *notifications.list_opts()]


def read_settings(conf: cfg.ConfigOpts) -> RegistrySettings:
    """The options as a frozen record. Registers them where that has not been done."""
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf[GROUP]
    return RegistrySettings(
        poll_interval=group.poll_interval,
        bulkhead=BulkheadSettings(timeout=group.timeout, threads=group.threads, failures=group.breaker_failures),
        local=local_of(conf),
        pinned=upgrade_levels.read_settings(conf),
    )


def local_of(conf: cfg.ConfigOpts) -> Local:
    """What URL templates of cells are filled in from: the API database and the API level's bus, as far as they are known here."""
    known = [conf[name] for name in ("api_transport_url", "transport_url") if name in conf]
    database = conf.api_database.connection if "api_database" in conf else None
    return Local(database_url=database or "", transport_url=next((url for url in known if url), ""))
