"""``/extensions``: names by which clients of 2.1 ask what is served; the Compute API itself has all of its parts in one version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import falcon

from api.http.versions import answer
from objects import errors
from objects.base import Object

ALWAYS = ""


class Extension(Object, frozen=True, kw_only=True):
    """``needs``: what must be served for it, as ``METHOD /path`` or ``action NAME``."""

    alias: str
    name: str
    needs: str
    about: str


def _of(alias: str, name: str, needs: str, about: str) -> Extension:
    return Extension(alias=alias, name=name, needs=needs, about=about)


EXTENSIONS = (
    _of("OS-DCF", "DiskConfig", ALWAYS, "How the disk of a server is partitioned."),
    _of("OS-EXT-AZ", "ExtendedAvailabilityZone", ALWAYS, "The availability zone of a server."),
    _of("OS-EXT-IPS", "ExtendedIps", ALWAYS, "The type of an address."),
    _of("OS-EXT-IPS-MAC", "ExtendedIpsMac", ALWAYS, "The MAC of an address."),
    _of("OS-EXT-SRV-ATTR", "ExtendedServerAttributes", ALWAYS, "Host and names of a server, for administrators."),
    _of("OS-EXT-STS", "ExtendedStatus", ALWAYS, "The states of a server."),
    _of("OS-FLV-DISABLED", "FlavorDisabled", ALWAYS, "Whether a flavor is disabled."),
    _of("OS-FLV-EXT-DATA", "FlavorExtraData", ALWAYS, "The ephemeral disk of a flavor."),
    _of("OS-SCH-HNT", "SchedulerHints", ALWAYS, "Hints to the scheduler at boot."),
    _of("OS-SRV-USG", "ServerUsage", ALWAYS, "When a server was launched and ended."),
    _of("os-admin-actions", "AdminActions", "action os-resetState", "Actions of administrators."),
    _of("os-admin-password", "AdminPassword", "action changePassword", "Changes of a server's password."),
    _of("os-aggregates", "Aggregates", "GET /os-aggregates", "Aggregates of hosts."),
    _of("os-attach-interfaces", "AttachInterfaces", "GET /servers/{}/os-interface", "The network interfaces of a server."),
    _of("os-availability-zone", "AvailabilityZone", "GET /os-availability-zone", "Availability zones."),
    _of("os-block-device-mapping-v2-boot", "BlockDeviceMappingV2Boot", ALWAYS, "Block devices at boot."),
    _of("os-config-drive", "ConfigDrive", ALWAYS, "Config drives."),
    _of("os-console-auth-tokens", "ConsoleAuthTokens", "GET /os-console-auth-tokens/{}", "Tokens of consoles."),
    _of("os-console-output", "ConsoleOutput", "action os-getConsoleOutput", "The console output of a server."),
    _of("os-consoles", "Consoles", "POST /servers/{}/remote-consoles", "Consoles of servers."),
    _of("os-create-backup", "CreateBackup", "action createBackup", "Backups of a server."),
    _of("os-deferred-delete", "DeferredDelete", "action restore", "Servers that can be restored after their delete."),
    _of("os-evacuate", "Evacuate", "action evacuate", "Evacuation from a dead host."),
    _of("os-extended-volumes", "ExtendedVolumes", ALWAYS, "The volumes of a server."),
    _of("os-flavor-access", "FlavorAccess", "GET /flavors/{}/os-flavor-access", "The projects that may use a flavor."),
    _of("os-flavor-extra-specs", "FlavorExtraSpecs", "GET /flavors/{}/os-extra_specs", "The extra specs of a flavor."),
    _of("os-flavor-manage", "FlavorManage", "POST /flavors", "Changes of flavors."),
    _of("os-flavor-rxtx", "FlavorRxtx", ALWAYS, "The bandwidth factor of a flavor."),
    _of("os-flavor-swap", "FlavorSwap", ALWAYS, "The swap disk of a flavor."),
    _of("os-hosts", "Hosts", "GET /os-hosts", "Hosts."),
    _of("os-hypervisors", "Hypervisors", "GET /os-hypervisors", "Hypervisors."),
    _of("os-instance-actions", "InstanceActions", "GET /servers/{}/os-instance-actions", "The requests for a server."),
    _of("os-keypairs", "Keypairs", "GET /os-keypairs", "Public keys of users."),
    _of("os-lock-server", "LockServer", "action lock", "Locks of servers."),
    _of("os-migrate-server", "MigrateServer", "action migrate", "Cold and live migration."),
    _of("os-migrations", "Migrations", "GET /os-migrations", "Moves of servers."),
    _of("os-multiple-create", "MultipleCreate", ALWAYS, "Several servers in one request."),
    _of("os-pause-server", "PauseServer", "action pause", "Pausing servers."),
    _of("os-quota-class-sets", "QuotaClasses", "GET /os-quota-class-sets/{}", "Default quotas."),
    _of("os-quota-sets", "Quotas", "GET /os-quota-sets/{}", "Quotas of projects."),
    _of("os-rescue", "Rescue", "action rescue", "Rescue of servers."),
    _of("os-server-diagnostics", "ServerDiagnostics", "GET /servers/{}/diagnostics", "What a server uses."),
    _of("os-server-external-events", "ServerExternalEvents", "POST /os-server-external-events", "Events of other services."),
    _of("os-server-groups", "ServerGroups", "GET /os-server-groups", "Server groups."),
    _of("os-server-list-multi-status", "ServerListMultiStatus", ALWAYS, "Several statuses in one list."),
    _of("os-server-password", "ServerPassword", "GET /servers/{}/os-server-password", "The password that a guest has sent."),
    _of("os-server-sort-keys", "ServerSortKeys", ALWAYS, "Sorted lists of servers."),
    _of("os-server-start-stop", "ServerStartStop", "action os-start", "Starting and stopping servers."),
    _of("os-services", "Services", "GET /os-services", "Services of hosts."),
    _of("os-shelve", "Shelve", "action shelve", "Shelving servers."),
    _of("os-simple-tenant-usage", "SimpleTenantUsage", "GET /os-simple-tenant-usage", "What projects have used."),
    _of("os-suspend-server", "SuspendServer", "action suspend", "Suspending servers."),
    _of("os-used-limits", "UsedLimits", ALWAYS, "Uses of quotas."),
    _of("os-user-data", "UserData", ALWAYS, "User data at boot."),
)
"""Names of the Compute API. The others are of parts that are never served here."""


class Extensions:
    """Those that are served. The method with the suffix ``one`` is of one, by its alias."""

    def __init__(self, serves: Callable[[str], bool]) -> None:
        """``serves``: whether an operation written as in ``Extension.needs`` is served."""
        self._serves = serves

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"extensions": [_shown(each) for each in EXTENSIONS if self._has(each)]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, alias: str) -> None:
        found = next((each for each in EXTENSIONS if each.alias == alias and self._has(each)), None)
        if found is None:
            raise errors.NotFound(f"There is no extension {alias[:80]!r}.")
        answer(resp, {"extension": _shown(found)})

    def _has(self, extension: Extension) -> bool:
        return extension.needs == ALWAYS or self._serves(extension.needs)


def _shown(extension: Extension) -> dict[str, Any]:
    return {
        "alias": extension.alias,
        "name": extension.name,
        "description": extension.about,
        "links": [],
        "namespace": "http://docs.openstack.org/compute/ext/fake_xml",
        "updated": "2014-12-03T00:00:00Z",
    }
