"""``superconductor-compute``: the process of this host's agent."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence

from oslo_config import cfg

from compute import drivers, opts
from compute.main import FINAL_REPORTS_TIMEOUT_S, ComputeService
from images import opts as images_opts
from objects.messages_version import SPAN
from objects.process import AGENT_BINARY
from rpc import agents
from rpc.transport import Bus, user_of
from service import process, upgrade_levels
from service.opts import refuse_option, required_option
from service.process import Plan
from service.upgrade_levels import CONDUCTOR
from service.waiting import wait_for

LOG = logging.getLogger(__name__)

_NOT_HERE = "an agent runs beside tenants' guests, and an attacker who escapes from a guest must not find it"


CLEANUP_TIME_S = 2 * FINAL_REPORTS_TIMEOUT_S
"""Seconds of ``graceful_shutdown_timeout`` reserved for cancelling unfinished builds and reporting them."""


class ComputeRole:
    """The only worker: a host has one agent."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings = opts.read_settings(conf)
        confinement = agents.confinement_of(user_of(conf.transport_url), settings.host)
        self._bus = Bus(conf.transport_url, name="cell", confined=confinement)
        conductors = upgrade_levels.read_settings(conf).get(CONDUCTOR, SPAN.newest)
        self._bus.peers = lambda topic, server: conductors
        self._settings = settings
        self._driver = drivers.open_driver(conf, settings)
        self._service: ComputeService | None = None
        self._drain_timeout = max(0.0, min(settings.drain_timeout, conf.graceful_shutdown_timeout - CLEANUP_TIME_S))

    def start(self, stopped: threading.Event) -> None:
        """Does not wait for the cell's conductors: messages to them are repeated until one answers."""
        if wait_for("the bus of the cell", self._bus.check_broker, stopped):
            wait_for("the hypervisor", self._open, stopped)
        if self._service is not None:
            self._service.start()
            wait_for("the host's topic", self._service.check_bus, stopped)

    def _open(self) -> None:
        """Read the host's guests and nodes. Raises HypervisorDown."""
        self._service = ComputeService(self._settings, self._bus, driver=self._driver)

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop(self._drain_timeout)
        else:
            self._driver.close()
        self._bus.close()

    def reload_settings(self) -> None:
        """None of the agent's own options can change while it runs."""


def read_plan(conf: cfg.ConfigOpts) -> Plan:
    """Raises Misconfigured if the agent holds credentials that it must not have."""
    required_option(conf, "transport_url", "the URL of the cell's bus")
    for option in ("api_database.connection", "cell_database.connection", "api_transport_url", "secrets.keys"):
        refuse_option(conf, option, _NOT_HERE)
    upgrade_levels.read_settings(conf)
    drivers.prepare_driver(conf, opts.read_settings(conf).driver)
    return Plan(make=lambda: ComputeRole(conf))


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the command."""
    return process.main(AGENT_BINARY, argv, [opts.list_opts(), images_opts.list_opts(), upgrade_levels.list_opts()], read_plan)


if __name__ == "__main__":
    sys.exit(main())
