"""``/network``: networks, ports and security groups as a network service has them, read-only, so that clients find them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import falcon

from api import call as calls
from api import ports, security_groups, server_view
from api.call import Call
from api.catalog import Catalog
from api.opts import ApiSettings
from api.paging import page_of
from api.ports import Document
from api.versions import answer
from db.api import addresses, mappings, operations
from db.sql.engine import ApiDatabase
from objects import errors
from objects.instance import Server
from objects.network import Network, Subnet
from objects.port import Port

_PAGING = ("fields", "limit", "marker", "sort_key", "sort_dir", "page_reverse")
_ALL_PROJECTS = "all_projects"
"""No field: what Skyline adds to requests of administrators, who see all projects here in any case, as in Neutron."""
_SERVERS_PAGE = 1000
"""Servers whose ports one statement reads."""


class NetworkVersions:
    """``GET /network``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{calls.of(req).prefix}/network/v2.0/"}
        answer(resp, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]})

    def on_get_resources(self, req: falcon.Request, resp: falcon.Response) -> None:
        prefix = f"{calls.of(req).prefix}/network/v2.0"
        names = ("network", "subnet", "port", "security_group", "security_group_rule")
        documents = [{"name": name, "collection": f"{name}s", "links": [_link(f"{prefix}/{_path(name)}s")]} for name in names]
        answer(resp, {"resources": documents})


class NetworkResources:
    """One method for each collection, and one for each resource of it by ID."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, catalog: Catalog) -> None:
        self._settings = settings
        self._database = database
        self._catalog = catalog

    def on_get_networks(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer_all(req, resp, "networks", self._networks(calls.of(req)))

    def on_get_network(self, req: falcon.Request, resp: falcon.Response, network_id: str) -> None:
        self._answer_one(req, resp, "network", self._networks(calls.of(req)), network_id)

    def on_get_subnets(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer_all(req, resp, "subnets", self._subnets(calls.of(req)))

    def on_get_subnet(self, req: falcon.Request, resp: falcon.Response, subnet_id: str) -> None:
        self._answer_one(req, resp, "subnet", self._subnets(calls.of(req)), subnet_id)

    def on_get_ports(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer_all(req, resp, "ports", self._ports(calls.of(req), req.get_param_as_list("device_id") or ()))

    def on_get_port(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        self._answer_one(req, resp, "port", self._ports(calls.of(req)), port_id)

    def on_get_security_groups(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer_all(req, resp, "security_groups", [security_groups.group(_project(req))])

    def on_get_security_group(self, req: falcon.Request, resp: falcon.Response, security_group_id: str) -> None:
        self._answer_one(req, resp, "security_group", [security_groups.group(_project(req))], security_group_id)

    def on_get_security_group_rules(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer_all(req, resp, "security_group_rules", security_groups.rules(_project(req)))

    def on_get_security_group_rule(self, req: falcon.Request, resp: falcon.Response, security_group_rule_id: str) -> None:
        self._answer_one(req, resp, "security_group_rule", security_groups.rules(_project(req)), security_group_rule_id)

    def on_get_nothing(self, req: falcon.Request, resp: falcon.Response, collection: str) -> None:
        """Collections that clients look through and that are empty here, such as floating addresses."""
        if collection not in EMPTY:
            raise errors.NotFound(f"There are no {collection[:40]} here.")
        answer(resp, {collection.replace("-", "_"): []})

    def on_get_none(self, req: falcon.Request, resp: falcon.Response, collection: str, resource_id: str) -> None:
        raise errors.NotFound(f"There is no {resource_id[:80]!r} among the {collection[:40]}.")

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _answer_all(self, req: falcon.Request, resp: falcon.Response, name: str, documents: Iterable[Document]) -> None:
        """Those that pass the filters of the query, by name and ID, a page of them. Raises errors.Invalid."""
        page = page_of(req, self._settings.max_limit)
        wanted = {key: req.get_param_as_list(key) or [] for key in req.params if key not in (*_PAGING, _ALL_PROJECTS)}
        found = sorted((each for each in documents if _passes(each, wanted)), key=lambda each: (each.get("name", ""), each["id"]))
        ids = [each["id"] for each in found]
        if page.marker is not None and page.marker not in ids:
            raise errors.Invalid(f"marker: {page.marker[:80]!r} could not be found")
        start = 0 if page.marker is None else ids.index(page.marker) + 1
        fields = req.get_param_as_list("fields")
        shown = found[start : start + page.limit]
        document: Document = {name: [_only(each, fields) for each in shown]}
        if shown and len(found) > start + page.limit:
            document[f"{name}_links"] = [_next(req, shown[-1]["id"])]
        answer(resp, document)

    def _answer_one(
        self, req: falcon.Request, resp: falcon.Response, name: str, documents: Iterable[Document], wanted: str
    ) -> None:
        for document in documents:
            if document["id"] == wanted:
                answer(resp, {name: _only(document, req.get_param_as_list("fields"))})
                return
        raise errors.NotFound(f"{name.capitalize()} {wanted[:80]} could not be found.")

    def _networks(self, call: Call) -> list[Document]:
        return [_network(network, call) for network in self._catalog.networks(call).values()]

    def _subnets(self, call: Call) -> list[Document]:
        return [_subnet(subnet, network) for network in self._catalog.networks(call).values() for subnet in network.subnets]

    def _ports(self, call: Call, devices: Sequence[str] = ()) -> list[Document]:
        """Of the caller's servers, or of those with these uuids."""
        found: list[Document] = []
        for servers in _pages(self._database.read, call, devices):
            uuids = [server.uuid for server in servers]
            own = self._database.read(addresses.ports_of, uuids)
            opened = self._database.read(operations.open_for, uuids)
            for server in servers:
                found += [
                    _port(server, port, self._catalog.network(port.network_id))
                    | {"status": ports.state_of(server, port, opened.get(server.uuid))}
                    for port in own.get(server.uuid, ())
                ]
        return found


