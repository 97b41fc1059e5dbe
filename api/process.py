"""``superconductor-api``: the API as a process. Its workers share one listening socket."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial

from oslo_config import cfg

from api import console_opts, opts
from api.http import keystone
from api.http.identity import PUBLIC_PATHS
from api.http.policy import PolicyRules
from api.main import ApiService, bind_socket
from cells import api_level
from cells import opts as cells_opts
from cells.api_level import ApiLevel
from cells.presence import Presence
from images import opts as images_opts
from objects.process import API_BINARY
from service import process
from service.process import Plan
from service.vault import Vault

LOG = logging.getLogger(__name__)


class ApiRole:
    """One worker."""

    def __init__(self, conf: cfg.ConfigOpts, listener: socket.socket) -> None:
        self._conf = conf
        settings = opts.read_settings(conf)
        self._level = ApiLevel(conf, pool_size=settings.threads)
        level, vault = self._level, Vault(conf.secrets["keys"])
        guard = (
            partial(keystone.guard_application, conf=conf, public=PUBLIC_PATHS) if settings.auth_strategy == "keystone" else None
        )
        self._service = ApiService(settings, level.registry, level.database, level.bus, listener=listener, vault=vault, guard=guard)
        self._presence = Presence(level.database, "api", API_BINARY, conf.report_interval)

    def start(self, stopped: threading.Event) -> None:
        """Does not wait for the bus: the conductors' sweeps find requests accepted without it."""
        if self._level.wait_ready(stopped, for_bus=False):
            self._service.start()
            self._presence.start()

    def stop(self) -> None:
        self._service.stop()
        self._presence.stop()
        self._level.close()

    def reload_settings(self) -> None:
        self._service.reload_settings(opts.read_settings(self._conf))


def read_plan(conf: cfg.ConfigOpts) -> Plan:
    """Binds the socket, so that an address in use is reported at once. Raises Misconfigured."""
    api_level.check_config(conf)
    check_callers(conf)
    vault, listener = Vault(conf.secrets["keys"]), bind_socket(opts.read_settings(conf))
    if not vault.can_seal:
        LOG.warning("[secrets] keys holds no master key: no admin passwords are generated, and boots with user data are refused")
    return Plan(make=lambda: ApiRole(conf, listener), workers=conf.api.workers)


def check_callers(conf: cfg.ConfigOpts) -> None:
    """Raises Misconfigured if callers cannot be authenticated or a policy rule is invalid."""
    settings = opts.read_settings(conf)
    PolicyRules(settings.policy_files)
    if settings.auth_strategy == "keystone":
        keystone.check_options(conf)


_LISTINGS = [opts.list_opts(), console_opts.list_opts(), cells_opts.list_opts(), images_opts.list_opts()]


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the command."""
    return process.main(API_BINARY, argv, _LISTINGS, read_plan)


if __name__ == "__main__":
    sys.exit(main())
