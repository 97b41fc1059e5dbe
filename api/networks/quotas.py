"""``/network/v2.0/quotas``: what a project may make at ``/network``, as a network service tells it. Only ports are made there."""

from __future__ import annotations

import falcon

from api.http.call import send_json
from api.lookup import security_groups
from api.opts import ApiSettings
from db.api.servers import ports
from db.sql.engine import ApiDatabase
from objects.ids import checked_identifier

UNSERVED_RESOURCES = ("network", "subnet", "subnetpool", "rbac_policy", "router", "floatingip", "trunk")
"""What projects cannot make: their limits are 0."""


class NetworkQuotas:
    """The limits are those of the configuration, for every project."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase) -> None:
        self._database = database
        one_group = {"security_group": 1, "security_group_rule": len(security_groups.list_rules(""))}
        self._limits = {"port": settings.ports} | one_group | dict.fromkeys(UNSERVED_RESOURCES, 0)

    def on_get(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        checked_identifier("project_id", project_id)
        send_json(resp, {"quota": self._limits})

    def on_get_default(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        self.on_get(req, resp, project_id)

    def on_get_details(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        checked_identifier("project_id", project_id)
        groups = {name: self._limits[name] for name in ("security_group", "security_group_rule")}
        used = groups | {"port": self._database.read(ports.count_ports, project_id)}
        details = {name: {"limit": limit, "used": used.get(name, 0), "reserved": 0} for name, limit in self._limits.items()}
        send_json(resp, {"quota": details})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """The project has the defaults, as it always has."""
        checked_identifier("project_id", project_id)
        resp.status = 204
