"""The default policy: oslo.policy rules with the Compute API's names, each with a description.

Names of rules that the Compute API does not have begin with ``superconductor:``.
"""

from __future__ import annotations

from oslo_policy.policy import DocumentedRuleDefault, RuleDefault

ADMIN = "context_is_admin"
"""Callers for whom this holds may see and do everything, with servers, hosts and faults of all projects."""

READER = "project_reader_or_admin"
MEMBER = "project_member_or_admin"

PUBLIC = "@"
"""The rule for paths that need no identity: version documents, which clients read without a token."""

RULES: tuple[RuleDefault, ...] = (
    RuleDefault(ADMIN, "role:admin", "An administrator."),
    RuleDefault("project_reader", "role:reader and project_id:%(project_id)s", "May read resources of the project."),
    RuleDefault("project_member", "role:member and project_id:%(project_id)s", "May change resources of the project."),
    RuleDefault(READER, "rule:project_reader or rule:context_is_admin", "Default rule for reading."),
    RuleDefault(MEMBER, "rule:project_member or rule:context_is_admin", "Default rule for changes."),
)
"""The building blocks of the rules below."""


def _of(name: str, check: str, description: str, *operations: str) -> DocumentedRuleDefault:
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
DELETE = SERVERS + "delete"
ATTRIBUTES = "os_compute_api:os-extended-server-attributes"
ACTIONS = "os_compute_api:os-instance-actions:list"
ACTION = "os_compute_api:os-instance-actions:show"
ACTION_EVENTS = "os_compute_api:os-instance-actions:events"
ACTION_DETAILS = "os_compute_api:os-instance-actions:events:details"
FLAVORS = "os_compute_api:flavors:index"
PRIVATE_FLAVORS = "os_compute_api:flavors:get_all"
EXTRA_SPECS = "os_compute_api:os-flavor-extra-specs:index"
LIMITS = "os_compute_api:limits"
OTHER_LIMITS = "os_compute_api:limits:other_project"
QUOTA_SHOW = "os_compute_api:os-quota-sets:show"
QUOTA_DEFAULTS = "os_compute_api:os-quota-sets:defaults"
QUOTA_DETAIL = "os_compute_api:os-quota-sets:detail"
QUOTA_UPDATE = "os_compute_api:os-quota-sets:update"
QUOTA_DELETE = "os_compute_api:os-quota-sets:delete"
EXTENSIONS = "os_compute_api:extensions"
IMAGES = "superconductor:images"
EXPLAIN = "superconductor:explanation:show"
EXPLAIN_ALL = "superconductor:explanation:details"
STATUS = "superconductor:status"

DOCUMENTED: tuple[DocumentedRuleDefault, ...] = (
    _of(LIST, READER, "List servers.", "GET /servers"),
    _of(LIST_DETAIL, READER, "List servers in detail.", "GET /servers/detail"),
    _of(ALL_TENANTS, ADMIN, "List servers of all projects, deleted ones too.", "GET /servers?all_tenants=1", "GET /servers/detail"),
    _of(ALL_FILTERS, ADMIN, "Select and sort servers by host.", "GET /servers?host={host}", "GET /servers/detail"),
    _of(SHOW, READER, "Show a server. A caller who may show those of another project may show all servers.", "GET /servers/{id}"),
    _of(HOST_STATUS, ADMIN, "Show the state of a server's host.", "GET /servers/{id}", "GET /servers/detail"),
    _of(CREATE, MEMBER, "Create servers.", "POST /servers"),
    _of(FORCED_HOST, ADMIN, "Name the host of a new server, or hosts to leave out.", "POST /servers"),
    _of(
        DELETE,
        MEMBER,
        "Delete a server. A caller who may delete those of another project may delete all servers.",
        "DELETE /servers/{id}",
    ),
    _of(ATTRIBUTES, ADMIN, "See host, node and whole faults of servers.", "GET /servers/{id}", "GET /servers/detail"),
    _of(ACTIONS, READER, "List the actions on a server.", "GET /servers/{id}/os-instance-actions"),
    _of(ACTION, READER, "Show an action on a server.", "GET /servers/{id}/os-instance-actions/{request_id}"),
    _of(
        ACTION_EVENTS,
        ADMIN,
        "See an action's events in versions before 2.51.",
        "GET /servers/{id}/os-instance-actions/{request_id}",
    ),
    _of(ACTION_DETAILS, ADMIN, "See hosts and details of events.", "GET /servers/{id}/os-instance-actions/{request_id}"),
    _of(FLAVORS, READER, "List and show flavors.", "GET /flavors", "GET /flavors/detail", "GET /flavors/{id}"),
    _of(PRIVATE_FLAVORS, ADMIN, "See and use flavors that are not public.", "GET /flavors?is_public=None", "GET /flavors/{id}"),
    _of(EXTRA_SPECS, READER, "Show a flavor's extra specs.", "GET /flavors/{id}/os-extra_specs"),
    _of(LIMITS, READER, "Show the own project's limits.", "GET /limits"),
    _of(OTHER_LIMITS, ADMIN, "Show another project's limits.", "GET /limits?tenant_id={project_id}"),
    _of(QUOTA_SHOW, READER, "Show a project's quotas.", "GET /os-quota-sets/{project_id}"),
    _of(QUOTA_DEFAULTS, READER, "Show the default quotas.", "GET /os-quota-sets/{project_id}/defaults"),
    _of(QUOTA_DETAIL, READER, "Show a project's quotas and uses.", "GET /os-quota-sets/{project_id}/detail"),
    _of(QUOTA_UPDATE, ADMIN, "Change a project's quotas.", "PUT /os-quota-sets/{project_id}"),
    _of(QUOTA_DELETE, ADMIN, "Give a project the default quotas again.", "DELETE /os-quota-sets/{project_id}"),
    _of(EXTENSIONS, READER, "List extensions; there are none.", "GET /extensions"),
    _of(IMAGES, READER, "Get the answer that there is no image service here.", "GET /images", "GET /images/{id}"),
    _of(
        EXPLAIN,
        READER,
        "Read why servers were placed where they are, without hosts and cells.",
        "GET /servers/{id}/explanation",
        "GET /superconductor/requests/{id}/explanation",
    ),
    _of(
        EXPLAIN_ALL,
        ADMIN,
        "See decisions, hosts and attempts in an explanation.",
        "GET /servers/{id}/explanation",
        "GET /superconductor/requests/{id}/explanation",
    ),
    _of(STATUS, ADMIN, "See the state of the deployment.", "GET /superconductor/status"),
)
"""One rule for each operation of the API."""


def list_rules() -> list[RuleDefault]:
    """For the generator of the sample policy file and for the enforcer."""
    return [*RULES, *DOCUMENTED]
