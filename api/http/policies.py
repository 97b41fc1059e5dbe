"""The default policy: oslo.policy rules with the Compute API's names, each with a description.

Names of rules that the Compute API does not have begin with ``superconductor:``.
"""

from __future__ import annotations

import re

from oslo_policy.policy import DocumentedRuleDefault, RuleDefault

ADMIN = "context_is_admin"
"""Callers for whom this holds may see and do everything, with servers, hosts and faults of all projects."""

READER = "project_reader_or_admin"
MEMBER = "project_member_or_admin"

SERVICE = "service_or_admin"

USER_READER = "user_reader_or_admin"
USER_MEMBER = "user_member_or_admin"

PUBLIC = "@"
"""The rule for paths that need no identity: version documents, which clients read without a token."""

RULES: tuple[RuleDefault, ...] = (
    RuleDefault(ADMIN, "role:admin", "An administrator."),
    RuleDefault("project_reader", "role:reader and project_id:%(project_id)s", "May read resources of the project."),
    RuleDefault("project_member", "role:member and project_id:%(project_id)s", "May change resources of the project."),
    RuleDefault(READER, "rule:project_reader or rule:context_is_admin", "Default rule for reading."),
    RuleDefault(MEMBER, "rule:project_member or rule:context_is_admin", "Default rule for changes."),
    RuleDefault(SERVICE, "role:service or rule:context_is_admin", "Default rule for what other services do."),
    RuleDefault(USER_READER, "(role:reader and user_id:%(user_id)s) or rule:context_is_admin", "Reading what belongs to a user."),
    RuleDefault(USER_MEMBER, "(role:member and user_id:%(user_id)s) or rule:context_is_admin", "Changing what belongs to a user."),
)
"""The building blocks of the rules below."""


DOCUMENTED: list[DocumentedRuleDefault] = []
"""One rule for each operation of the API, which the lines below add."""


def _add_rule(name: str, check: str, description: str, operations: str) -> str:
    """Add a rule to ``DOCUMENTED`` and return its name. ``operations``: each as ``METHOD /path``, with commas between them."""
    pairs: list[list[str]] = [operation.split(" ", 1) for operation in re.split(r", (?=[A-Z]+ /)", operations)]
    DOCUMENTED.append(
        DocumentedRuleDefault(name, f"rule:{check}", description, [{"method": method, "path": path} for method, path in pairs])
    )
    return name


def _add_action_rule(name: str, check: str, description: str, actions: str) -> str:
    """The same for actions on servers."""
    return _add_rule(name, check, description, f"POST /servers/{{id}}/action ({actions})")


