"""What every server has in the Compute API, and none here: volumes, and a password that the guest has posted."""

from __future__ import annotations

import falcon

from api.http import call as calls
from api.http.call import send_json
from api.lookup.server_lookup import Finder
from objects import errors


class VolumeAttachments:
    """``/servers/{id}/os-volume_attachments``: disks of servers are on their hosts, so the list is empty."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        self._finder.get_server(server_id, calls.get_call(req))  # raises errors.NotFound
        send_json(resp, {"volumeAttachments": []})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, volume_id: str) -> None:
        server = self._finder.get_server(server_id, calls.get_call(req))
        raise errors.NotFound(f"Instance {server.uuid} is not attached to volume {volume_id[:80]}")


class ServerPassword:
    """``/servers/{id}/os-server-password``: guests have no metadata service here to post an encrypted password to."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        self._finder.get_server(server_id, calls.get_call(req))  # raises errors.NotFound
        send_json(resp, {"password": ""})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        """There is none to delete."""
        self._finder.get_server(server_id, calls.get_call(req))
        resp.status = 204
