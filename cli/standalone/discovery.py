"""Wait for simulated hosts to report, and map them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Set
from typing import TYPE_CHECKING

from cells import template
from cells.template import Local
from db.api.deployment import cell_mappings, host_mappings
from db.cell import services
from db.sql.engine import ApiDatabase, CellDatabase
from objects import errors

if TYPE_CHECKING:  # a region's commands map hosts too, and have no all-in-one
    from cli.standalone.all_in_one import AllInOne, StateFolder
    from cli.standalone.demo.site import CommandRunner

LOG = logging.getLogger(__name__)

DISCOVERY_WAIT_S = 60.0
"""Seconds that simulated hosts may take to report and to be known to the scheduler."""


class HostDiscovery:
    """Hosts that are to be mapped: ``host discover`` runs when all that are missing have reported."""

    def __init__(self, api_url: str, hosts: Set[str], commands: CommandRunner) -> None:
        self._database = ApiDatabase(api_url, name="api")
        self._local = Local(database_url=api_url)
        self._hosts = frozenset(hosts)
        self._commands = commands

    def discover_hosts(self) -> set[str]:
        """The hosts that were not mapped at this look."""
        missing = self._hosts - {mapping.host for mapping in self._database.read(host_mappings.list_all)}
        if missing and missing <= reporting_hosts(self._database, self._local):
            self._commands.run("host", "discover")
        return set(missing)

    def close(self) -> None:
        self._database.dispose_connections()


def discover_until(
    folder: StateFolder, region: AllInOne, hosts: Set[str], commands: CommandRunner, stopped: threading.Event
) -> None:
    """Run ``host discover`` until all of ``hosts`` are mapped, and wait until the scheduler knows them.

    Hosts that are disabled or called down count too. Raises ``errors.Invalid`` if they are not mapped within a minute. A deployment
    whose scheduler does not know all of its mapped hosts by then serves without them.
    """
    newcomers = HostDiscovery(folder.database_url("api"), hosts, commands)
    give_up = time.monotonic() + DISCOVERY_WAIT_S
    try:
        while not stopped.is_set():
            missing = newcomers.discover_hosts()
            if not missing and region.count_known() >= len(hosts):
                return
            if time.monotonic() > give_up:
                if missing:
                    raise errors.Invalid(f"after {DISCOVERY_WAIT_S:.0f} s these hosts have not reported: {sorted(missing)}")
                LOG.warning("The scheduler knows %d of %d hosts: see 'superconductor host list'", region.count_known(), len(hosts))
                return
            stopped.wait(0.1)
    finally:
        newcomers.close()


def reporting_hosts(api_database: ApiDatabase, local: Local) -> set[str]:
    """The hosts whose agents have reported to their cell."""
    hosts: set[str] = set()
    for mapping in api_database.read(cell_mappings.list_all):
        if not mapping.is_cell0:
            cell = CellDatabase(template.expand_database(mapping.database_url, local), name=mapping.name)
            hosts |= {service.host for service in cell.read(services.list_all)}
            cell.dispose_connections()
    return hosts
