"""Wait for simulated hosts to report, and map them."""

from __future__ import annotations

import threading
import time
from collections.abc import Set

from cli.all_in_one import AllInOne, StateFolder
from cli.bootstrap import Commands
from db import cell_mappings, host_mappings, services
from db.engine import Database
from objects import errors

PATIENCE = 60.0
"""Seconds that simulated hosts may take to report and to be known to the scheduler."""


def discover_until(folder: StateFolder, region: AllInOne, hosts: Set[str], commands: Commands, stopped: threading.Event) -> None:
    """Run ``host discover`` until all of ``hosts`` are mapped, and wait until the scheduler knows them.

    Raises ``errors.Invalid`` if that takes longer than a minute.
    """
    database = Database(folder.database_url("api"), name="api")
    give_up = time.monotonic() + PATIENCE
    try:
        while not stopped.is_set():
            mapped = {mapping.host for mapping in database.read(host_mappings.list_all)}
            missing = set(hosts) - mapped
            if not missing and region.schedulable() >= len(hosts):
                return
            if time.monotonic() > give_up:
                raise errors.Invalid(
                    f"after {PATIENCE:.0f} s not all hosts are known to the scheduler; not mapped: {sorted(missing)}"
                )
            if missing and missing <= _reporting(database):
                commands.run("host", "discover")
            else:
                stopped.wait(0.1)
    finally:
        database.dispose()


def _reporting(api_database: Database) -> set[str]:
    found: set[str] = set()
    for mapping in api_database.read(cell_mappings.list_all):
        if not mapping.is_cell0:
            cell = Database(mapping.database_url, name=mapping.name)
            found |= {service.host for service in cell.read(services.list_all)}
            cell.dispose()
    return found
