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

    def holds(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)


def _of(
    methods: str, *paths: str, since: Version = FIRST, until: Version | None = None, gone: bool = False, why: str = ""
) -> dict[tuple[str, str], KnownOperation]:
    known = KnownOperation(since=since, until=until, gone=gone, why=why)
    return {(method, path): known for path in paths for method in methods.split()}


ROUTES: dict[tuple[str, str], KnownOperation] = {
    **_of("GET", "/extensions", "/extensions/{}"),
    **_of("GET POST", "/flavors"),
    **_of("GET", "/flavors/detail"),
    **_of("GET DELETE", "/flavors/{}"),
    **_of("PUT", "/flavors/{}", since=(2, 55)),
    **_of("POST", "/flavors/{}/action"),
    **_of("GET POST", "/flavors/{}/os-extra_specs"),
    **_of("GET PUT DELETE", "/flavors/{}/os-extra_specs/{}"),
    **_of("GET", "/flavors/{}/os-flavor-access"),
    **_of("GET", "/images", "/images/detail", until=_PROXIED),
    **_of("GET DELETE", "/images/{}", until=_PROXIED),
    **_of("GET POST PUT", "/images/{}/metadata", until=(2, 38)),
    **_of("GET PUT DELETE", "/images/{}/metadata/{}", until=(2, 38)),
    **_of("GET", "/limits"),
    **_of("GET POST", "/os-agents", gone=True),
    **_of("PUT DELETE", "/os-agents/{}", gone=True),
    **_of("GET POST", "/os-aggregates"),
    **_of("GET PUT DELETE", "/os-aggregates/{}"),
    **_of("POST", "/os-aggregates/{}/action"),
    **_of("POST", "/os-aggregates/{}/images", since=(2, 81)),
    **_of("POST", "/os-assisted-volume-snapshots"),
    **_of("DELETE", "/os-assisted-volume-snapshots/{}"),
    **_of("GET", "/os-availability-zone", "/os-availability-zone/detail"),
    **_of("GET POST", "/os-baremetal-nodes", until=_PROXIED),
    **_of("GET DELETE", "/os-baremetal-nodes/{}", until=_PROXIED),
    **_of("POST", "/os-baremetal-nodes/{}/action", until=_PROXIED),
    **_of("GET POST", "/os-cells", gone=True),
    **_of("GET", "/os-cells/capacities", "/os-cells/detail", "/os-cells/info", "/os-cells/{}/capacities", gone=True),
    **_of("POST", "/os-cells/sync_instances", gone=True),
    **_of("GET PUT DELETE", "/os-cells/{}", gone=True),
    **_of("POST", "/os-certificates", gone=True),
    **_of("GET", "/os-certificates/{}", gone=True),
    **_of("GET POST", "/os-cloudpipe", gone=True),
    **_of("PUT", "/os-cloudpipe/{}", gone=True),
    **_of("GET", "/os-console-auth-tokens/{}"),
    **_of("GET", "/os-fixed-ips/{}", gone=True),
    **_of("POST", "/os-fixed-ips/{}/action", gone=True),
    **_of("GET", "/os-floating-ip-dns", gone=True),
    **_of("PUT DELETE", "/os-floating-ip-dns/{}", gone=True),
    **_of("GET PUT DELETE", "/os-floating-ip-dns/{}/entries/{}", gone=True),
    **_of("GET", "/os-floating-ip-pools", until=_PROXIED),
    **_of("GET POST", "/os-floating-ips", until=_PROXIED),
    **_of("GET DELETE", "/os-floating-ips/{}", until=_PROXIED),
    **_of("GET POST", "/os-floating-ips-bulk", gone=True),
    **_of("GET PUT", "/os-floating-ips-bulk/{}", gone=True),
    **_of("GET", "/os-fping", "/os-fping/{}", gone=True),
    **_of("GET", "/os-hosts", until=_HOSTS),
    **_of("GET PUT", "/os-hosts/{}", until=_HOSTS),
    **_of("GET", "/os-hosts/{}/reboot", "/os-hosts/{}/shutdown", "/os-hosts/{}/startup", until=_HOSTS),
    **_of("GET", "/os-hypervisors", "/os-hypervisors/detail", "/os-hypervisors/{}"),
    **_of("GET", "/os-hypervisors/statistics", "/os-hypervisors/{}/uptime", until=(2, 87)),
    **_of("GET", "/os-hypervisors/{}/search", "/os-hypervisors/{}/servers", until=(2, 52)),
    **_of("GET", "/os-instance_usage_audit_log", "/os-instance_usage_audit_log/{}"),
    **_of("GET POST", "/os-keypairs"),
    **_of("GET DELETE", "/os-keypairs/{}"),
    **_of("GET", "/os-migrations"),
    **_of("GET", "/os-networks", "/os-networks/{}", "/os-tenant-networks", "/os-tenant-networks/{}", until=_PROXIED),
    **_of("POST", "/os-networks", "/os-networks/add", "/os-networks/{}/action", "/os-tenant-networks", gone=True),
    **_of("DELETE", "/os-networks/{}", "/os-tenant-networks/{}", gone=True),
    **_of("GET PUT", "/os-quota-class-sets/{}"),
    **_of("GET PUT DELETE", "/os-quota-sets/{}"),
    **_of("GET", "/os-quota-sets/{}/detail", "/os-quota-sets/{}/defaults"),
    **_of("GET POST", "/os-security-group-default-rules", gone=True),
    **_of("GET DELETE", "/os-security-group-default-rules/{}", gone=True),
    **_of("POST", "/os-security-group-rules", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_of("DELETE", "/os-security-group-rules/{}", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_of("GET", "/os-security-groups", "/os-security-groups/{}", until=_PROXIED),
    **_of("POST", "/os-security-groups", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_of("PUT DELETE", "/os-security-groups/{}", until=_PROXIED, why=_GROUPS_UNCHANGED),
    **_of("POST", "/os-server-external-events"),
    **_of("GET POST", "/os-server-groups"),
    **_of("GET DELETE", "/os-server-groups/{}"),
    **_of("GET", "/os-services"),
    **_of("PUT DELETE", "/os-services/{}"),
    **_of("GET", "/os-simple-tenant-usage", "/os-simple-tenant-usage/{}"),
    **_of("GET POST", "/os-snapshots", "/os-volumes", until=_PROXIED),
    **_of("GET", "/os-snapshots/detail", "/os-volumes/detail", until=_PROXIED),
    **_of("GET DELETE", "/os-snapshots/{}", "/os-volumes/{}", until=_PROXIED),
    **_of("GET POST", "/os-volumes_boot", until=(2, 102)),
    **_of("GET", "/os-volumes_boot/detail", until=(2, 102)),
    **_of("GET PUT DELETE", "/os-volumes_boot/{}", until=(2, 102)),
    **_of("POST", "/os-volumes_boot/{}/action", until=(2, 102)),
    **_of("GET POST", "/servers"),
    **_of("GET", "/servers/detail"),
    **_of("GET PUT DELETE", "/servers/{}"),
    **_of("POST", "/servers/{}/action"),
    **_of("GET POST", "/servers/{}/consoles", gone=True),
    **_of("GET DELETE", "/servers/{}/consoles/{}", gone=True),
    **_of("GET", "/servers/{}/diagnostics"),
    **_of("GET", "/servers/{}/ips", "/servers/{}/ips/{}"),
    **_of("GET POST PUT", "/servers/{}/metadata"),
    **_of("GET PUT DELETE", "/servers/{}/metadata/{}"),
    **_of("GET", "/servers/{}/migrations", "/servers/{}/migrations/{}", since=(2, 23)),
    **_of("DELETE", "/servers/{}/migrations/{}", since=(2, 24)),
    **_of("POST", "/servers/{}/migrations/{}/action", since=(2, 22)),
    **_of("GET", "/servers/{}/os-instance-actions", "/servers/{}/os-instance-actions/{}"),
    **_of("GET POST", "/servers/{}/os-interface"),
    **_of("GET DELETE", "/servers/{}/os-interface/{}"),
    **_of("GET", "/servers/{}/os-security-groups"),
    **_of("GET DELETE", "/servers/{}/os-server-password"),
    **_of("GET", "/servers/{}/os-virtual-interfaces", gone=True),
    **_of("GET POST", "/servers/{}/os-volume_attachments"),
    **_of("GET PUT DELETE", "/servers/{}/os-volume_attachments/{}"),
    **_of("POST", "/servers/{}/remote-consoles", since=(2, 6)),
    **_of("GET POST", "/servers/{}/shares", since=(2, 97)),
    **_of("GET DELETE", "/servers/{}/shares/{}", since=(2, 97)),
    **_of("GET PUT DELETE", "/servers/{}/tags", "/servers/{}/tags/{}", since=(2, 26)),
    **_of("GET", "/servers/{}/topology", since=(2, 78)),
    **_of("GET", "/versions/{}"),
}
"""Every operation below /v2.1 by method and path; ``{}`` stands for one part."""


def _named(names: str, since: Version = FIRST, until: Version | None = None, *, gone: bool = False) -> dict[str, KnownOperation]:
    return dict.fromkeys(names.split(), KnownOperation(since=since, until=until, gone=gone))


SERVER_ACTIONS: dict[str, KnownOperation] = {
    **_named("addSecurityGroup removeSecurityGroup changePassword createBackup createImage injectNetworkInfo os-resetState"),
    **_named("lock unlock pause unpause suspend resume rescue unrescue restore forceDelete os-start os-stop reboot rebuild"),
    **_named("resize confirmResize revertResize migrate os-migrateLive evacuate shelve shelveOffload unshelve os-getConsoleOutput"),
    **_named("addFixedIp removeFixedIp addFloatingIp removeFloatingIp", until=(2, 43)),
    **_named("os-getVNCConsole os-getSPICEConsole os-getSerialConsole", until=(2, 5)),
    **_named("trigger_crash_dump", since=(2, 17)),
    **_named("resetNetwork os-getRDPConsole", gone=True),
}
"""Every action of ``POST /servers/{id}/action`` by name."""

COLLECTIONS = frozenset(path.split("/")[1] for _, path in ROUTES) | {"superconductor"}
"""First words of paths after /v2.1; a word before one of them is a project ID."""

_IN_PARTS: dict[tuple[str, ...], str] = {tuple(path.split("/")[1:]): path for _, path in ROUTES}
_METHODS: dict[str, tuple[str, ...]] = {
    path: tuple(method for method, other in ROUTES if other == path) for path in _IN_PARTS.values()
}


def template(path: str) -> str | None:
    """The template in ``ROUTES`` of a path such as ``/servers/6``, without a version; None for a path that is not known."""
    parts = path.split("/")[1:]
    candidates: list[tuple[str, ...]] = [()]
    for part in parts:  # a word stands before a parameter, as in a router
        candidates = [(*found, each) for found in candidates for each in (part, "{}") if part]
        candidates = [found for found in candidates if any(known[: len(found)] == found for known in _IN_PARTS)]
    return next((_IN_PARTS[found] for found in candidates if found in _IN_PARTS), None)


def template_of_route(route: str) -> str:
    """A route of the application such as ``/v2.1/servers/{server_id}``, written as in ``ROUTES``."""
    return re.sub(r"\{[^}]*\}", "{}", route.removeprefix("/v2.1"))


def check(what: str, known: KnownOperation | None, version: Version) -> None:
    """For an operation with a handler. Raises errors.NotFound if the Compute API does not have it in this version."""
    if known is not None and not known.holds(version):
        raise _missing(what, version)


def refuse(method: str, path: str, version: Version) -> None:
    """For an operation without a handler. Raises what the caller is told; returns for an operation that no version knows.

    Raises errors.NotOffered, also for a change below ``/network``, errors.NotFound in a version without it, falcon.HTTPGone.
    """
    if path.startswith("/network/v2.0/security-group") and method not in ("GET", "HEAD", "OPTIONS"):
        raise errors.NotOffered(_GROUPS_UNCHANGED)
    if path.startswith("/network/") and method not in ("GET", "HEAD", "OPTIONS"):
        raise errors.NotOffered(_network_refusal(path))
    _refuse(f"{method} {path[:200]}", ROUTES.get((method, template(path.removeprefix("/v2.1")) or "")), version)


def refuse_action(name: str, version: Version) -> None:
    """The same for an action on servers."""
    _refuse(f"The action {name[:80]}", SERVER_ACTIONS.get(name), version)


def unrouted(req: falcon.Request, resp: falcon.Response, **_: Any) -> None:
    """Falcon's sink for paths without a handler. Raises errors.NotOffered and so on, or falcon's errors for unknown paths."""
    refuse(req.method, req.path, req.context.call.version)
    found = template(req.path.removeprefix("/v2.1"))
    if found is not None:
        raise falcon.HTTPMethodNotAllowed(_METHODS[found])
    raise falcon.HTTPNotFound


def _refuse(what: str, known: KnownOperation | None, version: Version) -> None:
    if known is None:
        return
    if known.gone:
        raise falcon.HTTPGone(description=f"{what} was removed from the Compute API.")
    if not known.holds(version):
        raise _missing(what, version)
    raise errors.NotOffered(known.why or f"{what} is an operation of the Compute API that this service does not offer.")


def _network_refusal(path: str) -> str:
    """Why nothing is changed at this path of ``/network``."""
    collection = path.removeprefix("/network/v2.0/").partition("/")[0]
    if collection in ("networks", "subnets"):
        return "Networks are read-only here: operators make them with 'superconductor network create'."
    if collection == "quotas":
        return "Quotas of networks are not set by project: '[quota] ports' of the API's configuration limits the ports of each."
    return f"{collection[:40]}: this service has none, and none can be made."


def _missing(what: str, version: Version) -> errors.NotFound:
    return errors.NotFound(f"{what} does not exist in version {microversions.text(version)} of the Compute API.")