EMPTY = ("floatingips", "routers", "extensions", "trunks", "agents", "subnetpools", "address-scopes", "qos-policies")
"""Collections of a network service that have nothing here."""


def _project(req: falcon.Request) -> str:
    """Whose security group is meant: the caller's project, or for a caller who sees all projects the one that the query names."""
    call = calls.of(req)
    asked: str | None = req.get_param("project_id") or req.get_param("tenant_id")
    return asked if asked and call.scope is None else call.context.project_id


def _pages(read: Callable[..., Any], call: Call, uuids: Sequence[str]) -> Iterable[list[Server]]:
    marker: str | None = None
    while True:
        query = mappings.ServerQuery(
            project_id=call.scope, uuids=tuple(uuids), limit=_SERVERS_PAGE, marker=marker, sort=(("uuid", "asc"),)
        )
        page: list[Server] = read(mappings.list_, query)
        yield page
        if len(page) < _SERVERS_PAGE:
            return
        marker = page[-1].uuid


def _passes(document: Document, wanted: Mapping[str, list[str]]) -> bool:
    """Whether each field that is named has one of the values. Raises errors.Invalid for a field that there is not."""
    for key, values in wanted.items():
        if key not in document:
            raise errors.Invalid(f"{key[:40]}: is not a field to filter by; there are {', '.join(sorted(document))}")
        if _text(document[key]) not in [value.lower() if value.lower() in ("true", "false") else value for value in values]:
            return False
    return True


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _only(document: Document, fields: list[str] | None) -> Document:
    return document if not fields else {name: value for name, value in document.items() if name in fields}


def _network(network: Network, call: Call) -> Document:
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


def _subnet(subnet: Subnet, network: Network) -> Document:
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
        "ip_version": subnet.version,
        "cidr": subnet.cidr,
        "gateway_ip": subnet.gateway,
        "allocation_pools": [{"start": first, "end": last} for first, last in ranges],
        "dns_nameservers": list(subnet.dns),
        "host_routes": [],
        "enable_dhcp": False,
        "tags": [],
    }


def _port(server: Server, port: Port, network: Network | None) -> Document:
    created = server_view.iso(server.created_at)
    return {
        "id": ports.port_id(server.uuid, port),
        "name": "",
        "description": "",
        "project_id": server.project_id,
        "tenant_id": server.project_id,
        "network_id": port.network_id,
        "device_id": server.uuid,
        "device_owner": f"compute:{server.availability_zone or ''}",
        "mac_address": port.mac,
        "fixed_ips": ports.fixed_ips(port, network),
        "admin_state_up": True,
        "port_security_enabled": False,
        "security_groups": [security_groups.id_of(server.project_id)],
        "tags": [],
        "created_at": created,
        "updated_at": created,
    }


def _next(req: falcon.Request, marker: str) -> dict[str, str]:
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key != "marker"]
    return {"rel": "next", "href": f"{calls.of(req).prefix}{req.path}?{urlencode([*query, ('marker', marker)])}"}


def _path(name: str) -> str:
    return name.replace("_", "-")


def _link(address: str) -> dict[str, str]:
    return {"rel": "self", "href": address}
