"""``GET /superconductor/status``: the deployment at a glance, for administrators. Ours, not the Compute API's."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import falcon

from api import call as calls
from api.hosts import CellView, HostWatch
from api.versions import answer
from cells.registry import CellRegistry
from db import mappings
from db.engine import Database
from objects.cell import CELL0_UUID


class Status:
    """Counts come from the API database; only hosts are asked of the cells."""

    def __init__(self, database: Database, registry: CellRegistry, watch: HostWatch) -> None:
        self._database = database
        self._registry = registry
        self._watch = watch

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        calls.of(req).require_admin("superconductor/status")
        servers: defaultdict[str | None, dict[str, int]] = defaultdict(dict)
        for count in self._database.read(mappings.counts):
            servers[count.cell_uuid][count.state] = count.count
        queue = self._database.read(mappings.queue)
        views = {view.cell_uuid: view for view in self._watch.views()}
        cells = [self._cell(cell.uuid, cell.name, str(cell.mapping.state), views) for cell in self._registry.cells()]
        silent = {cell.uuid: cell.silent_since for cell in self._registry.cells()}
        for cell in cells:
            cell["servers"] = servers[cell["uuid"]]
            cell["silent_since"] = silent.get(cell["uuid"])
        broken = [{"uuid": uuid, "view": reason, "servers": servers[uuid]} for uuid, reason in self._registry.broken().items()]
        names = {cell["uuid"]: cell["name"] for cell in cells}
        twins = self._watch.in_two_cells().items()
        document = {
            "cells": cells,
            "broken_cells": broken,
            "hosts_in_two_cells": [{"host": host, "cells": [names.get(uuid, uuid) for uuid in uuids]} for host, uuids in twins],
            "buried": servers[CELL0_UUID],
            "queue": {
                "depth": queue.depth,
                "oldest_seconds": None if queue.oldest is None else round(max(0.0, time.time() - queue.oldest), 3),
                "servers": servers[None],
            },
        }
        answer(resp, {"status": document})

    def _cell(self, uuid: str, name: str, state: str, views: dict[str, CellView]) -> dict[str, Any]:
        view = views.get(uuid)
        entry: dict[str, Any] = {"uuid": uuid, "name": name, "state": state}
        if view is None:
            return entry | {"view": "not asked yet", "hosts": {}}
        return entry | {"view": view.silent or "answers", "hosts": self._watch.tally(view)}
