"""Every route and server action of the Compute API (Nova 34), and the answer to those that are not served here.

A route or an action of the Compute API without a handler is 501: clients take a 404 after a DELETE as success. It is 404 in
versions in which the Compute API does not have it, served or not. What it has removed from all versions is 410 there and here.
"""

from __future__ import annotations

import re
from typing import Any

import falcon

from api.http import microversions
from api.http.microversions import Version
from objects import errors
from objects.base import Object

FIRST: Version = (2, 1)

CHECKED_FIRST = frozenset(
    {
        ("GET", "/os-hosts/{}/reboot"),
        ("GET", "/os-hosts/{}/shutdown"),
        ("GET", "/os-hosts/{}/startup"),
        ("POST", "/servers/{}/migrations/{}/action"),
    }
)
"""Routes that are not served, with a handler: callers without the right, and for things that are not there, are told that first."""

_PROXIED: Version = (2, 35)
"""The last version with the interfaces to image, volume and network services."""

_HOSTS: Version = (2, 42)

_GROUPS_UNCHANGED = "Security groups cannot be changed: nothing enforces their rules here, so 'default' allows everything."


class KnownOperation(Object, frozen=True, kw_only=True):
    """``since`` and ``until``: the first and last version with it; no ``until``: every newer one. ``gone``: removed from all.

    ``why``: what a caller is told who asks for it; empty: that this service does not offer it.
    """

    since: Version = FIRST
    until: Version | None = None
    gone: bool = False
    why: str = ""

    def is_in(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)


def _known_routes(
    methods: str, *paths: str, since: Version = FIRST, until: Version | None = None, gone: bool = False, why: str = ""
) -> dict[tuple[str, str], KnownOperation]:
    known = KnownOperation(since=since, until=until, gone=gone, why=why)
    return {(method, path): known for path in paths for method in methods.split()}


