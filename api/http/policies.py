"""The default policy: oslo.policy rules with the Compute API's names, each with a description.

Names of rules that the Compute API does not have begin with ``superconductor:``.
"""

from __future__ import annotations

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


def _documented_rule(name: str, check: str, description: str, *operations: str) -> DocumentedRuleDefault:
    """``operations``: each as ``METHOD /path``."""
    pairs = [operation.split(" ", 1) for operation in operations]
    return DocumentedRuleDefault(name, f"rule:{check}", description, [{"method": method, "path": path} for method, path in pairs])


SERVERS = "os_compute_api:servers:"
LIST = SERVERS + "index"
LIST_DETAIL = SERVERS + "detail"
ALL_TENANTS = SERVERS + "index:get_all_tenants"
ALL_FILTERS = SERVERS + "allow_all_filters"
SHOW = SERVERS + "show"
HOST_STATUS = SERVERS + "show:host_status"
CREATE = SERVERS + "create"
FORCED_HOST = SERVERS + "create:forced_host"
ZERO_DISK = SERVERS + "create:zero_disk_flavor"
REQUESTED_HOST = "compute:servers:create:requested_destination"
UPDATE = SERVERS + "update"
DELETE = SERVERS + "delete"
METADATA = "os_compute_api:server-metadata:"
METADATA_LIST = METADATA + "index"
METADATA_SHOW = METADATA + "show"
METADATA_CREATE = METADATA + "create"
METADATA_REPLACE = METADATA + "update_all"
METADATA_UPDATE = METADATA + "update"
METADATA_DELETE = METADATA + "delete"
TAGS = "os_compute_api:os-server-tags:"
TAG_LIST = TAGS + "index"
TAG_SHOW = TAGS + "show"
TAG_REPLACE = TAGS + "update_all"
TAG_ADD = TAGS + "update"
TAG_DELETE_ALL = TAGS + "delete_all"
TAG_DELETE = TAGS + "delete"
TOPOLOGY = "compute:server:topology:index"
IP_LIST = "os_compute_api:ips:index"
IP_SHOW = "os_compute_api:ips:show"
SECURITY_GROUPS = "os_compute_api:os-security-groups:"
SECURITY_GROUP_LIST = SECURITY_GROUPS + "list"
SECURITY_GROUP_ADD = SECURITY_GROUPS + "add"
SECURITY_GROUP_REMOVE = SECURITY_GROUPS + "remove"
INTERFACES = "os_compute_api:os-attach-interfaces:"
INTERFACE_LIST = INTERFACES + "list"
INTERFACE_SHOW = INTERFACES + "show"
INTERFACE_ATTACH = INTERFACES + "create"
INTERFACE_DETACH = INTERFACES + "delete"
VOLUMES_ATTACHED = "os_compute_api:os-volumes-attachments:"
VOLUME_ATTACHMENT_LIST = VOLUMES_ATTACHED + "index"
VOLUME_ATTACHMENT_SHOW = VOLUMES_ATTACHED + "show"
POSTED = "os_compute_api:os-server-password:"
SERVER_PASSWORD_SHOW = POSTED + "show"
SERVER_PASSWORD_CLEAR = POSTED + "clear"
ACT = "superconductor:servers:action"
IGNORE_LOCK = "superconductor:servers:ignore_lock"
LOCK = "os_compute_api:os-lock-server:lock"
UNLOCK = "os_compute_api:os-lock-server:unlock"
UNLOCK_OVERRIDE = UNLOCK + ":unlock_override"
START = SERVERS + "start"
STOP = SERVERS + "stop"
REBOOT = SERVERS + "reboot"
RESIZE = SERVERS + "resize"
REBUILD = SERVERS + "rebuild"
CONFIRM_RESIZE = SERVERS + "confirm_resize"
REVERT_RESIZE = SERVERS + "revert_resize"
PAUSE = "os_compute_api:os-pause-server:pause"
UNPAUSE = "os_compute_api:os-pause-server:unpause"
SUSPEND = "os_compute_api:os-suspend-server:suspend"
RESUME = "os_compute_api:os-suspend-server:resume"
SHELVE = "os_compute_api:os-shelve:shelve"
SHELVE_OFFLOAD = "os_compute_api:os-shelve:shelve_offload"
UNSHELVE = "os_compute_api:os-shelve:unshelve"
UNSHELVE_TO_HOST = UNSHELVE + "_to_host"
CREATE_IMAGE = SERVERS + "create_image"
CREATE_BACKUP = "os_compute_api:os-create-backup"
RESCUE = "os_compute_api:os-rescue"
UNRESCUE = "os_compute_api:os-unrescue"
CHANGE_PASSWORD = "os_compute_api:os-admin-password"  # noqa: S105 - the name of a rule
CRASH_DUMP = SERVERS + "trigger_crash_dump"
MIGRATE = "os_compute_api:os-migrate-server:migrate"
LIVE_MIGRATE = "os_compute_api:os-migrate-server:migrate_live"
EVACUATE = "os_compute_api:os-evacuate"
RESET_STATE = "os_compute_api:os-admin-actions:reset_state"
INJECT_NETWORK_INFO = "os_compute_api:os-admin-actions:inject_network_info"
FORCE_DELETE = "os_compute_api:os-deferred-delete:force"
RESTORE = "os_compute_api:os-deferred-delete:restore"
CROSS_CELL = "compute:servers:resize:cross_cell"
CONSOLE_OUTPUT = "os_compute_api:os-console-output"
DIAGNOSTICS = "os_compute_api:os-server-diagnostics"
REMOTE_CONSOLES = "os_compute_api:os-remote-consoles"
CONSOLE_TOKENS = "os_compute_api:os-console-auth-tokens"
ATTRIBUTES = "os_compute_api:os-extended-server-attributes"
MIGRATION_LIST = "os_compute_api:os-migrations:index"
SERVER_MIGRATIONS = SERVERS + "migrations:"
SERVER_MIGRATION_LIST = SERVER_MIGRATIONS + "index"
SERVER_MIGRATION_SHOW = SERVER_MIGRATIONS + "show"
SERVER_MIGRATION_ABORT = SERVER_MIGRATIONS + "delete"
SERVER_MIGRATION_FORCE_COMPLETE = SERVER_MIGRATIONS + "force_complete"
ACTIONS = "os_compute_api:os-instance-actions:list"
ACTION = "os_compute_api:os-instance-actions:show"
ACTION_EVENTS = "os_compute_api:os-instance-actions:events"
ACTION_DETAILS = "os_compute_api:os-instance-actions:events:details"
FLAVORS = "os_compute_api:flavors:index"
PRIVATE_FLAVORS = "os_compute_api:flavors:get_all"
FLAVOR_MANAGE = "os_compute_api:os-flavor-manage:"
FLAVOR_CREATE = FLAVOR_MANAGE + "create"
FLAVOR_UPDATE = FLAVOR_MANAGE + "update"
FLAVOR_DELETE = FLAVOR_MANAGE + "delete"
FLAVOR_ACT = "superconductor:flavors:action"
FLAVOR_ACCESS = "os_compute_api:os-flavor-access"
FLAVOR_ACCESS_ADD = FLAVOR_ACCESS + ":add_tenant_access"
FLAVOR_ACCESS_REMOVE = FLAVOR_ACCESS + ":remove_tenant_access"
EXTRA_SPEC = "os_compute_api:os-flavor-extra-specs:"
EXTRA_SPECS = EXTRA_SPEC + "index"
EXTRA_SPEC_SHOW = EXTRA_SPEC + "show"
EXTRA_SPEC_CREATE = EXTRA_SPEC + "create"
EXTRA_SPEC_UPDATE = EXTRA_SPEC + "update"
EXTRA_SPEC_DELETE = EXTRA_SPEC + "delete"
KEYPAIRS = "os_compute_api:os-keypairs:"
KEYPAIR_LIST = KEYPAIRS + "index"
KEYPAIR_SHOW = KEYPAIRS + "show"
KEYPAIR_CREATE = KEYPAIRS + "create"
KEYPAIR_DELETE = KEYPAIRS + "delete"
LIMITS = "os_compute_api:limits"
OTHER_LIMITS = "os_compute_api:limits:other_project"
GROUPS = "os_compute_api:os-server-groups:"
GROUP_LIST = GROUPS + "index"
GROUP_LIST_ALL = GROUP_LIST + ":all_projects"
GROUP_SHOW = GROUPS + "show"
GROUP_CREATE = GROUPS + "create"
GROUP_DELETE = GROUPS + "delete"
SERVICES = "os_compute_api:os-services:list"
SERVICE_UPDATE = "os_compute_api:os-services:update"
SERVICE_DELETE = "os_compute_api:os-services:delete"
HOSTS = "os_compute_api:os-hosts:"
HOST_LIST = HOSTS + "list"
HOST_SHOW = HOSTS + "show"
HOST_UPDATE = HOSTS + "update"
HOST_START = HOSTS + "start"
HOST_SHUTDOWN = HOSTS + "shutdown"
HOST_REBOOT = HOSTS + "reboot"
EXTERNAL_EVENTS = "os_compute_api:os-server-external-events:create"
USAGES = "os_compute_api:os-simple-tenant-usage:list"
USAGE = "os_compute_api:os-simple-tenant-usage:show"
QUOTA_CLASS_SHOW = "os_compute_api:os-quota-class-sets:show"
QUOTA_CLASS_UPDATE = "os_compute_api:os-quota-class-sets:update"
QUOTA_SHOW = "os_compute_api:os-quota-sets:show"
QUOTA_DEFAULTS = "os_compute_api:os-quota-sets:defaults"
QUOTA_DETAIL = "os_compute_api:os-quota-sets:detail"
QUOTA_UPDATE = "os_compute_api:os-quota-sets:update"
QUOTA_DELETE = "os_compute_api:os-quota-sets:delete"
AGGREGATES = "os_compute_api:os-aggregates:"
AGGREGATE_LIST = AGGREGATES + "index"
AGGREGATE_SHOW = AGGREGATES + "show"
AGGREGATE_CREATE = AGGREGATES + "create"
AGGREGATE_UPDATE = AGGREGATES + "update"
AGGREGATE_DELETE = AGGREGATES + "delete"
AGGREGATE_ACT = "superconductor:aggregates:action"
AGGREGATE_ADD_HOST = AGGREGATES + "add_host"
AGGREGATE_REMOVE_HOST = AGGREGATES + "remove_host"
AGGREGATE_METADATA = AGGREGATES + "set_metadata"
HYPERVISORS = "os_compute_api:os-hypervisors:"
HYPERVISOR_LIST = HYPERVISORS + "list"
HYPERVISOR_DETAIL = HYPERVISORS + "list-detail"
HYPERVISOR_SHOW = HYPERVISORS + "show"
HYPERVISOR_STATISTICS = HYPERVISORS + "statistics"
HYPERVISOR_UPTIME = HYPERVISORS + "uptime"
HYPERVISOR_SEARCH = HYPERVISORS + "search"
HYPERVISOR_SERVERS = HYPERVISORS + "servers"
ZONES = "os_compute_api:os-availability-zone:list"
ZONES_DETAIL = "os_compute_api:os-availability-zone:detail"
EXTENSIONS = "os_compute_api:extensions"
IMAGES = "superconductor:images"
IMAGE_LIST = IMAGES + ":list"
IMAGE_SHOW = IMAGES + ":show"
IMAGE_DOWNLOAD = IMAGES + ":download"
IMAGE_CREATE = IMAGES + ":create"
IMAGE_UPDATE = IMAGES + ":update"
IMAGE_DELETE = IMAGES + ":delete"
NETWORK_SERVICE_LIST = "superconductor:networks:list"
NETWORK_SERVICE_SHOW = "superconductor:networks:show"
SECURITY_GROUP_DELETE = "superconductor:security_groups:delete"
NETWORK_QUOTAS = "superconductor:networks:quotas"
PORTS = "superconductor:ports:"
PORT_CREATE = PORTS + "create"
PORT_UPDATE = PORTS + "update"
PORT_DELETE = PORTS + "delete"
EXPLAIN = "superconductor:explanation:show"
EXPLAIN_ALL = "superconductor:explanation:details"
OPENAPI = "superconductor:openapi"
STATUS = "superconductor:status"
DRY_RUN = "superconductor:dry_run"
HOLDS = "superconductor:holds"
HOLD_LIST = HOLDS + ":list"
HOLD_SHOW = HOLDS + ":show"
HOLD_CREATE = HOLDS + ":create"
HOLD_BOOT = HOLDS + ":boot"
HOLD_RELEASE = HOLDS + ":release"
CAPACITY = "superconductor:capacity"
REBALANCE = "superconductor:rebalance"
HOST_ACCEPT = "superconductor:hosts:accept"

