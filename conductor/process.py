"""``superconductor-conductor``: the API level's conductor, a cell's, or both in one process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

from oslo_config import cfg

from cells import api_level, own_cell
from cells import opts as cells_opts
from cells.api_level import ApiLevel
from cells.own_cell import OwnCell
from cells.presence import Presence
from conductor import notify, opts
from conductor.main import CellConductorService, SuperConductorService
from conductor.notify import NotificationService
from images import opts as images_opts
from objects import errors
from objects.process import CONDUCTOR_BINARY
from service import notifications, process
from service.opts import refuse_option
from service.process import Plan, Role
from service.vault import Vault
from service.waiting import wait_for

SUPER, CELL = "super", "cell"

HEARTBEAT_ROUNDS = 4
"""Rounds of heartbeats in a ``report_interval``: a heartbeat is written late by no more than a quarter of that."""
SWEEP_CONNECTIONS = 4
"""Pooled connections for the periodic sweeps. A sweep beyond them opens one for a single transaction, cheaper than keeping it."""
_OWN_CELL_ONLY = "a conductor of a cell that does not serve the API level holds its own cell's credentials only"


class ConductorRole:
    """One level's conductor.

    ``ready`` waits for its dependencies, and returns False if stopped before. ``close`` closes its connections.
    """

    def __init__(
        self,
        level: str,
        parts: tuple[SuperConductorService | CellConductorService, NotificationService, Presence],
        ready: Callable[[threading.Event], bool],
        close: Callable[[], None],
    ) -> None:
        self._level = level
        self._service, self._notifications, self._presence = parts
        self._ready, self._close = ready, close
        self._begun = False

    def start(self, stopped: threading.Event) -> None:
        if self._ready(stopped):
            self._begun = True
            self._service.start()
            self._notifications.start()
            wait_for(f"the {self._level} conductor's topic", self._service.check_bus, stopped)
            self._presence.start()

    def stop(self) -> None:
        if self._begun:
            self._service.stop()
            self._presence.stop()
            self._notifications.stop()
        self._close()

    def reload_settings(self) -> None:
        """Does nothing: none of its own options can change at run time."""


def super_role(conf: cfg.ConfigOpts) -> ConductorRole:
    """The API level's conductor."""
    settings = opts.read_settings(conf)
    level = ApiLevel(conf, pool_size=2 * settings.workers + SWEEP_CONNECTIONS)  # doorbells' builds, and the queue sweep's
    service = SuperConductorService(settings, level.registry, level.database, level.bus, Vault(conf.secrets["keys"]))
    notifier = notify.of_api_level(notifications.read_settings(conf), level.url, level.database, level.registry)
    heartbeat = Presence(level.database, "api", CONDUCTOR_BINARY, conf.report_interval)
    return ConductorRole(SUPER, (service, notifier, heartbeat), partial(level.wait_ready, for_bus=True), level.close)


def cell_role(conf: cfg.ConfigOpts) -> ConductorRole:
    """A cell's conductor."""
    settings = opts.read_settings(conf)
    cell = OwnCell(conf, pool_size=settings.workers + SWEEP_CONNECTIONS)
    vault, pace = Vault(conf.secrets["keys"]), conf.report_interval / HEARTBEAT_ROUNDS
    service = CellConductorService(settings, cell.name, cell.database, cell.bus, vault, heartbeat_pace=pace)
    notifier = notify.of_cell(notifications.read_settings(conf), conf.transport_url, cell.database)
    heartbeat = Presence(cell.database, "cell", CONDUCTOR_BINARY, conf.report_interval)
    return ConductorRole(CELL, (service, notifier, heartbeat), cell.wait_ready, cell.close)


class Conductors:
    """The roles of one worker. Each starts as soon as its own dependencies are ready."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._roles = roles

    def start(self, stopped: threading.Event) -> None:
        threads = [threading.Thread(target=role.start, args=(stopped,), daemon=True) for role in self._roles[1:]]
        for thread in threads:
            thread.start()
        self._roles[0].start(stopped)
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Stop all roles concurrently, as they share one time limit."""
        threads = [threading.Thread(target=role.stop) for role in self._roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def reload_settings(self) -> None:
        for role in self._roles:
            role.reload_settings()


def roles_of(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """The roles to run: those named in [conductor] roles, or those whose database is configured. Raises Misconfigured."""
    Vault(conf.secrets["keys"])
    named = tuple(conf.conductor.roles)
    databases = {SUPER: conf.api_database.connection, CELL: conf.cell_database.connection}
    roles = named or tuple(role for role, url in databases.items() if url)
    if not roles:
        raise errors.Misconfigured(
            "A conductor needs [api_database] connection to serve the API level, [cell_database] connection to serve a cell, or "
            "both."
        )
    if SUPER in roles:
        api_level.check_config(conf)
    else:
        for option in ("api_database.connection", "api_transport_url"):
            refuse_option(conf, option, _OWN_CELL_ONLY)
        if Vault(conf.secrets["keys"]).can_seal:
            raise errors.Misconfigured(
                f"[secrets] keys must not contain a master key here: {_OWN_CELL_ONLY}. "
                "'superconductor secrets derive CELL' prints the key of one cell."
            )
    if CELL in roles:
        own_cell.check_config(conf)
    return roles


def read_plan(conf: cfg.ConfigOpts) -> Plan:
    """Raises Misconfigured."""
    roles = roles_of(conf)
    makers = [make for name, make in ((SUPER, super_role), (CELL, cell_role)) if name in roles]
    return Plan(make=lambda: Conductors([make(conf) for make in makers]), workers=conf.conductor.processes)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return process.main(CONDUCTOR_BINARY, argv, [opts.list_opts(), cells_opts.list_opts(), images_opts.list_opts()], read_plan)


if __name__ == "__main__":
    sys.exit(main())
