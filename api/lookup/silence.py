"""Cells that do not answer: which of them affect a list or a server, and how the answer shows this."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import falcon

from api.http import policies
from api.http.call import Call
from api.lookup.server_view import format_iso
from cells.registry import CellRegistry
from db.api.deployment import silences
from db.sql.connection import ApiTransaction
from objects.cell import UNKNOWN_CELLS_HEADER

Silent = Mapping[str, float]
"""Uuid of a cell -> since when it has not answered, in seconds since the epoch."""


class Silences:
    """Silent cells that the conductors have recorded, and those that this process has found itself."""

    def __init__(self, registry: CellRegistry) -> None:
        self._registry = registry

    def observed_silences(self) -> dict[str, float]:
        """Cells that did not answer this process's last request to them."""
        return {cell.uuid: since for cell in self._registry.list_cells() if (since := cell.database_silent_since) is not None}

    def read(self, tx: ApiTransaction, met: Silent, project_id: str | None) -> dict[str, float]:
        """The silent cells in ``met`` or on record in which the project has servers (None: all). One statement while all cells
        answer.
        """
        since = dict(met)
        for silence in silences.read(tx):
            since[silence.cell_uuid] = min(silence.since, since.get(silence.cell_uuid, silence.since))
        if not since or project_id is None:
            return since
        concerned = silences.list_concerned(tx, since, project_id)
        return {uuid: at for uuid, at in since.items() if uuid in concerned}

    def name_silent_cells(self, resp: falcon.Response, call: Call, silent: Silent) -> None:
        """Name the silent cells in a header of the answer."""
        if not silent:
            return
        if call.is_allowed(policies.ATTRIBUTES):
            names = self._cell_names()
            resp.set_header(
                UNKNOWN_CELLS_HEADER,
                ", ".join(f"{quote(names.get(uuid, uuid), safe='')};since={format_iso(at)}" for uuid, at in sorted(silent.items())),
            )
        else:
            resp.set_header(UNKNOWN_CELLS_HEADER, f"*;since={format_iso(min(silent.values()))}")

    def refuse_silent(self, call: Call, silent: Silent) -> None:
        """Raise HTTP 500 if any cell is silent."""
        if silent:
            names = self._cell_names()
            silent_names = ", ".join(sorted(names.get(uuid, uuid) for uuid in silent))
            subject = f"Cell {silent_names}" if call.is_allowed(policies.ATTRIBUTES) else "A cell"
            raise falcon.HTTPInternalServerError(
                description=f"{subject} is not responding but configuration indicates that we should fail."
            )

    def _cell_names(self) -> dict[str, str]:
        return {cell.uuid: cell.name for cell in self._registry.list_cells()}