DOCUMENTED: tuple[DocumentedRuleDefault, ...] = (
    _documented_rule(LIST, READER, "List servers.", "GET /servers"),
    _documented_rule(LIST_DETAIL, READER, "List servers in detail.", "GET /servers/detail"),
    _documented_rule(
        ALL_TENANTS, ADMIN, "List servers of all projects, deleted ones too.", "GET /servers?all_tenants=1", "GET /servers/detail"
    ),
    _documented_rule(ALL_FILTERS, ADMIN, "Select and sort servers by host.", "GET /servers?host={host}", "GET /servers/detail"),
    _documented_rule(
        SHOW, READER, "Show a server. A caller who may show those of another project may show all servers.", "GET /servers/{id}"
    ),
    _documented_rule(HOST_STATUS, ADMIN, "Show the state of a server's host.", "GET /servers/{id}", "GET /servers/detail"),
    _documented_rule(CREATE, MEMBER, "Create servers.", "POST /servers"),
    _documented_rule(FORCED_HOST, ADMIN, "Name the host of a new server, or hosts to leave out.", "POST /servers"),
    _documented_rule(REQUESTED_HOST, ADMIN, "Ask for the host or node of a new server.", "POST /servers"),
    _documented_rule(
        ZERO_DISK,
        ADMIN,
        "Build from an image of the store with a flavor whose root disk is 0 GiB. The disk is then as large as the image says.",
        "POST /servers",
        "POST /servers/{id}/action (rebuild)",
    ),
    _documented_rule(
        DELETE,
        MEMBER,
        "Delete a server. A caller who may delete those of another project may delete all servers.",
        "DELETE /servers/{id}",
    ),
    _documented_rule(UPDATE, MEMBER, "Change a server's name and description.", "PUT /servers/{id}"),
    _documented_rule(METADATA_LIST, READER, "List a server's metadata.", "GET /servers/{id}/metadata"),
    _documented_rule(METADATA_SHOW, READER, "Show an item of a server's metadata.", "GET /servers/{id}/metadata/{key}"),
    _documented_rule(METADATA_CREATE, MEMBER, "Add items to a server's metadata.", "POST /servers/{id}/metadata"),
    _documented_rule(METADATA_REPLACE, MEMBER, "Replace a server's metadata.", "PUT /servers/{id}/metadata"),
    _documented_rule(METADATA_UPDATE, MEMBER, "Set an item of a server's metadata.", "PUT /servers/{id}/metadata/{key}"),
    _documented_rule(METADATA_DELETE, MEMBER, "Delete an item of a server's metadata.", "DELETE /servers/{id}/metadata/{key}"),
    _documented_rule(TAG_LIST, READER, "List a server's tags.", "GET /servers/{id}/tags"),
    _documented_rule(TAG_SHOW, READER, "Ask whether a server has a tag.", "GET /servers/{id}/tags/{tag}"),
    _documented_rule(TAG_REPLACE, MEMBER, "Replace a server's tags.", "PUT /servers/{id}/tags"),
    _documented_rule(TAG_ADD, MEMBER, "Add a tag to a server.", "PUT /servers/{id}/tags/{tag}"),
    _documented_rule(TAG_DELETE_ALL, MEMBER, "Delete all tags of a server.", "DELETE /servers/{id}/tags"),
    _documented_rule(TAG_DELETE, MEMBER, "Delete a tag of a server.", "DELETE /servers/{id}/tags/{tag}"),
    _documented_rule(IP_LIST, READER, "List a server's addresses.", "GET /servers/{id}/ips"),
    _documented_rule(
        SECURITY_GROUP_LIST,
        READER,
        "List the security groups that could be removed from a server; there are none.",
        "GET /servers/{server_id}/os-security-groups",
    ),
    _documented_rule(IP_SHOW, READER, "List a server's addresses in one network.", "GET /servers/{id}/ips/{network}"),
    _documented_rule(INTERFACE_LIST, READER, "List a server's network interfaces.", "GET /servers/{server_id}/os-interface"),
    _documented_rule(INTERFACE_ATTACH, MEMBER, "Attach a network interface to a server.", "POST /servers/{server_id}/os-interface"),
    _documented_rule(INTERFACE_DETACH, MEMBER, "Detach a network interface.", "DELETE /servers/{server_id}/os-interface/{port_id}"),
    _documented_rule(
        INTERFACE_SHOW, READER, "Show a network interface of a server.", "GET /servers/{server_id}/os-interface/{port_id}"
    ),
    _documented_rule(
        VOLUME_ATTACHMENT_LIST,
        READER,
        "List the volumes of a server; there are none.",
        "GET /servers/{server_id}/os-volume_attachments",
    ),
    _documented_rule(
        VOLUME_ATTACHMENT_SHOW,
        READER,
        "Show a volume of a server; there are none.",
        "GET /servers/{server_id}/os-volume_attachments/{volume_id}",
    ),
    _documented_rule(
        SERVER_PASSWORD_SHOW,
        READER,
        "Show the password that a guest has posted; it is empty.",
        "GET /servers/{server_id}/os-server-password",
    ),
    _documented_rule(
        SERVER_PASSWORD_CLEAR,
        MEMBER,
        "Clear the password that a guest has posted; it is empty.",
        "DELETE /servers/{server_id}/os-server-password",
    ),
    _documented_rule(ACT, READER, "Send an action; the action's own rule must allow it too.", "POST /servers/{id}/action"),
    _documented_rule(LOCK, MEMBER, "Lock a server.", "POST /servers/{id}/action (lock)"),
    _documented_rule(UNLOCK, MEMBER, "Unlock a server.", "POST /servers/{id}/action (unlock)"),
    _documented_rule(
        UNLOCK_OVERRIDE, ADMIN, "Unlock a server that somebody else has locked.", "POST /servers/{id}/action (unlock)"
    ),
    _documented_rule(
        IGNORE_LOCK,
        ADMIN,
        "Change, delete and act on locked servers.",
        "DELETE /servers/{id}",
        "POST /servers/{id}/action",
        "POST /servers/{id}/metadata",
        "PUT /servers/{id}/tags",
    ),
    *(
        _documented_rule(rule, check, text, f"POST /servers/{{id}}/action ({action})")
        for rule, check, text, action in (
            (SECURITY_GROUP_ADD, MEMBER, "Add a security group to a server; there is only 'default'.", "addSecurityGroup"),
            (SECURITY_GROUP_REMOVE, MEMBER, "Remove a security group from a server; it is refused.", "removeSecurityGroup"),
            (START, MEMBER, "Start a server.", "os-start"),
            (STOP, MEMBER, "Stop a server.", "os-stop"),
            (REBOOT, MEMBER, "Reboot a server.", "reboot"),
            (RESIZE, MEMBER, "Resize a server.", "resize"),
            (REBUILD, MEMBER, "Rebuild a server from an image.", "rebuild"),
            (CONFIRM_RESIZE, MEMBER, "Confirm a resize.", "confirmResize"),
            (REVERT_RESIZE, MEMBER, "Revert a resize.", "revertResize"),
            (PAUSE, MEMBER, "Pause a server.", "pause"),
            (UNPAUSE, MEMBER, "Unpause a server.", "unpause"),
            (SUSPEND, MEMBER, "Suspend a server.", "suspend"),
            (RESUME, MEMBER, "Resume a server.", "resume"),
            (SHELVE, MEMBER, "Shelve a server.", "shelve"),
            (SHELVE_OFFLOAD, ADMIN, "Let a shelved server leave its host.", "shelveOffload"),
            (UNSHELVE, MEMBER, "Unshelve a server.", "unshelve"),
            (UNSHELVE_TO_HOST, ADMIN, "Unshelve a server to a certain host.", "unshelve"),
            (CREATE_IMAGE, MEMBER, "Make an image of a server.", "createImage"),
            (CREATE_BACKUP, MEMBER, "Make a backup of a server, and remove older ones.", "createBackup"),
            (RESCUE, MEMBER, "Boot a server from a rescue image.", "rescue"),
            (UNRESCUE, MEMBER, "Boot a rescued server from its own disk again.", "unrescue"),
            (CHANGE_PASSWORD, MEMBER, "Change the administrator's password of a server.", "changePassword"),
            (CRASH_DUMP, MEMBER, "Let a server dump its memory.", "trigger_crash_dump"),
            (MIGRATE, ADMIN, "Migrate a server to another host.", "migrate"),
            (LIVE_MIGRATE, ADMIN, "Migrate a running server live to another host.", "os-migrateLive"),
            (EVACUATE, ADMIN, "Evacuate a server from a dead host.", "evacuate"),
            (RESET_STATE, ADMIN, "Set a server to ERROR, or bring one back to its power on record.", "os-resetState"),
            (INJECT_NETWORK_INFO, ADMIN, "Inject network information into a server, which has no effect.", "injectNetworkInfo"),
            (FORCE_DELETE, MEMBER, "Delete a server in any state, also one that could be restored.", "forceDelete"),
            (RESTORE, MEMBER, "Restore a soft-deleted server.", "restore"),
            (CROSS_CELL, ADMIN, "Move servers to hosts of other cells.", "resize, migrate, os-migrateLive, evacuate"),
        )
    ),
    _documented_rule(CONSOLE_OUTPUT, MEMBER, "Show a server's console output.", "POST /servers/{id}/action (os-getConsoleOutput)"),
    _documented_rule(
        REMOTE_CONSOLES,
        MEMBER,
        "Get the URL of a server's remote console.",
        "POST /servers/{id}/remote-consoles",
        "POST /servers/{id}/action (os-getVNCConsole)",
        "POST /servers/{id}/action (os-getSPICEConsole)",
        "POST /servers/{id}/action (os-getSerialConsole)",
    ),
    _documented_rule(CONSOLE_TOKENS, ADMIN, "Read where the console of a token is.", "GET /os-console-auth-tokens/{token}"),
    _documented_rule(ATTRIBUTES, ADMIN, "See host, node and whole faults of servers.", "GET /servers/{id}", "GET /servers/detail"),
    _documented_rule(DIAGNOSTICS, ADMIN, "Show what the hypervisor knows of a server.", "GET /servers/{server_id}/diagnostics"),
    _documented_rule(TOPOLOGY, READER, "Show the NUMA topology of a server.", "GET /servers/{id}/topology"),
    _documented_rule(MIGRATION_LIST, ADMIN, "List the migrations of all servers.", "GET /os-migrations"),
    _documented_rule(
        SERVER_MIGRATION_LIST, ADMIN, "List a server's live migration under way.", "GET /servers/{server_id}/migrations"
    ),
    _documented_rule(
        SERVER_MIGRATION_SHOW,
        ADMIN,
        "Show a server's live migration under way.",
        "GET /servers/{server_id}/migrations/{migration_id}",
    ),
    _documented_rule(
        SERVER_MIGRATION_ABORT, ADMIN, "Abort a live migration.", "DELETE /servers/{server_id}/migrations/{migration_id}"
    ),
    _documented_rule(
        SERVER_MIGRATION_FORCE_COMPLETE,
        ADMIN,
        "Be told that a live migration completes by itself.",
        "POST /servers/{server_id}/migrations/{migration_id}/action",
    ),
    _documented_rule(ACTIONS, READER, "List the actions on a server.", "GET /servers/{id}/os-instance-actions"),
    _documented_rule(ACTION, READER, "Show an action on a server.", "GET /servers/{id}/os-instance-actions/{request_id}"),
    _documented_rule(
        ACTION_EVENTS,
        ADMIN,
        "See an action's events in versions before 2.51.",
        "GET /servers/{id}/os-instance-actions/{request_id}",
    ),
    _documented_rule(
        ACTION_DETAILS, ADMIN, "See hosts and details of events.", "GET /servers/{id}/os-instance-actions/{request_id}"
    ),
    _documented_rule(FLAVORS, READER, "List and show flavors.", "GET /flavors", "GET /flavors/detail", "GET /flavors/{id}"),
    _documented_rule(
        PRIVATE_FLAVORS, ADMIN, "See and use flavors that are not public.", "GET /flavors?is_public=None", "GET /flavors/{id}"
    ),
    _documented_rule(FLAVOR_CREATE, ADMIN, "Create a flavor.", "POST /flavors"),
    _documented_rule(FLAVOR_UPDATE, ADMIN, "Change a flavor's description.", "PUT /flavors/{id}"),
    _documented_rule(FLAVOR_DELETE, ADMIN, "Delete a flavor.", "DELETE /flavors/{id}"),
    _documented_rule(FLAVOR_ACT, READER, "Send an action; the action's own rule must allow it too.", "POST /flavors/{id}/action"),
    _documented_rule(FLAVOR_ACCESS, ADMIN, "List the projects that may use a flavor.", "GET /flavors/{id}/os-flavor-access"),
    _documented_rule(FLAVOR_ACCESS_ADD, ADMIN, "Let a project use a flavor.", "POST /flavors/{id}/action (addTenantAccess)"),
    _documented_rule(
        FLAVOR_ACCESS_REMOVE, ADMIN, "Let a project use a flavor no longer.", "POST /flavors/{id}/action (removeTenantAccess)"
    ),
    _documented_rule(
        EXTRA_SPECS,
        READER,
        "Show a flavor's extra specs; flavors show them from 2.61 on.",
        "GET /flavors/{id}/os-extra_specs",
        "GET /flavors/{id}",
        "GET /flavors/detail",
    ),
    _documented_rule(EXTRA_SPEC_SHOW, READER, "Show an extra spec of a flavor.", "GET /flavors/{id}/os-extra_specs/{key}"),
    _documented_rule(EXTRA_SPEC_CREATE, ADMIN, "Set extra specs of a flavor.", "POST /flavors/{id}/os-extra_specs"),
    _documented_rule(EXTRA_SPEC_UPDATE, ADMIN, "Set an extra spec of a flavor.", "PUT /flavors/{id}/os-extra_specs/{key}"),
    _documented_rule(EXTRA_SPEC_DELETE, ADMIN, "Delete an extra spec of a flavor.", "DELETE /flavors/{id}/os-extra_specs/{key}"),
    _documented_rule(KEYPAIR_LIST, USER_READER, "List a user's key pairs.", "GET /os-keypairs"),
    _documented_rule(KEYPAIR_SHOW, USER_READER, "Show a user's key pair.", "GET /os-keypairs/{name}"),
    _documented_rule(KEYPAIR_CREATE, USER_MEMBER, "Import or generate a key pair for a user.", "POST /os-keypairs"),
    _documented_rule(KEYPAIR_DELETE, USER_MEMBER, "Delete a user's key pair.", "DELETE /os-keypairs/{name}"),
    _documented_rule(LIMITS, READER, "Show the own project's limits.", "GET /limits"),
    _documented_rule(OTHER_LIMITS, ADMIN, "Show another project's limits.", "GET /limits?tenant_id={project_id}"),
    _documented_rule(GROUP_LIST, READER, "List server groups.", "GET /os-server-groups"),
    _documented_rule(GROUP_LIST_ALL, ADMIN, "List server groups of all projects.", "GET /os-server-groups?all_projects=1"),
    _documented_rule(GROUP_SHOW, READER, "Show a server group.", "GET /os-server-groups/{server_group_id}"),
    _documented_rule(GROUP_CREATE, MEMBER, "Create a server group.", "POST /os-server-groups"),
    _documented_rule(
        GROUP_DELETE, MEMBER, "Delete a server group; its servers stay.", "DELETE /os-server-groups/{server_group_id}"
    ),
    _documented_rule(SERVICES, ADMIN, "List services.", "GET /os-services"),
    _documented_rule(SERVICE_UPDATE, ADMIN, "Enable and disable hosts, and call them dead.", "PUT /os-services/{service_id}"),
    _documented_rule(SERVICE_DELETE, ADMIN, "Forget a service that has ended, and its host.", "DELETE /os-services/{service_id}"),
    _documented_rule(HOST_LIST, ADMIN, "List the hosts of services.", "GET /os-hosts"),
    _documented_rule(HOST_SHOW, ADMIN, "Show what a host offers, and what projects use of it.", "GET /os-hosts/{host_name}"),
    _documented_rule(HOST_UPDATE, ADMIN, "Enable and disable a host.", "PUT /os-hosts/{host_name}"),
    _documented_rule(HOST_START, ADMIN, "Be told that hosts are not started here.", "GET /os-hosts/{host_name}/startup"),
    _documented_rule(HOST_SHUTDOWN, ADMIN, "Be told that hosts are not shut down here.", "GET /os-hosts/{host_name}/shutdown"),
    _documented_rule(HOST_REBOOT, ADMIN, "Be told that hosts are not rebooted here.", "GET /os-hosts/{host_name}/reboot"),
    _documented_rule(EXTERNAL_EVENTS, SERVICE, "Tell events of servers, as other services do.", "POST /os-server-external-events"),
    _documented_rule(USAGES, ADMIN, "Show how long servers of all projects ran.", "GET /os-simple-tenant-usage"),
    _documented_rule(USAGE, READER, "Show how long a project's servers ran.", "GET /os-simple-tenant-usage/{project_id}"),
    _documented_rule(QUOTA_CLASS_SHOW, ADMIN, "Show the quotas of a class.", "GET /os-quota-class-sets/{quota_class}"),
    _documented_rule(QUOTA_CLASS_UPDATE, ADMIN, "Change the default quotas.", "PUT /os-quota-class-sets/{quota_class}"),
    _documented_rule(QUOTA_SHOW, READER, "Show a project's quotas.", "GET /os-quota-sets/{project_id}"),
    _documented_rule(QUOTA_DEFAULTS, READER, "Show the default quotas.", "GET /os-quota-sets/{project_id}/defaults"),
    _documented_rule(QUOTA_DETAIL, READER, "Show a project's quotas and uses.", "GET /os-quota-sets/{project_id}/detail"),
    _documented_rule(QUOTA_UPDATE, ADMIN, "Change a project's quotas.", "PUT /os-quota-sets/{project_id}"),
    _documented_rule(QUOTA_DELETE, ADMIN, "Give a project the default quotas again.", "DELETE /os-quota-sets/{project_id}"),
    _documented_rule(AGGREGATE_LIST, ADMIN, "List the aggregates.", "GET /os-aggregates"),
    _documented_rule(AGGREGATE_SHOW, ADMIN, "Show an aggregate.", "GET /os-aggregates/{id}"),
    _documented_rule(AGGREGATE_CREATE, ADMIN, "Create an aggregate.", "POST /os-aggregates"),
    _documented_rule(AGGREGATE_UPDATE, ADMIN, "Change an aggregate's name and zone.", "PUT /os-aggregates/{id}"),
    _documented_rule(AGGREGATE_DELETE, ADMIN, "Delete an aggregate.", "DELETE /os-aggregates/{id}"),
    _documented_rule(
        AGGREGATE_ACT, READER, "Send an action; the action's own rule must allow it too.", "POST /os-aggregates/{id}/action"
    ),
    _documented_rule(AGGREGATE_ADD_HOST, ADMIN, "Add a host to an aggregate.", "POST /os-aggregates/{id}/action (add_host)"),
    _documented_rule(
        AGGREGATE_REMOVE_HOST, ADMIN, "Remove a host from an aggregate.", "POST /os-aggregates/{id}/action (remove_host)"
    ),
    _documented_rule(
        AGGREGATE_METADATA, ADMIN, "Change an aggregate's metadata.", "POST /os-aggregates/{id}/action (set_metadata)"
    ),
    _documented_rule(HYPERVISOR_LIST, ADMIN, "List the nodes of all cells.", "GET /os-hypervisors"),
    _documented_rule(HYPERVISOR_DETAIL, ADMIN, "List the nodes with their capacity and use.", "GET /os-hypervisors/detail"),
    _documented_rule(HYPERVISOR_SHOW, ADMIN, "Show a node.", "GET /os-hypervisors/{id}"),
    _documented_rule(HYPERVISOR_STATISTICS, ADMIN, "Sum up the capacity and use of all nodes.", "GET /os-hypervisors/statistics"),
    _documented_rule(HYPERVISOR_UPTIME, ADMIN, "Show a node, without its uptime.", "GET /os-hypervisors/{id}/uptime"),
    _documented_rule(HYPERVISOR_SEARCH, ADMIN, "Search nodes by name.", "GET /os-hypervisors/{pattern}/search"),
    _documented_rule(HYPERVISOR_SERVERS, ADMIN, "List the servers of nodes.", "GET /os-hypervisors/{pattern}/servers"),
    _documented_rule(ZONES, READER, "List the availability zones.", "GET /os-availability-zone"),
    _documented_rule(ZONES_DETAIL, ADMIN, "List the availability zones with their hosts.", "GET /os-availability-zone/detail"),
    _documented_rule(EXTENSIONS, READER, "List and show extensions.", "GET /extensions", "GET /extensions/{alias}"),
    _documented_rule(
        IMAGES,
        READER,
        "List and show images in the format of the Compute API.",
        "GET /images",
        "GET /images/detail",
        "GET /images/{id}",
        "GET /images/{id}/metadata",
        "GET /images/{id}/metadata/{key}",
    ),
    _documented_rule(
        IMAGE_LIST, READER, "List the images of the image store.", "GET /image/v2/images", "GET /image/v2/schemas/images"
    ),
    _documented_rule(
        IMAGE_SHOW,
        READER,
        "Show an image of the image store.",
        "GET /image/v2/images/{id}",
        "GET /image/v2/images/{id}/tasks",
        "GET /image/v2/schemas/image",
    ),
    _documented_rule(IMAGE_DOWNLOAD, READER, "Download the content of an image.", "GET /image/v2/images/{id}/file"),
    _documented_rule(
        IMAGE_CREATE,
        MEMBER,
        "Upload an image for the project.",
        "POST /image/v2/images",
        "PUT /image/v2/images/{id}/file",
    ),
    _documented_rule(
        IMAGE_UPDATE,
        MEMBER,
        "Change an image of the project.",
        "PATCH /image/v2/images/{id}",
        "PUT /image/v2/images/{id}/tags/{tag}",
        "DELETE /image/v2/images/{id}/tags/{tag}",
        "POST /images/{id}/metadata",
        "PUT /images/{id}/metadata",
        "PUT /images/{id}/metadata/{key}",
        "DELETE /images/{id}/metadata/{key}",
    ),
    _documented_rule(
        IMAGE_DELETE, MEMBER, "Delete an image of the project.", "DELETE /image/v2/images/{id}", "DELETE /images/{id}"
    ),
    _documented_rule(
        NETWORK_QUOTAS,
        READER,
        "Show what a project may make at /network.",
        "GET /network/v2.0/quotas/{project_id}",
        "GET /network/v2.0/quotas/{project_id}/default",
        "GET /network/v2.0/quotas/{project_id}/details",
    ),
    _documented_rule(
        NETWORK_SERVICE_LIST,
        READER,
        "List the networks that the project may use, their subnets, and its ports.",
        "GET /network/v2.0/networks",
        "GET /network/v2.0/subnets",
        "GET /network/v2.0/ports",
    ),
    _documented_rule(
        NETWORK_SERVICE_SHOW,
        READER,
        "Show a network that the project may use, a subnet of it, or a port of the project.",
        "GET /network/v2.0/networks/{id}",
        "GET /network/v2.0/subnets/{id}",
        "GET /network/v2.0/ports/{id}",
        "GET /network/v2.0/ports/{id}/tags",
    ),
    _documented_rule(
        SECURITY_GROUP_DELETE,
        MEMBER,
        "Ask to delete the security group of the project. It stays: refused, but for an administrator.",
        "DELETE /network/v2.0/security-groups/{id}",
    ),
    _documented_rule(PORT_CREATE, MEMBER, "Make a port that has no server yet.", "POST /network/v2.0/ports"),
    _documented_rule(
        PORT_UPDATE,
        MEMBER,
        "Change the name, the description or the tags of a port.",
        "PUT /network/v2.0/ports/{id}",
        "PUT /network/v2.0/ports/{id}/tags",
        "DELETE /network/v2.0/ports/{id}/tags",
    ),
    _documented_rule(PORT_DELETE, MEMBER, "Delete a port that no server has.", "DELETE /network/v2.0/ports/{id}"),
    _documented_rule(
        EXPLAIN,
        READER,
        "Read why servers were placed where they are, without hosts and cells.",
        "GET /servers/{id}/explanation",
        "GET /superconductor/requests/{id}/explanation",
    ),
    _documented_rule(
        EXPLAIN_ALL,
        ADMIN,
        "See decisions, hosts and attempts in an explanation.",
        "GET /servers/{id}/explanation",
        "GET /superconductor/requests/{id}/explanation",
    ),
    _documented_rule(OPENAPI, READER, "Read the description of the API in OpenAPI 3.1.", "GET /superconductor/openapi.json"),
    _documented_rule(STATUS, ADMIN, "See the state of the deployment.", "GET /superconductor/status"),
    _documented_rule(
        DRY_RUN, ADMIN, "See which hosts new servers would get, without creating them.", "POST /superconductor/dry-run"
    ),
    _documented_rule(
        HOLD_LIST,
        ADMIN,
        "List holds. A caller who may list those of another project lists those of all.",
        "GET /superconductor/holds",
    ),
    _documented_rule(HOLD_SHOW, ADMIN, "Show a hold.", "GET /superconductor/holds/{id}"),
    _documented_rule(HOLD_CREATE, ADMIN, "Hold hosts for servers that are booted later.", "POST /superconductor/holds"),
    _documented_rule(HOLD_BOOT, ADMIN, "Boot the servers of a hold.", "POST /superconductor/holds/{id}/boot"),
    _documented_rule(HOLD_RELEASE, ADMIN, "Release a hold, and delete its servers.", "DELETE /superconductor/holds/{id}"),
    _documented_rule(CAPACITY, ADMIN, "See how many more servers fit.", "GET /superconductor/capacity"),
    _documented_rule(REBALANCE, ADMIN, "See which moves would free the most.", "GET /superconductor/rebalance"),
    _documented_rule(
        HOST_ACCEPT, ADMIN, "Let a host count with the size that it reports.", "POST /superconductor/hosts/{host}/accept"
    ),
)
"""One rule for each operation of the API."""


def list_rules() -> list[RuleDefault]:
    """For the generator of the sample policy file and for the enforcer."""
    return [*RULES, *DOCUMENTED]
