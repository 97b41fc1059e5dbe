"""``/network``: networks and security groups as a network service has them, read-only, so that clients find them."""

from __future__ import annotations

import ipaddress

import falcon

from api.http import call as calls
from api.http.call import Call, send_json
from api.lookup import security_groups
from api.lookup.catalog import Catalog
from api.lookup.ports import Document
from api.networks.answers import answer_all, answer_one, resource_not_found
from api.opts import ApiSettings
from db.api.projects import quotas
from db.sql.engine import ApiDatabase
from objects import errors
from objects.network import Network, Subnet


class NetworkVersions:
    """``GET /network``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{calls.get_call(req).prefix}/network/v2.0/"}
        send_json(resp, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]})

    def on_get_resources(self, req: falcon.Request, resp: falcon.Response) -> None:
        prefix = f"{calls.get_call(req).prefix}/network/v2.0"
        names = ("network", "subnet", "port", "security_group", "security_group_rule")
        documents = [
            {"name": name, "collection": f"{name}s", "links": [_self_link(f"{prefix}/{_path_of(name)}s")]} for name in names
        ]
        send_json(resp, {"resources": documents})


class NetworkResources:
    """One method for each collection, and one for each resource of it by ID."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, catalog: Catalog) -> None:
        self._settings = settings
        self._database = database
        self._catalog = catalog

    def on_get_networks(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer_all(req, resp, "networks", self._network_documents(calls.get_call(req)), self._settings.max_limit)

    def on_get_network(self, req: falcon.Request, resp: falcon.Response, network_id: str) -> None:
        answer_one(req, resp, "network", self._network_documents(calls.get_call(req)), network_id)

    def on_get_subnets(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer_all(req, resp, "subnets", self._subnet_documents(calls.get_call(req)), self._settings.max_limit)

    def on_get_subnet(self, req: falcon.Request, resp: falcon.Response, subnet_id: str) -> None:
        answer_one(req, resp, "subnet", self._subnet_documents(calls.get_call(req)), subnet_id)

    def on_get_security_groups(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer_all(req, resp, "security_groups", [security_groups.group_document(_project_of(req))], self._settings.max_limit)

    def on_get_security_group(self, req: falcon.Request, resp: falcon.Response, security_group_id: str) -> None:
        answer_one(req, resp, "security_group", [security_groups.group_document(_project_of(req))], security_group_id)

    def on_delete_security_group(self, req: falcon.Request, resp: falcon.Response, security_group_id: str) -> None:
        """Nobody can delete a project's only group. Administrators are told that it is done, as by Neutron, which makes it anew."""
        call = calls.get_call(req)
        projects = [call.context.project_id]
        if call.project_scope is None:
            projects += self._database.read(quotas.list_projects)
        if security_group_id not in map(security_groups.id_of, projects):
            raise resource_not_found("security group", security_group_id)
        if call.project_scope is not None:
            raise errors.Conflict("Removing the security group 'default' is not allowed: each project has it.")
        resp.status = 204

    def on_get_security_group_rules(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer_all(req, resp, "security_group_rules", security_groups.list_rules(_project_of(req)), self._settings.max_limit)

    def on_get_security_group_rule(self, req: falcon.Request, resp: falcon.Response, security_group_rule_id: str) -> None:
        answer_one(req, resp, "security_group_rule", security_groups.list_rules(_project_of(req)), security_group_rule_id)

    def on_get_nothing(self, req: falcon.Request, resp: falcon.Response, collection: str) -> None:
        """Collections that clients look through and that are empty here, such as floating addresses."""
        if collection not in EMPTY:
            raise errors.NotFound(f"There are no {collection[:40]} here.")
        send_json(resp, {collection.replace("-", "_"): []})

    def on_get_none(self, req: falcon.Request, resp: falcon.Response, collection: str, resource_id: str) -> None:
        raise errors.NotFound(f"There is no {resource_id[:80]!r} among the {collection[:40]}.")

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _network_documents(self, call: Call) -> list[Document]:
        return [_network_document(network, call) for network in self._catalog.networks_by_uuid(call).values()]

    def _subnet_documents(self, call: Call) -> list[Document]:
        return [
            _subnet_document(subnet, network)
            for network in self._catalog.networks_by_uuid(call).values()
            for subnet in network.subnets
        ]


EMPTY = ("floatingips", "routers", "extensions", "trunks", "agents", "subnetpools", "address-scopes", "qos-policies")
"""Collections of a network service that have nothing here."""


def _project_of(req: falcon.Request) -> str:
    """Whose security group is meant: the caller's project, or for a caller who sees all projects the one that the query names."""
    call = calls.get_call(req)
    project_id: str | None = req.get_param("project_id") or req.get_param("tenant_id")
    return project_id if project_id and call.project_scope is None else call.context.project_id


def _network_document(network: Network, call: Call) -> Document:
    owner = network.project_ids[0] if network.project_ids else ""
    document: Document = {
        "id": network.uuid,
        "name": network.name,
        "description": "",
        "project_id": owner,
        "tenant_id": owner,
        "admin_state_up": True,
        "status": "ACTIVE",
        "shared": not network.project_ids,
        "router:external": False,
        "is_default": False,
        "port_security_enabled": False,
        "mtu": network.mtu,
        "subnets": [subnet.uuid for subnet in network.subnets],
        "availability_zones": [],
        "availability_zone_hints": [],
        "tags": [],
    }
    if call.context.is_admin:
        document |= {"provider:network_type": "flat", "provider:physical_network": network.physical_network}
        document["provider:segmentation_id"] = None
    return document


def _subnet_document(subnet: Subnet, network: Network) -> Document:
    prefix = ipaddress.ip_network(subnet.cidr)
    owner = network.project_ids[0] if network.project_ids else ""
    ranges = subnet.ranges or ((str(prefix[0]), str(prefix[-1])),)
    return {
        "id": subnet.uuid,
        "name": "",
        "description": "",
        "project_id": owner,
        "tenant_id": owner,
        "network_id": subnet.network_id,
        "ip_version": subnet.ip_version,
        "cidr": subnet.cidr,
        "gateway_ip": subnet.gateway,
        "allocation_pools": [{"start": first, "end": last} for first, last in ranges],
        "dns_nameservers": list(subnet.dns),
        "host_routes": [],
        "enable_dhcp": False,
        "tags": [],
    }


def _path_of(name: str) -> str:
    return name.replace("_", "-")


def _self_link(address: str) -> dict[str, str]:
    return {"rel": "self", "href": address}