SERVERS = "os_compute_api:servers:"
LIST = _add_rule(SERVERS + "index", READER, "List servers.", "GET /servers")
LIST_DETAIL = _add_rule(SERVERS + "detail", READER, "List servers in detail.", "GET /servers/detail")
ALL_TENANTS = _add_rule(
    SERVERS + "index:get_all_tenants",
    ADMIN,
    "List servers of all projects, deleted ones too.",
    "GET /servers?all_tenants=1, GET /servers/detail",
)
ALL_FILTERS = _add_rule(
    SERVERS + "allow_all_filters", ADMIN, "Select and sort servers by host.", "GET /servers?host={host}, GET /servers/detail"
)
SHOW = _add_rule(
    SERVERS + "show",
    READER,
    "Show a server. A caller who may show those of another project may show all servers.",
    "GET /servers/{id}",
)
HOST_STATUS = _add_rule(
    SERVERS + "show:host_status", ADMIN, "Show the state of a server's host.", "GET /servers/{id}, GET /servers/detail"
)
CREATE = _add_rule(SERVERS + "create", MEMBER, "Create servers.", "POST /servers")
FORCED_HOST = _add_rule(
    SERVERS + "create:forced_host", ADMIN, "Name the host of a new server, or hosts to leave out.", "POST /servers"
)
ZERO_DISK = _add_rule(
    SERVERS + "create:zero_disk_flavor",
    ADMIN,
    "Build from an image of the store with a flavor whose root disk is 0 GiB. The disk is then as large as the image says.",
    "POST /servers, POST /servers/{id}/action (rebuild)",
)
REQUESTED_HOST = _add_rule(
    "compute:servers:create:requested_destination", ADMIN, "Ask for the host or node of a new server.", "POST /servers"
)
UPDATE = _add_rule(SERVERS + "update", MEMBER, "Change a server's name and description.", "PUT /servers/{id}")
DELETE = _add_rule(
    SERVERS + "delete",
    MEMBER,
    "Delete a server. A caller who may delete those of another project may delete all servers.",
    "DELETE /servers/{id}",
)
METADATA = "os_compute_api:server-metadata:"
METADATA_LIST = _add_rule(METADATA + "index", READER, "List a server's metadata.", "GET /servers/{id}/metadata")
METADATA_SHOW = _add_rule(METADATA + "show", READER, "Show an item of a server's metadata.", "GET /servers/{id}/metadata/{key}")
METADATA_CREATE = _add_rule(METADATA + "create", MEMBER, "Add items to a server's metadata.", "POST /servers/{id}/metadata")
METADATA_REPLACE = _add_rule(METADATA + "update_all", MEMBER, "Replace a server's metadata.", "PUT /servers/{id}/metadata")
METADATA_UPDATE = _add_rule(METADATA + "update", MEMBER, "Set an item of a server's metadata.", "PUT /servers/{id}/metadata/{key}")
METADATA_DELETE = _add_rule(
    METADATA + "delete", MEMBER, "Delete an item of a server's metadata.", "DELETE /servers/{id}/metadata/{key}"
)
TAGS = "os_compute_api:os-server-tags:"
TAG_LIST = _add_rule(TAGS + "index", READER, "List a server's tags.", "GET /servers/{id}/tags")
TAG_SHOW = _add_rule(TAGS + "show", READER, "Ask whether a server has a tag.", "GET /servers/{id}/tags/{tag}")
TAG_REPLACE = _add_rule(TAGS + "update_all", MEMBER, "Replace a server's tags.", "PUT /servers/{id}/tags")
TAG_ADD = _add_rule(TAGS + "update", MEMBER, "Add a tag to a server.", "PUT /servers/{id}/tags/{tag}")
TAG_DELETE_ALL = _add_rule(TAGS + "delete_all", MEMBER, "Delete all tags of a server.", "DELETE /servers/{id}/tags")
TAG_DELETE = _add_rule(TAGS + "delete", MEMBER, "Delete a tag of a server.", "DELETE /servers/{id}/tags/{tag}")
TOPOLOGY = _add_rule("compute:server:topology:index", READER, "Show the NUMA topology of a server.", "GET /servers/{id}/topology")
IP_LIST = _add_rule("os_compute_api:ips:index", READER, "List a server's addresses.", "GET /servers/{id}/ips")
IP_SHOW = _add_rule(
    "os_compute_api:ips:show", READER, "List a server's addresses in one network.", "GET /servers/{id}/ips/{network}"
)
SECURITY_GROUPS = "os_compute_api:os-security-groups:"
SECURITY_GROUP_LIST = _add_rule(
    SECURITY_GROUPS + "list",
    READER,
    "List the security groups that could be removed from a server; there are none.",
    "GET /servers/{server_id}/os-security-groups",
)
SECURITY_GROUP_ADD = _add_action_rule(
    SECURITY_GROUPS + "add", MEMBER, "Add a security group to a server; there is only 'default'.", "addSecurityGroup"
)
SECURITY_GROUP_REMOVE = _add_action_rule(
    SECURITY_GROUPS + "remove", MEMBER, "Remove a security group from a server; it is refused.", "removeSecurityGroup"
)
INTERFACES = "os_compute_api:os-attach-interfaces:"
INTERFACE_LIST = _add_rule(
    INTERFACES + "list", READER, "List a server's network interfaces.", "GET /servers/{server_id}/os-interface"
)
INTERFACE_SHOW = _add_rule(
    INTERFACES + "show", READER, "Show a network interface of a server.", "GET /servers/{server_id}/os-interface/{port_id}"
)
INTERFACE_ATTACH = _add_rule(
    INTERFACES + "create", MEMBER, "Attach a network interface to a server.", "POST /servers/{server_id}/os-interface"
)
INTERFACE_DETACH = _add_rule(
    INTERFACES + "delete", MEMBER, "Detach a network interface.", "DELETE /servers/{server_id}/os-interface/{port_id}"
)
VOLUMES_ATTACHED = "os_compute_api:os-volumes-attachments:"
VOLUME_ATTACHMENT_LIST = _add_rule(
    VOLUMES_ATTACHED + "index",
    READER,
    "List the volumes of a server; there are none.",
    "GET /servers/{server_id}/os-volume_attachments",
)
VOLUME_ATTACHMENT_SHOW = _add_rule(
    VOLUMES_ATTACHED + "show",
    READER,
    "Show a volume of a server; there are none.",
    "GET /servers/{server_id}/os-volume_attachments/{volume_id}",
)
SERVER_PASSWORDS = "os_compute_api:os-server-password:"
SERVER_PASSWORD_SHOW = _add_rule(
    SERVER_PASSWORDS + "show",
    READER,
    "Show the password that a guest has posted; it is empty.",
    "GET /servers/{server_id}/os-server-password",
)
SERVER_PASSWORD_CLEAR = _add_rule(
    SERVER_PASSWORDS + "clear",
    MEMBER,
    "Clear the password that a guest has posted; it is empty.",
    "DELETE /servers/{server_id}/os-server-password",
)
ACT = _add_rule(
    "superconductor:servers:action", READER, "Send an action; the action's own rule must allow it too.", "POST /servers/{id}/action"
)
IGNORE_LOCK = _add_rule(
    "superconductor:servers:ignore_lock",
    ADMIN,
    "Change, delete and act on locked servers.",
    "DELETE /servers/{id}, POST /servers/{id}/action, POST /servers/{id}/metadata, PUT /servers/{id}/tags",
)
LOCK = _add_rule("os_compute_api:os-lock-server:lock", MEMBER, "Lock a server.", "POST /servers/{id}/action (lock)")
UNLOCK = _add_rule("os_compute_api:os-lock-server:unlock", MEMBER, "Unlock a server.", "POST /servers/{id}/action (unlock)")
UNLOCK_OVERRIDE = _add_rule(
    UNLOCK + ":unlock_override", ADMIN, "Unlock a server that somebody else has locked.", "POST /servers/{id}/action (unlock)"
)
START = _add_action_rule(SERVERS + "start", MEMBER, "Start a server.", "os-start")
STOP = _add_action_rule(SERVERS + "stop", MEMBER, "Stop a server.", "os-stop")
REBOOT = _add_action_rule(SERVERS + "reboot", MEMBER, "Reboot a server.", "reboot")
RESIZE = _add_action_rule(SERVERS + "resize", MEMBER, "Resize a server.", "resize")
REBUILD = _add_action_rule(SERVERS + "rebuild", MEMBER, "Rebuild a server from an image.", "rebuild")
CONFIRM_RESIZE = _add_action_rule(SERVERS + "confirm_resize", MEMBER, "Confirm a resize.", "confirmResize")
REVERT_RESIZE = _add_action_rule(SERVERS + "revert_resize", MEMBER, "Revert a resize.", "revertResize")
PAUSE = _add_action_rule("os_compute_api:os-pause-server:pause", MEMBER, "Pause a server.", "pause")
UNPAUSE = _add_action_rule("os_compute_api:os-pause-server:unpause", MEMBER, "Unpause a server.", "unpause")
SUSPEND = _add_action_rule("os_compute_api:os-suspend-server:suspend", MEMBER, "Suspend a server.", "suspend")
RESUME = _add_action_rule("os_compute_api:os-suspend-server:resume", MEMBER, "Resume a server.", "resume")
SHELVE = _add_action_rule("os_compute_api:os-shelve:shelve", MEMBER, "Shelve a server.", "shelve")
SHELVE_OFFLOAD = _add_action_rule(
    "os_compute_api:os-shelve:shelve_offload", ADMIN, "Let a shelved server leave its host.", "shelveOffload"
)
UNSHELVE = _add_action_rule("os_compute_api:os-shelve:unshelve", MEMBER, "Unshelve a server.", "unshelve")
UNSHELVE_TO_HOST = _add_action_rule(UNSHELVE + "_to_host", ADMIN, "Unshelve a server to a certain host.", "unshelve")
CREATE_IMAGE = _add_action_rule(SERVERS + "create_image", MEMBER, "Make an image of a server.", "createImage")
CREATE_BACKUP = _add_action_rule(
    "os_compute_api:os-create-backup", MEMBER, "Make a backup of a server, and remove older ones.", "createBackup"
)
RESCUE = _add_action_rule("os_compute_api:os-rescue", MEMBER, "Boot a server from a rescue image.", "rescue")
UNRESCUE = _add_action_rule("os_compute_api:os-unrescue", MEMBER, "Boot a rescued server from its own disk again.", "unrescue")
CHANGE_PASSWORD = _add_action_rule(
    "os_compute_api:os-admin-password", MEMBER, "Change the administrator's password of a server.", "changePassword"
)
CRASH_DUMP = _add_action_rule(SERVERS + "trigger_crash_dump", MEMBER, "Let a server dump its memory.", "trigger_crash_dump")
MIGRATE = _add_action_rule("os_compute_api:os-migrate-server:migrate", ADMIN, "Migrate a server to another host.", "migrate")
LIVE_MIGRATE = _add_action_rule(
    "os_compute_api:os-migrate-server:migrate_live", ADMIN, "Migrate a running server live to another host.", "os-migrateLive"
)
EVACUATE = _add_action_rule("os_compute_api:os-evacuate", ADMIN, "Evacuate a server from a dead host.", "evacuate")
RESET_STATE = _add_action_rule(
    "os_compute_api:os-admin-actions:reset_state",
    ADMIN,
    "Set a server to ERROR, or bring one back to its power on record.",
    "os-resetState",
)
INJECT_NETWORK_INFO = _add_action_rule(
    "os_compute_api:os-admin-actions:inject_network_info",
    ADMIN,
    "Inject network information into a server, which has no effect.",
    "injectNetworkInfo",
)
FORCE_DELETE = _add_action_rule(
    "os_compute_api:os-deferred-delete:force",
    MEMBER,
    "Delete a server in any state, also one that could be restored.",
    "forceDelete",
)
RESTORE = _add_action_rule("os_compute_api:os-deferred-delete:restore", MEMBER, "Restore a soft-deleted server.", "restore")
CROSS_CELL = _add_action_rule(
    "compute:servers:resize:cross_cell", ADMIN, "Move servers to hosts of other cells.", "resize, migrate, os-migrateLive, evacuate"
)
CONSOLE_OUTPUT = _add_rule(
    "os_compute_api:os-console-output", MEMBER, "Show a server's console output.", "POST /servers/{id}/action (os-getConsoleOutput)"
)
DIAGNOSTICS = _add_rule(
    "os_compute_api:os-server-diagnostics",
    ADMIN,
    "Show what the hypervisor knows of a server.",
    "GET /servers/{server_id}/diagnostics",
)
REMOTE_CONSOLES = _add_rule(
    "os_compute_api:os-remote-consoles",
    MEMBER,
    "Get the URL of a server's remote console.",
    "POST /servers/{id}/remote-consoles, POST /servers/{id}/action (os-getVNCConsole), "
    "POST /servers/{id}/action (os-getSPICEConsole), POST /servers/{id}/action (os-getSerialConsole)",
)
CONSOLE_TOKENS = _add_rule(
    "os_compute_api:os-console-auth-tokens", ADMIN, "Read where the console of a token is.", "GET /os-console-auth-tokens/{token}"
)
ATTRIBUTES = _add_rule(
    "os_compute_api:os-extended-server-attributes",
    ADMIN,
    "See host, node and whole faults of servers.",
    "GET /servers/{id}, GET /servers/detail",
)
MIGRATION_LIST = _add_rule("os_compute_api:os-migrations:index", ADMIN, "List the migrations of all servers.", "GET /os-migrations")
SERVER_MIGRATIONS = SERVERS + "migrations:"
SERVER_MIGRATION_LIST = _add_rule(
    SERVER_MIGRATIONS + "index", ADMIN, "List a server's live migration under way.", "GET /servers/{server_id}/migrations"
)
SERVER_MIGRATION_SHOW = _add_rule(
    SERVER_MIGRATIONS + "show",
    ADMIN,
    "Show a server's live migration under way.",
    "GET /servers/{server_id}/migrations/{migration_id}",
)
SERVER_MIGRATION_ABORT = _add_rule(
    SERVER_MIGRATIONS + "delete", ADMIN, "Abort a live migration.", "DELETE /servers/{server_id}/migrations/{migration_id}"
)
SERVER_MIGRATION_FORCE_COMPLETE = _add_rule(
    SERVER_MIGRATIONS + "force_complete",
    ADMIN,
    "Be told that a live migration completes by itself.",
    "POST /servers/{server_id}/migrations/{migration_id}/action",
)
ACTIONS = _add_rule(
    "os_compute_api:os-instance-actions:list", READER, "List the actions on a server.", "GET /servers/{id}/os-instance-actions"
)
ACTION = _add_rule(
    "os_compute_api:os-instance-actions:show",
    READER,
    "Show an action on a server.",
    "GET /servers/{id}/os-instance-actions/{request_id}",
)
ACTION_EVENTS = _add_rule(
    "os_compute_api:os-instance-actions:events",
    ADMIN,
    "See an action's events in versions before 2.51.",
    "GET /servers/{id}/os-instance-actions/{request_id}",
)
ACTION_DETAILS = _add_rule(
    "os_compute_api:os-instance-actions:events:details",
    ADMIN,
    "See hosts and details of events.",
    "GET /servers/{id}/os-instance-actions/{request_id}",
)
FLAVORS = _add_rule(
    "os_compute_api:flavors:index", READER, "List and show flavors.", "GET /flavors, GET /flavors/detail, GET /flavors/{id}"
)
PRIVATE_FLAVORS = _add_rule(
    "os_compute_api:flavors:get_all",
    ADMIN,
    "See and use flavors that are not public.",
    "GET /flavors?is_public=None, GET /flavors/{id}",
)
FLAVOR_MANAGE = "os_compute_api:os-flavor-manage:"
FLAVOR_CREATE = _add_rule(FLAVOR_MANAGE + "create", ADMIN, "Create a flavor.", "POST /flavors")
FLAVOR_UPDATE = _add_rule(FLAVOR_MANAGE + "update", ADMIN, "Change a flavor's description.", "PUT /flavors/{id}")
FLAVOR_DELETE = _add_rule(FLAVOR_MANAGE + "delete", ADMIN, "Delete a flavor.", "DELETE /flavors/{id}")
FLAVOR_ACT = _add_rule(
    "superconductor:flavors:action", READER, "Send an action; the action's own rule must allow it too.", "POST /flavors/{id}/action"
)
FLAVOR_ACCESS = _add_rule(
    "os_compute_api:os-flavor-access", ADMIN, "List the projects that may use a flavor.", "GET /flavors/{id}/os-flavor-access"
)
FLAVOR_ACCESS_ADD = _add_rule(
    FLAVOR_ACCESS + ":add_tenant_access", ADMIN, "Let a project use a flavor.", "POST /flavors/{id}/action (addTenantAccess)"
)
FLAVOR_ACCESS_REMOVE = _add_rule(
    FLAVOR_ACCESS + ":remove_tenant_access",
    ADMIN,
    "Let a project use a flavor no longer.",
    "POST /flavors/{id}/action (removeTenantAccess)",
)
EXTRA_SPEC = "os_compute_api:os-flavor-extra-specs:"
EXTRA_SPECS = _add_rule(
    EXTRA_SPEC + "index",
    READER,
    "Show a flavor's extra specs; flavors show them from 2.61 on.",
    "GET /flavors/{id}/os-extra_specs, GET /flavors/{id}, GET /flavors/detail",
)
EXTRA_SPEC_SHOW = _add_rule(
    EXTRA_SPEC + "show", READER, "Show an extra spec of a flavor.", "GET /flavors/{id}/os-extra_specs/{key}"
)
EXTRA_SPEC_CREATE = _add_rule(EXTRA_SPEC + "create", ADMIN, "Set extra specs of a flavor.", "POST /flavors/{id}/os-extra_specs")
EXTRA_SPEC_UPDATE = _add_rule(
    EXTRA_SPEC + "update", ADMIN, "Set an extra spec of a flavor.", "PUT /flavors/{id}/os-extra_specs/{key}"
)
EXTRA_SPEC_DELETE = _add_rule(
    EXTRA_SPEC + "delete", ADMIN, "Delete an extra spec of a flavor.", "DELETE /flavors/{id}/os-extra_specs/{key}"
)
KEYPAIRS = "os_compute_api:os-keypairs:"
KEYPAIR_LIST = _add_rule(KEYPAIRS + "index", USER_READER, "List a user's key pairs.", "GET /os-keypairs")
KEYPAIR_SHOW = _add_rule(KEYPAIRS + "show", USER_READER, "Show a user's key pair.", "GET /os-keypairs/{name}")
KEYPAIR_CREATE = _add_rule(KEYPAIRS + "create", USER_MEMBER, "Import or generate a key pair for a user.", "POST /os-keypairs")
KEYPAIR_DELETE = _add_rule(KEYPAIRS + "delete", USER_MEMBER, "Delete a user's key pair.", "DELETE /os-keypairs/{name}")
LIMITS = _add_rule("os_compute_api:limits", READER, "Show the own project's limits.", "GET /limits")
OTHER_LIMITS = _add_rule(
    "os_compute_api:limits:other_project", ADMIN, "Show another project's limits.", "GET /limits?tenant_id={project_id}"
)
GROUPS = "os_compute_api:os-server-groups:"
GROUP_LIST = _add_rule(GROUPS + "index", READER, "List server groups.", "GET /os-server-groups")
GROUP_LIST_ALL = _add_rule(
    GROUP_LIST + ":all_projects", ADMIN, "List server groups of all projects.", "GET /os-server-groups?all_projects=1"
)
GROUP_SHOW = _add_rule(GROUPS + "show", READER, "Show a server group.", "GET /os-server-groups/{server_group_id}")
GROUP_CREATE = _add_rule(GROUPS + "create", MEMBER, "Create a server group.", "POST /os-server-groups")
GROUP_DELETE = _add_rule(
    GROUPS + "delete", MEMBER, "Delete a server group; its servers stay.", "DELETE /os-server-groups/{server_group_id}"
)
SERVICES = _add_rule("os_compute_api:os-services:list", ADMIN, "List services.", "GET /os-services")
SERVICE_UPDATE = _add_rule(
    "os_compute_api:os-services:update", ADMIN, "Enable and disable hosts, and call them dead.", "PUT /os-services/{service_id}"
)
SERVICE_DELETE = _add_rule(
    "os_compute_api:os-services:delete", ADMIN, "Forget a service that has ended, and its host.", "DELETE /os-services/{service_id}"
)
HOSTS = "os_compute_api:os-hosts:"
HOST_LIST = _add_rule(HOSTS + "list", ADMIN, "List the hosts of services.", "GET /os-hosts")
HOST_SHOW = _add_rule(HOSTS + "show", ADMIN, "Show what a host offers, and what projects use of it.", "GET /os-hosts/{host_name}")
HOST_UPDATE = _add_rule(HOSTS + "update", ADMIN, "Enable and disable a host.", "PUT /os-hosts/{host_name}")
HOST_START = _add_rule(HOSTS + "start", ADMIN, "Be told that hosts are not started here.", "GET /os-hosts/{host_name}/startup")
HOST_SHUTDOWN = _add_rule(
    HOSTS + "shutdown", ADMIN, "Be told that hosts are not shut down here.", "GET /os-hosts/{host_name}/shutdown"
)
HOST_REBOOT = _add_rule(HOSTS + "reboot", ADMIN, "Be told that hosts are not rebooted here.", "GET /os-hosts/{host_name}/reboot")
EXTERNAL_EVENTS = _add_rule(
    "os_compute_api:os-server-external-events:create",
    SERVICE,
    "Tell events of servers, as other services do.",
    "POST /os-server-external-events",
)
USAGES = _add_rule(
    "os_compute_api:os-simple-tenant-usage:list", ADMIN, "Show how long servers of all projects ran.", "GET /os-simple-tenant-usage"
)
USAGE = _add_rule(
    "os_compute_api:os-simple-tenant-usage:show",
    READER,
    "Show how long a project's servers ran.",
    "GET /os-simple-tenant-usage/{project_id}",
)
QUOTA_CLASS_SHOW = _add_rule(
    "os_compute_api:os-quota-class-sets:show", ADMIN, "Show the quotas of a class.", "GET /os-quota-class-sets/{quota_class}"
)
QUOTA_CLASS_UPDATE = _add_rule(
    "os_compute_api:os-quota-class-sets:update", ADMIN, "Change the default quotas.", "PUT /os-quota-class-sets/{quota_class}"
)
QUOTA_SHOW = _add_rule("os_compute_api:os-quota-sets:show", READER, "Show a project's quotas.", "GET /os-quota-sets/{project_id}")
QUOTA_DEFAULTS = _add_rule(
    "os_compute_api:os-quota-sets:defaults", READER, "Show the default quotas.", "GET /os-quota-sets/{project_id}/defaults"
)
QUOTA_DETAIL = _add_rule(
    "os_compute_api:os-quota-sets:detail", READER, "Show a project's quotas and uses.", "GET /os-quota-sets/{project_id}/detail"
)
QUOTA_UPDATE = _add_rule(
    "os_compute_api:os-quota-sets:update", ADMIN, "Change a project's quotas.", "PUT /os-quota-sets/{project_id}"
)
QUOTA_DELETE = _add_rule(
    "os_compute_api:os-quota-sets:delete", ADMIN, "Give a project the default quotas again.", "DELETE /os-quota-sets/{project_id}"
)
AGGREGATES = "os_compute_api:os-aggregates:"
AGGREGATE_LIST = _add_rule(AGGREGATES + "index", ADMIN, "List the aggregates.", "GET /os-aggregates")
AGGREGATE_SHOW = _add_rule(AGGREGATES + "show", ADMIN, "Show an aggregate.", "GET /os-aggregates/{id}")
AGGREGATE_CREATE = _add_rule(AGGREGATES + "create", ADMIN, "Create an aggregate.", "POST /os-aggregates")
AGGREGATE_UPDATE = _add_rule(AGGREGATES + "update", ADMIN, "Change an aggregate's name and zone.", "PUT /os-aggregates/{id}")
AGGREGATE_DELETE = _add_rule(AGGREGATES + "delete", ADMIN, "Delete an aggregate.", "DELETE /os-aggregates/{id}")
AGGREGATE_ACT = _add_rule(
    "superconductor:aggregates:action",
    READER,
    "Send an action; the action's own rule must allow it too.",
    "POST /os-aggregates/{id}/action",
)
AGGREGATE_ADD_HOST = _add_rule(
    AGGREGATES + "add_host", ADMIN, "Add a host to an aggregate.", "POST /os-aggregates/{id}/action (add_host)"
)
AGGREGATE_REMOVE_HOST = _add_rule(
    AGGREGATES + "remove_host", ADMIN, "Remove a host from an aggregate.", "POST /os-aggregates/{id}/action (remove_host)"
)
AGGREGATE_METADATA = _add_rule(
    AGGREGATES + "set_metadata", ADMIN, "Change an aggregate's metadata.", "POST /os-aggregates/{id}/action (set_metadata)"
)
HYPERVISORS = "os_compute_api:os-hypervisors:"
HYPERVISOR_LIST = _add_rule(HYPERVISORS + "list", ADMIN, "List the nodes of all cells.", "GET /os-hypervisors")
HYPERVISOR_DETAIL = _add_rule(
    HYPERVISORS + "list-detail", ADMIN, "List the nodes with their capacity and use.", "GET /os-hypervisors/detail"
)
HYPERVISOR_SHOW = _add_rule(HYPERVISORS + "show", ADMIN, "Show a node.", "GET /os-hypervisors/{id}")
HYPERVISOR_STATISTICS = _add_rule(
    HYPERVISORS + "statistics", ADMIN, "Sum up the capacity and use of all nodes.", "GET /os-hypervisors/statistics"
)
HYPERVISOR_UPTIME = _add_rule(HYPERVISORS + "uptime", ADMIN, "Show a node, without its uptime.", "GET /os-hypervisors/{id}/uptime")
HYPERVISOR_SEARCH = _add_rule(HYPERVISORS + "search", ADMIN, "Search nodes by name.", "GET /os-hypervisors/{pattern}/search")
HYPERVISOR_SERVERS = _add_rule(
    HYPERVISORS + "servers", ADMIN, "List the servers of nodes.", "GET /os-hypervisors/{pattern}/servers"
)
ZONES = _add_rule("os_compute_api:os-availability-zone:list", READER, "List the availability zones.", "GET /os-availability-zone")
ZONES_DETAIL = _add_rule(
    "os_compute_api:os-availability-zone:detail",
    ADMIN,
    "List the availability zones with their hosts.",
    "GET /os-availability-zone/detail",
)
EXTENSIONS = _add_rule("os_compute_api:extensions", READER, "List and show extensions.", "GET /extensions, GET /extensions/{alias}")
IMAGES = _add_rule(
    "superconductor:images",
    READER,
    "List and show images in the format of the Compute API.",
    "GET /images, GET /images/detail, GET /images/{id}, GET /images/{id}/metadata, GET /images/{id}/metadata/{key}",
)
IMAGE_LIST = _add_rule(
    IMAGES + ":list", READER, "List the images of the image store.", "GET /image/v2/images, GET /image/v2/schemas/images"
)
IMAGE_SHOW = _add_rule(
    IMAGES + ":show",
    READER,
    "Show an image of the image store.",
    "GET /image/v2/images/{id}, GET /image/v2/images/{id}/tasks, GET /image/v2/schemas/image",
)
IMAGE_DOWNLOAD = _add_rule(IMAGES + ":download", READER, "Download the content of an image.", "GET /image/v2/images/{id}/file")
IMAGE_CREATE = _add_rule(
    IMAGES + ":create", MEMBER, "Upload an image for the project.", "POST /image/v2/images, PUT /image/v2/images/{id}/file"
)
IMAGE_UPDATE = _add_rule(
    IMAGES + ":update",
    MEMBER,
    "Change an image of the project.",
    "PATCH /image/v2/images/{id}, PUT /image/v2/images/{id}/tags/{tag}, DELETE /image/v2/images/{id}/tags/{tag}, "
    "POST /images/{id}/metadata, PUT /images/{id}/metadata, PUT /images/{id}/metadata/{key}, DELETE /images/{id}/metadata/{key}",
)
IMAGE_DELETE = _add_rule(
    IMAGES + ":delete", MEMBER, "Delete an image of the project.", "DELETE /image/v2/images/{id}, DELETE /images/{id}"
)
NETWORK_SERVICE_LIST = _add_rule(
    "superconductor:networks:list",
    READER,
    "List the networks that the project may use, their subnets, and its ports.",
    "GET /network/v2.0/networks, GET /network/v2.0/subnets, GET /network/v2.0/ports",
)
NETWORK_SERVICE_SHOW = _add_rule(
    "superconductor:networks:show",
    READER,
    "Show a network that the project may use, a subnet of it, or a port of the project.",
    "GET /network/v2.0/networks/{id}, GET /network/v2.0/subnets/{id}, GET /network/v2.0/ports/{id}, "
    "GET /network/v2.0/ports/{id}/tags",
)
SECURITY_GROUP_DELETE = _add_rule(
    "superconductor:security_groups:delete",
    MEMBER,
    "Ask to delete the security group of the project. It stays: refused, but for an administrator.",
    "DELETE /network/v2.0/security-groups/{id}",
)
NETWORK_QUOTAS = _add_rule(
    "superconductor:networks:quotas",
    READER,
    "Show what a project may make at /network.",
    "GET /network/v2.0/quotas/{project_id}, GET /network/v2.0/quotas/{project_id}/default, "
    "GET /network/v2.0/quotas/{project_id}/details",
)
PORTS = "superconductor:ports:"
PORT_CREATE = _add_rule(PORTS + "create", MEMBER, "Make a port that has no server yet.", "POST /network/v2.0/ports")
PORT_UPDATE = _add_rule(
    PORTS + "update",
    MEMBER,
    "Change the name, the description or the tags of a port.",
    "PUT /network/v2.0/ports/{id}, PUT /network/v2.0/ports/{id}/tags, DELETE /network/v2.0/ports/{id}/tags",
)
PORT_DELETE = _add_rule(PORTS + "delete", MEMBER, "Delete a port that no server has.", "DELETE /network/v2.0/ports/{id}")
EXPLAIN = _add_rule(
    "superconductor:explanation:show",
    READER,
    "Read why servers were placed where they are, without hosts and cells.",
    "GET /servers/{id}/explanation, GET /superconductor/requests/{id}/explanation",
)
EXPLAIN_ALL = _add_rule(
    "superconductor:explanation:details",
    ADMIN,
    "See decisions, hosts and attempts in an explanation.",
    "GET /servers/{id}/explanation, GET /superconductor/requests/{id}/explanation",
)
OPENAPI = _add_rule(
    "superconductor:openapi", READER, "Read the description of the API in OpenAPI 3.1.", "GET /superconductor/openapi.json"
)
STATUS = _add_rule("superconductor:status", ADMIN, "See the state of the deployment.", "GET /superconductor/status")
DRY_RUN = _add_rule(
    "superconductor:dry_run", ADMIN, "See which hosts new servers would get, without creating them.", "POST /superconductor/dry-run"
)
HOLDS = "superconductor:holds"
HOLD_LIST = _add_rule(
    HOLDS + ":list",
    ADMIN,
    "List holds. A caller who may list those of another project lists those of all.",
    "GET /superconductor/holds",
)
HOLD_SHOW = _add_rule(HOLDS + ":show", ADMIN, "Show a hold.", "GET /superconductor/holds/{id}")
HOLD_CREATE = _add_rule(HOLDS + ":create", ADMIN, "Hold hosts for servers that are booted later.", "POST /superconductor/holds")
HOLD_BOOT = _add_rule(HOLDS + ":boot", ADMIN, "Boot the servers of a hold.", "POST /superconductor/holds/{id}/boot")
HOLD_RELEASE = _add_rule(HOLDS + ":release", ADMIN, "Release a hold, and delete its servers.", "DELETE /superconductor/holds/{id}")
CAPACITY = _add_rule("superconductor:capacity", ADMIN, "See how many more servers fit.", "GET /superconductor/capacity")
REBALANCE = _add_rule("superconductor:rebalance", ADMIN, "See which moves would free the most.", "GET /superconductor/rebalance")
HOST_ACCEPT = _add_rule(
    "superconductor:hosts:accept",
    ADMIN,
    "Let a host count with the size that it reports.",
    "POST /superconductor/hosts/{host}/accept",
)


def list_rules() -> list[RuleDefault]:
    """For the generator of the sample policy file and for the enforcer."""
    return [*RULES, *DOCUMENTED]
