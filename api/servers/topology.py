"""``/servers/{id}/topology``: the NUMA topology of a server, as it is recorded."""

from __future__ import annotations

import falcon

from api.http import call as calls
from api.http.call import send_json
from api.lookup.server_lookup import Finder


class ServerTopology:
    """No topology is recorded here: the agent of the host lays out the guest, and tells nobody. So there are no nodes."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        self._finder.get_server(server_id, calls.get_call(req))  # raises errors.NotFound for a server that the caller may not see
        send_json(resp, {"nodes": [], "pagesize_kb": None})
