"""Wait for simulated hosts to report, and map them."""

from __future__ import annotations

import threading
from collections.abc import Set

from cli.all_in_one import StateFolder
from cli.bootstrap import Commands
from db import cell_mappings, host_mappings, services
from db.engine import Database
from objects import errors


def discover_until(folder: StateFolder, hosts: Set[str], commands: Commands, stopped: threading.Event) -> None:
    """Run ``host discover`` until all of ``hosts`` are mapped. Raises ``errors.Invalid`` if one has not reported after 60 s."""
    database = Database(folder.database_url("api"), name="api")
    try:
        for _ in range(600):
            mapped = {mapping.host for mapping in database.read(host_mappings.list_all)}
            missing = set(hosts) - mapped
            if not missing or stopped.is_set():
                return
            if missing <= _reporting(database):
                commands.run("host", "discover")
            else:
                stopped.wait(0.1)
    finally:
        database.dispose()
    raise errors.Invalid(f"hosts that never reported: {', '.join(sorted(missing))}")


def _reporting(api_database: Database) -> set[str]:
    found: set[str] = set()
    for mapping in api_database.read(cell_mappings.list_all):
        if not mapping.is_cell0:
            cell = Database(mapping.database_url, name=mapping.name)
            found |= {service.host for service in cell.read(services.list_all)}
            cell.dispose()
    return found
