"""``/servers/{id}/os-security-groups``, and the actions that add a security group to a server and remove one."""

from __future__ import annotations

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.lookup import security_groups
from api.lookup.server_lookup import Finder
from api.servers.actions import ServerAction
from objects import errors
from objects.instance import Server


class ServerSecurityGroups:
    """The groups of a server. They belong to its interfaces, so a server without interfaces has none.

    The list has those that could be removed, so it is empty: Ansible asks to remove each of them that its playbook does not name.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        self._finder.get_server(server_id, calls.get_call(req))  # raises errors.NotFound
        send_json(resp, {"security_groups": []})

    def server_actions(self) -> tuple[ServerAction, ...]:
        return (
            ServerAction(
                name="addSecurityGroup", rule=policies.SECURITY_GROUP_ADD, versions=schemas.SECURITY_GROUP, run=self._add_group
            ),
            ServerAction(
                name="removeSecurityGroup",
                rule=policies.SECURITY_GROUP_REMOVE,
                versions=schemas.SECURITY_GROUP,
                run=self._remove_group,
            ),
        )

    def _add_group(self, call: Call, server_id: str, value: dict[str, str], resp: falcon.Response) -> None:
        self._server_with_group(call, server_id, value["name"])
        resp.status = 202

    def _remove_group(self, call: Call, server_id: str, value: dict[str, str], resp: falcon.Response) -> None:
        server = self._server_with_group(call, server_id, value["name"])
        raise errors.Conflict(
            f"Security group {security_groups.DEFAULT} cannot be removed from server {server.uuid}: nothing here filters traffic, "
            "so everything that the group allows would stay allowed."
        )

    def _server_with_group(self, call: Call, server_id: str, name: str) -> Server:
        """The server, which has the group of this name or ID. Raises errors.NotFound."""
        server = self._finder.get_server(server_id, call)
        if not security_groups.is_group_name(server.project_id, name):
            raise errors.NotFound(f"Security group {name[:80]} not found.")
        if not self._finder.list_ports(server):
            raise errors.NotFound(f"Server {server.uuid} has no network interface that could have a security group.")
        return server
