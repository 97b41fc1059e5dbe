"""``/extensions``: names by which clients of 2.1 ask what is served; the Compute API itself has all of its parts in one version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import falcon

from api.http.call import send_json
from objects import errors
from objects.base import Object

ALWAYS = ""


class Extension(Object, frozen=True, kw_only=True):
    """``needs``: what must be served for it, as ``METHOD /path`` or ``action NAME``."""

    alias: str
    name: str
    needs: str
    about: str


def _define_extension(alias: str, name: str, needs: str, about: str) -> Extension:
    return Extension(alias=alias, name=name, needs=needs, about=about)


EXTENSIONS = (
    _define_extension("OS-DCF", "DiskConfig", ALWAYS, "How the disk of a server is partitioned."),
    _define_extension("OS-EXT-AZ", "ExtendedAvailabilityZone", ALWAYS, "The availability zone of a server."),
    _define_extension("OS-EXT-IPS", "ExtendedIps", ALWAYS, "The type of an address."),
    _define_extension("OS-EXT-IPS-MAC", "ExtendedIpsMac", ALWAYS, "The MAC of an address."),
    _define_extension("OS-EXT-SRV-ATTR", "ExtendedServerAttributes", ALWAYS, "Host and names of a server, for administrators."),
    _define_extension("OS-EXT-STS", "ExtendedStatus", ALWAYS, "The states of a server."),
    _define_extension("OS-FLV-DISABLED", "FlavorDisabled", ALWAYS, "Whether a flavor is disabled."),
    _define_extension("OS-FLV-EXT-DATA", "FlavorExtraData", ALWAYS, "The ephemeral disk of a flavor."),
    _define_extension("OS-SCH-HNT", "SchedulerHints", ALWAYS, "Hints to the scheduler at boot."),
    _define_extension("OS-SRV-USG", "ServerUsage", ALWAYS, "When a server was launched and ended."),
    _define_extension("os-admin-actions", "AdminActions", "action os-resetState", "Actions of administrators."),
    _define_extension("os-admin-password", "AdminPassword", "action changePassword", "Changes of a server's password."),
    _define_extension("os-aggregates", "Aggregates", "GET /os-aggregates", "Aggregates of hosts."),
    _define_extension(
        "os-attach-interfaces", "AttachInterfaces", "GET /servers/{}/os-interface", "The network interfaces of a server."
    ),
    _define_extension("os-availability-zone", "AvailabilityZone", "GET /os-availability-zone", "Availability zones."),
    _define_extension("os-block-device-mapping-v2-boot", "BlockDeviceMappingV2Boot", ALWAYS, "Block devices at boot."),
    _define_extension("os-config-drive", "ConfigDrive", ALWAYS, "Config drives."),
    _define_extension("os-console-auth-tokens", "ConsoleAuthTokens", "GET /os-console-auth-tokens/{}", "Tokens of consoles."),
    _define_extension("os-console-output", "ConsoleOutput", "action os-getConsoleOutput", "The console output of a server."),
    _define_extension("os-consoles", "Consoles", "POST /servers/{}/remote-consoles", "Consoles of servers."),
    _define_extension("os-create-backup", "CreateBackup", "action createBackup", "Backups of a server."),
    _define_extension("os-deferred-delete", "DeferredDelete", "action restore", "Servers that can be restored after their delete."),
    _define_extension("os-evacuate", "Evacuate", "action evacuate", "Evacuation from a dead host."),
    _define_extension("os-extended-volumes", "ExtendedVolumes", ALWAYS, "The volumes of a server."),
    _define_extension(
        "os-flavor-access", "FlavorAccess", "GET /flavors/{}/os-flavor-access", "The projects that may use a flavor."
    ),
    _define_extension(
        "os-flavor-extra-specs", "FlavorExtraSpecs", "GET /flavors/{}/os-extra_specs", "The extra specs of a flavor."
    ),
    _define_extension("os-flavor-manage", "FlavorManage", "POST /flavors", "Changes of flavors."),
    _define_extension("os-flavor-rxtx", "FlavorRxtx", ALWAYS, "The bandwidth factor of a flavor."),
    _define_extension("os-flavor-swap", "FlavorSwap", ALWAYS, "The swap disk of a flavor."),
    _define_extension("os-hosts", "Hosts", "GET /os-hosts", "Hosts."),
    _define_extension("os-hypervisors", "Hypervisors", "GET /os-hypervisors", "Hypervisors."),
    _define_extension(
        "os-instance-actions", "InstanceActions", "GET /servers/{}/os-instance-actions", "The requests for a server."
    ),
    _define_extension("os-keypairs", "Keypairs", "GET /os-keypairs", "Public keys of users."),
    _define_extension("os-lock-server", "LockServer", "action lock", "Locks of servers."),
    _define_extension("os-migrate-server", "MigrateServer", "action migrate", "Cold and live migration."),
    _define_extension("os-migrations", "Migrations", "GET /os-migrations", "Moves of servers."),
    _define_extension("os-multiple-create", "MultipleCreate", ALWAYS, "Several servers in one request."),
    _define_extension("os-pause-server", "PauseServer", "action pause", "Pausing servers."),
    _define_extension("os-quota-class-sets", "QuotaClasses", "GET /os-quota-class-sets/{}", "Default quotas."),
    _define_extension("os-quota-sets", "Quotas", "GET /os-quota-sets/{}", "Quotas of projects."),
    _define_extension("os-rescue", "Rescue", "action rescue", "Rescue of servers."),
    _define_extension("os-server-diagnostics", "ServerDiagnostics", "GET /servers/{}/diagnostics", "What a server uses."),
    _define_extension(
        "os-server-external-events", "ServerExternalEvents", "POST /os-server-external-events", "Events of other services."
    ),
    _define_extension("os-server-groups", "ServerGroups", "GET /os-server-groups", "Server groups."),
    _define_extension("os-server-list-multi-status", "ServerListMultiStatus", ALWAYS, "Several statuses in one list."),
    _define_extension(
        "os-server-password", "ServerPassword", "GET /servers/{}/os-server-password", "The password that a guest has sent."
    ),
    _define_extension("os-server-sort-keys", "ServerSortKeys", ALWAYS, "Sorted lists of servers."),
    _define_extension("os-server-start-stop", "ServerStartStop", "action os-start", "Starting and stopping servers."),
    _define_extension("os-services", "Services", "GET /os-services", "Services of hosts."),
    _define_extension("os-shelve", "Shelve", "action shelve", "Shelving servers."),
    _define_extension("os-simple-tenant-usage", "SimpleTenantUsage", "GET /os-simple-tenant-usage", "What projects have used."),
    _define_extension("os-suspend-server", "SuspendServer", "action suspend", "Suspending servers."),
    _define_extension("os-used-limits", "UsedLimits", ALWAYS, "Uses of quotas."),
    _define_extension("os-user-data", "UserData", ALWAYS, "User data at boot."),
)
"""Names of the Compute API. The others are of parts that are never served here."""


class Extensions:
    """Those that are served. The method with the suffix ``one`` is of one, by its alias."""

    def __init__(self, serves: Callable[[str], bool]) -> None:
        """``serves``: whether an operation written as in ``Extension.needs`` is served."""
        self._serves = serves

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        send_json(resp, {"extensions": [_extension_entry(extension) for extension in EXTENSIONS if self._is_served(extension)]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, alias: str) -> None:
        extension = next((known for known in EXTENSIONS if known.alias == alias and self._is_served(known)), None)
        if extension is None:
            raise errors.NotFound(f"There is no extension {alias[:80]!r}.")
        send_json(resp, {"extension": _extension_entry(extension)})

    def _is_served(self, extension: Extension) -> bool:
        return extension.needs == ALWAYS or self._serves(extension.needs)


def _extension_entry(extension: Extension) -> dict[str, Any]:
    return {
        "alias": extension.alias,
        "name": extension.name,
        "description": extension.about,
        "links": [],
        "namespace": "http://docs.openstack.org/compute/ext/fake_xml",
        "updated": "2014-12-03T00:00:00Z",
    }