ROUTES: dict[tuple[str, str], KnownOperation] = {
    **_known_routes("GET", "/extensions", "/extensions/{}"),
    **_known_routes("GET POST", "/flavors"),
    **_known_routes("GET", "/flavors/detail"),
    **_known_routes("GET DELETE", "/flavors/{}"),
    **_known_routes("PUT", "/flavors/{}", since=(2, 55)),
    **_known_routes("POST", "/flavors/{}/action"),
    **_known_routes("GET POST", "/flavors/{}/os-extra_specs"),
    **_known_routes("GET PUT DELETE", "/flavors/{}/os-extra_specs/{}"),
    **_known_routes("GET", "/flavors/{}/os-flavor-access"),
    **_known_routes("GET", "/images", "/images/detail", until=_PROXIED),
    **_known_routes("GET DELETE", "/images/{}", until=_PROXIED),
    **_known_routes("GET POST PUT", "/images/{}/metadata", until=(2, 38)),
    **_known_routes("GET PUT DELETE", "/images/{}/metadata/{}", until=(2, 38)),
    **_known_routes("GET", "/limits"),
    **_known_routes("GET POST", "/os-agents", gone=True),
    **_known_routes("PUT DELETE", "/os-agents/{}", gone=True),
    **_known_routes("GET POST", "/os-aggregates"),
    **_known_routes("GET PUT DELETE", "/os-aggregates/{}"),
    **_known_routes("POST", "/os-aggregates/{}/action"),
    **_known_routes("POST", "/os-aggregates/{}/images", since=(2, 81)),
    **_known_routes("POST", "/os-assisted-volume-snapshots"),
    **_known_routes("DELETE", "/os-assisted-volume-snapshots/{}"),
    **_known_routes("GET", "/os-availability-zone", "/os-availability-zone/detail"),
    **_known_routes("GET POST", "/os-baremetal-nodes", until=_PROXIED),
    **_known_routes("GET DELETE", "/os-baremetal-nodes/{}", until=_PROXIED),
    **_known_routes("POST", "/os-baremetal-nodes/{}/action", until=_PROXIED),
    **_known_routes("GET POST", "/os-cells", gone=True),
    **_known_routes("GET", "/os-cells/capacities", "/os-cells/detail", "/os-cells/info", "/os-cells/{}/capacities", gone=True),
    **_known_routes("POST", "/os-cells/sync_instances", gone=True),
    **_known_routes("GET PUT DELETE", "/os-cells/{}", gone=True),
    **_known_routes("POST", "/os-certificates", gone=True),
    **_known_routes("GET", "/os-certificates/{}", gone=True),
    **_known_routes("GET POST", "/os-cloudpipe", gone=True),
    **_known_routes("PUT", "/os-cloudpipe/{}", gone=True),
    **_known_routes("GET", "/os-console-auth-tokens/{}"),
    **_known_routes("GET", "/os-fixed-ips/{}", gone=True),
    **_known_routes("POST", "/os-fixed-ips/{}/action", gone=True),
    **_known_routes("GET", "/os-floating-ip-dns", gone=True),
    **_known_routes("PUT DELETE", "/os-floating-ip-dns/{}", gone=True),
    **_known_routes("GET PUT DELETE", "/os-floating-ip-dns/{}/entries/{}", gone=True),
    **_known_routes("GET", "/os-floating-ip-pools", until=_PROXIED),
    **_known_routes("GET POST", "/os-floating-ips", until=_PROXIED),
    **_known_routes("GET DELETE", "/os-floating-ips/{}", until=_PROXIED),
    **_known_routes("GET POST", "/os-floating-ips-bulk", gone=True),
    **_known_routes("GET PUT", "/os-floating-ips-bulk/{}", gone=True),
    **_known_routes("GET", "/os-fping", "/os-fping/{}", gone=True),
    **_known_routes("GET", "/os-hosts", until=_HOSTS),
    **_known_routes("GET PUT", "/os-hosts/{}", until=_HOSTS),
    **_known_routes("GET", "/os-hosts/{}/reboot", "/os-hosts/{}/shutdown", "/os-hosts/{}/startup", until=_HOSTS),
    **_known_routes("GET", "/os-hypervisors", "/os-hypervisors/detail", "/os-hypervisors/{}"),
    **_known_routes("GET", "/os-hypervisors/statistics", "/os-hypervisors/{}/uptime", until=(2, 87)),
    **_known_routes("GET", "/os-hypervisors/{}/search", "/os-hypervisors/{}/servers", until=(2, 52)),
    **_known_routes("GET", "/os-instance_usage_audit_log", "/os-instance_usage_audit_log/{}"),
    **_known_routes("GET POST", "/os-keypairs"),
    **_known_routes("GET DELETE", "/os-keypairs/{}"),
    **_known_routes("GET", "/os-migrations"),
    **_known_routes("GET", "/os-networks", "/os-networks/{}", "/os-tenant-networks", "/os-tenant-networks/{}", until=_PROXIED),
    **_known_routes("POST", "/os-networks", "/os-networks/add", "/os-networks/{}/action", "/os-tenant-networks", gone=True),
    **_known_routes("DELETE", "/os-networks/{}", "/os-tenant-networks/{}", gone=True),
    **_known_routes("GET PUT", "/os-quota-class-sets/{}"),
    **_known_routes("GET PUT DELETE", "/os-quota-sets/{}"),
    **_known_routes("GET", "/os-quota-sets/{}/detail", "/os-quota-sets/{}/defaults"),
    **_known_routes("GET POST", "/os-security-group-default-rules", gone=True),
    **_known_routes("GET DELETE", "/os-security-group-default-rules/{}", gone=True),
    **_known_routes("POST", "/os-security-group-rules", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_known_routes("DELETE", "/os-security-group-rules/{}", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_known_routes("GET", "/os-security-groups", "/os-security-groups/{}", until=_PROXIED),
    **_known_routes("POST", "/os-security-groups", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_known_routes("PUT DELETE", "/os-security-groups/{}", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_known_routes("POST", "/os-server-external-events"),
    **_known_routes("GET POST", "/os-server-groups"),
    **_known_routes("GET DELETE", "/os-server-groups/{}"),
    **_known_routes("GET", "/os-services"),
    **_known_routes("PUT DELETE", "/os-services/{}"),
    **_known_routes("GET", "/os-simple-tenant-usage", "/os-simple-tenant-usage/{}"),
    **_known_routes("GET POST", "/os-snapshots", "/os-volumes", until=_PROXIED),
    **_known_routes("GET", "/os-snapshots/detail", "/os-volumes/detail", until=_PROXIED),
    **_known_routes("GET DELETE", "/os-snapshots/{}", "/os-volumes/{}", until=_PROXIED),
    **_known_routes("GET POST", "/os-volumes_boot", until=(2, 102)),
    **_known_routes("GET", "/os-volumes_boot/detail", until=(2, 102)),
    **_known_routes("GET PUT DELETE", "/os-volumes_boot/{}", until=(2, 102)),
    **_known_routes("POST", "/os-volumes_boot/{}/action", until=(2, 102)),
    **_known_routes("GET POST", "/servers"),
    **_known_routes("GET", "/servers/detail"),
    **_known_routes("GET PUT DELETE", "/servers/{}"),
    **_known_routes("POST", "/servers/{}/action"),
    **_known_routes("GET POST", "/servers/{}/consoles", gone=True),
    **_known_routes("GET DELETE", "/servers/{}/consoles/{}", gone=True),
    **_known_routes("GET", "/servers/{}/diagnostics"),
    **_known_routes("GET", "/servers/{}/ips", "/servers/{}/ips/{}"),
    **_known_routes("GET POST PUT", "/servers/{}/metadata"),
    **_known_routes("GET PUT DELETE", "/servers/{}/metadata/{}"),
    **_known_routes("GET", "/servers/{}/migrations", "/servers/{}/migrations/{}", since=(2, 23)),
    **_known_routes("DELETE", "/servers/{}/migrations/{}", since=(2, 24)),
    **_known_routes("POST", "/servers/{}/migrations/{}/action", since=(2, 22)),
    **_known_routes("GET", "/servers/{}/os-instance-actions", "/servers/{}/os-instance-actions/{}"),
    **_known_routes("GET POST", "/servers/{}/os-interface"),
    **_known_routes("GET DELETE", "/servers/{}/os-interface/{}"),
    **_known_routes("GET", "/servers/{}/os-security-groups"),
    **_known_routes("GET DELETE", "/servers/{}/os-server-password"),
    **_known_routes("GET", "/servers/{}/os-virtual-interfaces", gone=True),
    **_known_routes("GET POST", "/servers/{}/os-volume_attachments"),
    **_known_routes("GET PUT DELETE", "/servers/{}/os-volume_attachments/{}"),
    **_known_routes("POST", "/servers/{}/remote-consoles", since=(2, 6)),
    **_known_routes("GET POST", "/servers/{}/shares", since=(2, 97)),
    **_known_routes("GET DELETE", "/servers/{}/shares/{}", since=(2, 97)),
    **_known_routes("GET PUT DELETE", "/servers/{}/tags", "/servers/{}/tags/{}", since=(2, 26)),
    **_known_routes("GET", "/servers/{}/topology", since=(2, 78)),
    **_known_routes("GET", "/versions/{}"),
}
"""Every operation below /v2.1 by method and path; ``{}`` stands for one part."""


def _known_operations(
    names: str, since: Version = FIRST, until: Version | None = None, *, gone: bool = False
) -> dict[str, KnownOperation]:
    return dict.fromkeys(names.split(), KnownOperation(since=since, until=until, gone=gone))


SERVER_ACTIONS: dict[str, KnownOperation] = {
    **_known_operations(
        "addSecurityGroup removeSecurityGroup changePassword createBackup createImage injectNetworkInfo os-resetState"
    ),
    **_known_operations(
        "lock unlock pause unpause suspend resume rescue unrescue restore forceDelete os-start os-stop reboot rebuild"
    ),
    **_known_operations(
        "resize confirmResize revertResize migrate os-migrateLive evacuate shelve shelveOffload unshelve os-getConsoleOutput"
    ),
    **_known_operations("addFixedIp removeFixedIp addFloatingIp removeFloatingIp", until=(2, 43)),
    **_known_operations("os-getVNCConsole os-getSPICEConsole os-getSerialConsole", until=(2, 5)),
    **_known_operations("trigger_crash_dump", since=(2, 17)),
    **_known_operations("resetNetwork os-getRDPConsole", gone=True),
}
"""Every action of ``POST /servers/{id}/action`` by name."""

COLLECTIONS = frozenset(path.split("/")[1] for _, path in ROUTES) | {"superconductor"}
"""First words of paths after /v2.1; a word before one of them is a project ID."""

_IN_PARTS: dict[tuple[str, ...], str] = {tuple(path.split("/")[1:]): path for _, path in ROUTES}
_METHODS: dict[str, tuple[str, ...]] = {
    path: tuple(method for method, other in ROUTES if other == path) for path in _IN_PARTS.values()
}


def find_template(path: str) -> str | None:
    """The template in ``ROUTES`` of a path such as ``/servers/6``, without a version; None for a path that is not known."""
    parts = path.split("/")[1:]
    candidates: list[tuple[str, ...]] = [()]
    for part in parts:  # a word stands before a parameter, as in a router
        candidates = [(*prefix, word) for prefix in candidates for word in (part, "{}") if part]
        candidates = [prefix for prefix in candidates if any(known[: len(prefix)] == prefix for known in _IN_PARTS)]
    return next((_IN_PARTS[prefix] for prefix in candidates if prefix in _IN_PARTS), None)


def template_of_route(route: str) -> str:
    """A route of the application such as ``/v2.1/servers/{server_id}``, written as in ``ROUTES``."""
    return re.sub(r"\{[^}]*\}", "{}", route.removeprefix("/v2.1"))


def check_version(operation: str, known: KnownOperation | None, version: Version) -> None:
    """For an operation with a handler. Raises errors.NotFound if the Compute API does not have it in this version."""
    if known is not None and not known.is_in(version):
        raise _missing_in_version(operation, version)


def refuse_unserved(method: str, path: str, version: Version) -> None:
    """For an operation without a handler. Raises what the caller is told; returns for an operation that no version knows.

    Raises errors.NotOffered, also for a change below ``/network``, errors.NotFound in a version without it, falcon.HTTPGone.
    """
    if path.startswith("/network/v2.0/security-group") and method not in ("GET", "HEAD", "OPTIONS"):
        raise errors.NotOffered(_GROUPS_UNCHANGED)
    if path.startswith("/network/") and method not in ("GET", "HEAD", "OPTIONS"):
        raise errors.NotOffered(_network_refusal(path))
    _refuse_known(f"{method} {path[:200]}", ROUTES.get((method, find_template(path.removeprefix("/v2.1")) or "")), version)


def refuse_action(name: str, version: Version) -> None:
    """The same for an action on servers."""
    _refuse_known(f"The action {name[:80]}", SERVER_ACTIONS.get(name), version)


def refuse_unrouted(req: falcon.Request, resp: falcon.Response, **_: Any) -> None:
    """Falcon's sink for paths without a handler. Raises errors.NotOffered and so on, or falcon's errors for unknown paths."""
    refuse_unserved(req.method, req.path, req.context.call.version)
    known_template = find_template(req.path.removeprefix("/v2.1"))
    if known_template is not None:
        raise falcon.HTTPMethodNotAllowed(_METHODS[known_template])
    raise falcon.HTTPNotFound


def _refuse_known(operation: str, known: KnownOperation | None, version: Version) -> None:
    if known is None:
        return
    if known.gone:
        raise falcon.HTTPGone(description=f"{operation} was removed from the Compute API.")
    if not known.is_in(version):
        raise _missing_in_version(operation, version)
    raise errors.NotOffered(known.why or f"{operation} is an operation of the Compute API that this service does not offer.")


def _network_refusal(path: str) -> str:
    """Why nothing is changed at this path of ``/network``."""
    collection = path.removeprefix("/network/v2.0/").partition("/")[0]
    if collection in ("networks", "subnets"):
        return "Networks are read-only here: operators make them with 'superconductor network create'."
    if collection == "quotas":
        return "Quotas of networks are not set by project: '[quota] ports' of the API's configuration limits the ports of each."
    return f"{collection[:40]}: this service has none, and none can be made."


def _missing_in_version(operation: str, version: Version) -> errors.NotFound:
    return errors.NotFound(f"{operation} does not exist in version {microversions.format_version(version)} of the Compute API.")
