"""``POST /superconductor/hosts/HOST/accept``: a host counts with the sizes that it reports."""

from __future__ import annotations

import logging

import falcon
import msgspec

from api.http import call as calls
from api.http.call import send_json
from api.opts import ApiSettings
from cells import host_service
from cells.registry import CellRegistry
from objects import errors

LOG = logging.getLogger(__name__)


class HostSizes:
    """Accepts the sizes of a host. The request has no body."""

    def __init__(self, settings: ApiSettings, registry: CellRegistry) -> None:
        self._settings = settings
        self._registry = registry

    def on_post(self, req: falcon.Request, resp: falcon.Response, host: str) -> None:
        """Raises errors.NotFound for a host that is in no cell or has reported nothing."""
        try:
            cell = self._registry.of_host(host)
        except errors.HostNotMapped:
            raise errors.NotFound(f"Compute host {host[:80]} could not be found.") from None
        accepted = host_service.accept_sizes(cell, host, self._settings.cell_timeout)
        LOG.info("the sizes of host %s of cell %s were accepted, by user %s", host, cell.name, calls.get_call(req).context.user_id)
        nodes = [{"node": node} | msgspec.structs.asdict(sizes) for node, sizes in sorted(accepted.items())]
        send_json(resp, {"host": {"host": host, "nodes": nodes}})
