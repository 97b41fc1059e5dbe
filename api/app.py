"""The WSGI application: its paths and their handlers."""

from __future__ import annotations

from functools import partial

import falcon

from api import faults, not_served
from api import policies as may
from api.accept import Acceptor
from api.actions import Actions
from api.availability_zones import AvailabilityZones
from api.boot_secrets import BootSecretsPolicy
from api.capacity import ServerCapacity
from api.catalog import Catalog
from api.compute_images import ComputeImageMetadata, ComputeImages
from api.console import ConsoleActions
from api.doorbell import Bell, Doorbell
from api.dry_run import BootDryRun
from api.explanation import Explanation, RequestExplanation
from api.extensions import Extensions
from api.external_events import ExternalEvents
from api.finding import Finder
from api.flavor_access import FlavorAccess
from api.flavor_specs import FlavorExtraSpecs
from api.flavors import Flavors, OneFlavor
from api.guest_asker import GuestAsker
from api.holds import Holds
from api.host_aggregates import HostAggregates
from api.hosts import HostWatch
from api.hypervisors import Hypervisors
from api.image_actions import ImageActions
from api.image_changes import ImageChanges
from api.image_needs import ImageNeeds
from api.image_schemas import ImageSchemas
from api.image_uploads import ImageUploads
from api.images import ImageVersions, StoreImages
from api.keypairs import KeyPairs
from api.limits import ProjectLimits
from api.middleware import Intake
from api.migrations import Migrations, ServerMigrations
from api.network_service import NetworkResources, NetworkVersions
from api.openapi import OpenApi
from api.operate import Operations
from api.opts import ApiSettings
from api.os_networks import ProjectNetworks, TenantNetworks
from api.os_security_groups import ProjectSecurityGroups
from api.pace import RequestRateLimit
from api.paths import Paths
from api.physical_hosts import PhysicalHosts
from api.policies import PUBLIC
from api.policy import PolicyRules
from api.project_images import ProjectImages
from api.quota_classes import QuotaClasses
from api.quota_limits import LimitsInForce
from api.quota_sets import QuotaSets
from api.rebalance import RebalanceDryRun
from api.remote_consoles import ConsoleAuthTokens, RemoteConsoles
from api.scheduler import SchedulerAsker
from api.server_actions import Locks, ServerActions
from api.server_addresses import ServerAddresses
from api.server_diagnostics import ServerDiagnostics
from api.server_edits import ServerEdits
from api.server_groups import ServerGroups
from api.server_interfaces import ServerInterfaces
from api.server_leftovers import ServerPassword, VolumeAttachments
from api.server_metadata import MetadataItems
from api.server_operations import OperationActions
from api.server_security_groups import ServerSecurityGroups
from api.server_tags import Tags
from api.server_topology import ServerTopology
from api.servers import BootServers, OneServer, Servers
from api.services import Services
from api.silence import Silences
from api.status import Status
from api.usage import TenantUsage
from api.usage_audits import UsageAudits
from api.versions import ComputeVersion, IdentityVersion, Versions
from cells.registry import CellRegistry
from db.api.claims import Ledger
from db.sql.engine import ApiDatabase
from images.store import open_store
from service.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def make_app(
    settings: ApiSettings,
    database: ApiDatabase,
    registry: CellRegistry,
    ledger: Ledger,
    bell: Bell,
    guests: GuestAsker,
    vault: Vault,
    schedulers: SchedulerAsker,
) -> App:
    """The application with these parts. Thread-safe. Raises Misconfigured for an invalid policy file."""
    catalog = Catalog(database)
    limits = LimitsInForce(settings, database)
    watch = HostWatch(registry, settings.service_down_time, settings.cell_timeout)
    doorbell = Doorbell(bell)
    finder = Finder(settings, database, registry)
    boot_secrets = BootSecretsPolicy(settings, vault)
    store = open_store(settings.images_folder)
    needs = ImageNeeds(store)
    acceptor = Acceptor(settings, database, catalog, limits, boot_secrets, needs)
    boot = BootServers(settings, RequestRateLimit(settings.boot_rate, settings.boot_burst), acceptor, doorbell, vault)
    silences = Silences(registry)
    edits = ServerEdits(database, settings.unique_server_names)
    operations = Operations(settings, ledger, registry, catalog, limits, watch, doorbell, boot_secrets)
    server = OneServer(settings, finder, watch, silences, edits, operations)
    metadata = MetadataItems(settings, edits, limits)
    tags = Tags(settings, edits)
    servers = Servers(settings, database, boot, watch, silences)
    flavors = Flavors(settings, database, catalog)
    flavor = OneFlavor(settings, database, catalog)
    extra_specs = FlavorExtraSpecs(settings, database, catalog)
    flavor_access = FlavorAccess(settings, database)
    quotas = QuotaSets(settings, database, limits)
    quota_classes = QuotaClasses(settings, database, limits)

    remote_consoles = RemoteConsoles(settings, database, guests)
    console_actions = (*ConsoleActions(guests).actions(), *remote_consoles.actions())
    actions = Actions(settings, finder)
    operation_actions = OperationActions(operations, finder, watch, boot_secrets, needs).actions()
    image_actions = ImageActions(operations, finder, store).actions()
    security_groups = ServerSecurityGroups(finder)
    every = (*Locks(edits).actions(), *operation_actions, *image_actions, *console_actions, *security_groups.actions())
    server_actions = ServerActions(settings, every)

    paths = Paths()
    app: App = falcon.App(middleware=[Intake(settings, PolicyRules(settings.policy_files)), paths])
    app.req_options.strip_url_path_trailing_slash = True
    faults.install(app)
    add = partial(paths.add, app)
    add("/", Versions(), get=PUBLIC)
    version = ComputeVersion()
    add("/v2", version, "v2", get=PUBLIC)
    add("/v2.0", Versions(), "choices", get=PUBLIC)
    add("/v2.1", version, get=PUBLIC)
    add("/v2.1/versions/{version_id}", version, "one", get=PUBLIC)
    add("/identity/v3", IdentityVersion(), get=PUBLIC)
    extensions = Extensions(lambda wanted: wanted.removeprefix("action ") in server_actions.names or paths.serves(wanted))
    add("/v2.1/extensions", extensions, get=may.EXTENSIONS)
    add("/v2.1/extensions/{alias}", extensions, "one", get=may.EXTENSIONS)
    networks = ProjectNetworks(catalog)
    add("/v2.1/os-networks", networks, get=may.NETWORK_LIST)
    add("/v2.1/os-networks/{network_id}", networks, "one", get=may.NETWORK_SHOW)
    tenant_networks = TenantNetworks(catalog)
    add("/v2.1/os-tenant-networks", tenant_networks, get=may.TENANT_NETWORK_LIST)
    add("/v2.1/os-tenant-networks/{network_id}", tenant_networks, "one", get=may.TENANT_NETWORK_SHOW)
    project_groups = ProjectSecurityGroups()
    add("/v2.1/os-security-groups", project_groups, get=may.PROJECT_SECURITY_GROUPS)
    add("/v2.1/os-security-groups/{security_group_id}", project_groups, "one", get=may.SECURITY_GROUP_SHOW)
    project_images = ProjectImages(store, database)
    compute_images = ComputeImages(project_images, settings.max_limit)
    image_metadata = ComputeImageMetadata(settings, project_images, limits)
    add("/v2.1/images", compute_images, get=may.IMAGES)
    add("/v2.1/images/detail", compute_images, "detail", get=may.IMAGES)
    add("/v2.1/images/{image_id}", compute_images, "one", get=may.IMAGES, delete=may.IMAGE_DELETE)
    update = may.IMAGE_UPDATE
    add("/v2.1/images/{image_id}/metadata", image_metadata, get=may.IMAGES, post=update, put=update)
    add("/v2.1/images/{image_id}/metadata/{key}", image_metadata, "item", get=may.IMAGES, put=update, delete=update)
    uploads = ImageUploads(settings, project_images, database)
    images = StoreImages(project_images, uploads, ImageChanges(settings, project_images, limits), settings.max_limit)
    add("/image", ImageVersions(), get=PUBLIC)
    add("/image/v2", ImageVersions(), get=PUBLIC)
    add("/image/v2/images", images, get=may.IMAGE_LIST, post=may.IMAGE_CREATE)
    add("/image/v2/images/{image_id}", images, "one", get=may.IMAGE_SHOW, patch=update, delete=may.IMAGE_DELETE)
    add("/image/v2/images/{image_id}/tasks", images, "tasks", get=may.IMAGE_SHOW)
    add("/image/v2/images/{image_id}/file", uploads, "content", put=may.IMAGE_CREATE)
    add("/image/v2/schemas/image", ImageSchemas(), "image", get=may.IMAGE_SHOW)
    add("/image/v2/schemas/images", ImageSchemas(), "images", get=may.IMAGE_LIST)
    add("/network", NetworkVersions(), get=PUBLIC)
    add("/network/v2.0", NetworkVersions(), "resources", get=PUBLIC)
    network_resources = NetworkResources(settings, database, catalog)
    for name in ("network", "subnet", "port", "security_group", "security_group_rule"):
        path = f"/network/v2.0/{name.replace('_', '-')}s"
        add(path, network_resources, f"{name}s", get=may.NETWORK_SERVICE_LIST)
        add(f"{path}/{{{name}_id}}", network_resources, name, get=may.NETWORK_SERVICE_SHOW)
    add("/network/v2.0/{collection}", network_resources, "nothing", get=may.NETWORK_SERVICE_LIST)
    add("/network/v2.0/{collection}/{resource_id}", network_resources, "none", get=may.NETWORK_SERVICE_SHOW)
    add("/v2.1/servers", servers, get=may.LIST, post=may.CREATE)
    add("/v2.1/servers/detail", servers, "detail", get=may.LIST_DETAIL)
    add("/v2.1/servers/{server_id}", server, get=may.SHOW, put=may.UPDATE, delete=may.DELETE)
    add("/v2.1/servers/{server_id}/action", server_actions, post=may.ACT)
    add("/v2.1/servers/{server_id}/remote-consoles", remote_consoles, post=may.REMOTE_CONSOLES)
    add("/v2.1/os-console-auth-tokens/{token}", ConsoleAuthTokens(database), get=may.CONSOLE_TOKENS)
    add(
        "/v2.1/servers/{server_id}/metadata",
        metadata,
        get=may.METADATA_LIST,
        post=may.METADATA_CREATE,
        put=may.METADATA_REPLACE,
    )
    add(
        "/v2.1/servers/{server_id}/metadata/{key}",
        metadata,
        "item",
        get=may.METADATA_SHOW,
        put=may.METADATA_UPDATE,
        delete=may.METADATA_DELETE,
    )
    add("/v2.1/servers/{server_id}/tags", tags, get=may.TAG_LIST, put=may.TAG_REPLACE, delete=may.TAG_DELETE_ALL)
    add("/v2.1/servers/{server_id}/tags/{tag}", tags, "one", get=may.TAG_SHOW, put=may.TAG_ADD, delete=may.TAG_DELETE)
    add("/v2.1/servers/{server_id}/diagnostics", ServerDiagnostics(guests), get=may.DIAGNOSTICS)
    add("/v2.1/servers/{server_id}/topology", ServerTopology(finder), get=may.TOPOLOGY)
    addresses = ServerAddresses(finder)
    add("/v2.1/servers/{server_id}/ips", addresses, get=may.IP_LIST)
    add("/v2.1/servers/{server_id}/os-security-groups", security_groups, get=may.SECURITY_GROUP_LIST)
    add("/v2.1/servers/{server_id}/ips/{network}", addresses, "one", get=may.IP_SHOW)
    interfaces = ServerInterfaces(settings, finder, catalog, operations)
    add("/v2.1/servers/{server_id}/os-interface", interfaces, get=may.INTERFACE_LIST, post=may.INTERFACE_ATTACH)
    one_interface = "/v2.1/servers/{server_id}/os-interface/{port_id}"
    add(one_interface, interfaces, "one", get=may.INTERFACE_SHOW, delete=may.INTERFACE_DETACH)
    volumes = VolumeAttachments(finder)
    add("/v2.1/servers/{server_id}/os-volume_attachments", volumes, get=may.VOLUME_ATTACHMENT_LIST)
    add("/v2.1/servers/{server_id}/os-volume_attachments/{volume_id}", volumes, "one", get=may.VOLUME_ATTACHMENT_SHOW)
    posted = ServerPassword(finder)
    add("/v2.1/servers/{server_id}/os-server-password", posted, get=may.SERVER_PASSWORD_SHOW, delete=may.SERVER_PASSWORD_CLEAR)
    add("/v2.1/servers/{server_id}/explanation", Explanation(finder, database), get=may.EXPLAIN)
    add("/v2.1/servers/{server_id}/os-instance-actions", actions, get=may.ACTIONS)
    add("/v2.1/servers/{server_id}/os-instance-actions/{request_id}", actions, "one", get=may.ACTION)
    add("/v2.1/os-migrations", Migrations(settings, ledger), get=may.MIGRATION_LIST)
    migrations = ServerMigrations(settings, ledger, finder)
    add("/v2.1/servers/{server_id}/migrations", migrations, get=may.SERVER_MIGRATION_LIST)
    add(
        "/v2.1/servers/{server_id}/migrations/{migration}",
        migrations,
        "one",
        get=may.SERVER_MIGRATION_SHOW,
        delete=may.SERVER_MIGRATION_ABORT,
    )
    force_complete = may.SERVER_MIGRATION_FORCE_COMPLETE
    add("/v2.1/servers/{server_id}/migrations/{migration}/action", migrations, "action", post=force_complete)
    add("/v2.1/flavors", flavors, get=may.FLAVORS, post=may.FLAVOR_CREATE)
    add("/v2.1/flavors/detail", flavors, "detail", get=may.FLAVORS)
    add("/v2.1/flavors/{flavor_id}", flavor, get=may.FLAVORS, put=may.FLAVOR_UPDATE, delete=may.FLAVOR_DELETE)
    add("/v2.1/flavors/{flavor_id}/action", flavor_access, "action", post=may.FLAVOR_ACT)
    add("/v2.1/flavors/{flavor_id}/os-flavor-access", flavor_access, get=may.FLAVOR_ACCESS)
    add("/v2.1/flavors/{flavor_id}/os-extra_specs", extra_specs, get=may.EXTRA_SPECS, post=may.EXTRA_SPEC_CREATE)
    add(
        "/v2.1/flavors/{flavor_id}/os-extra_specs/{key}",
        extra_specs,
        "one",
        get=may.EXTRA_SPEC_SHOW,
        put=may.EXTRA_SPEC_UPDATE,
        delete=may.EXTRA_SPEC_DELETE,
    )
    services = Services(settings, ledger, registry, watch, silences)
    add("/v2.1/os-services", services, get=may.SERVICES)
    add("/v2.1/os-services/{service_id}", services, "one", put=may.SERVICE_UPDATE, delete=may.SERVICE_DELETE)
    physical_hosts = PhysicalHosts(settings, database, registry, services)
    add("/v2.1/os-hosts", physical_hosts, get=may.HOST_LIST)
    add("/v2.1/os-hosts/{host}", physical_hosts, "one", get=may.HOST_SHOW, put=may.HOST_UPDATE)
    for action, rule in (("startup", may.HOST_START), ("shutdown", may.HOST_SHUTDOWN), ("reboot", may.HOST_REBOOT)):
        add(f"/v2.1/os-hosts/{{host}}/{action}", physical_hosts, "power", get=rule)
    add("/v2.1/os-server-external-events", ExternalEvents(settings, database), post=may.EXTERNAL_EVENTS)
    audits = UsageAudits(watch)
    add("/v2.1/os-instance_usage_audit_log", audits, get=may.USAGE_AUDIT_LIST)
    add("/v2.1/os-instance_usage_audit_log/{before}", audits, "before", get=may.USAGE_AUDIT_SHOW)
    host_aggregates = HostAggregates(settings, database)
    add("/v2.1/os-aggregates", host_aggregates, get=may.AGGREGATE_LIST, post=may.AGGREGATE_CREATE)
    add(
        "/v2.1/os-aggregates/{aggregate_id}",
        host_aggregates,
        "one",
        get=may.AGGREGATE_SHOW,
        put=may.AGGREGATE_UPDATE,
        delete=may.AGGREGATE_DELETE,
    )
    add("/v2.1/os-aggregates/{aggregate_id}/action", host_aggregates, "action", post=may.AGGREGATE_ACT)
    hypervisors = Hypervisors(settings, database, registry, watch, silences)
    add("/v2.1/os-hypervisors", hypervisors, get=may.HYPERVISOR_LIST)
    add("/v2.1/os-hypervisors/detail", hypervisors, "detail", get=may.HYPERVISOR_DETAIL)
    add("/v2.1/os-hypervisors/statistics", hypervisors, "statistics", get=may.HYPERVISOR_STATISTICS)
    add("/v2.1/os-hypervisors/{hypervisor_id}", hypervisors, "one", get=may.HYPERVISOR_SHOW)
    add("/v2.1/os-hypervisors/{hypervisor_id}/uptime", hypervisors, "uptime", get=may.HYPERVISOR_UPTIME)
    add("/v2.1/os-hypervisors/{hypervisor_id}/search", hypervisors, "search", get=may.HYPERVISOR_SEARCH)
    add("/v2.1/os-hypervisors/{hypervisor_id}/servers", hypervisors, "servers", get=may.HYPERVISOR_SERVERS)
    zones = AvailabilityZones(settings, database, registry, watch, silences)
    add("/v2.1/os-availability-zone", zones, get=may.ZONES)
    add("/v2.1/os-availability-zone/detail", zones, "detail", get=may.ZONES_DETAIL)
    keypairs = KeyPairs(settings, database, limits)
    add("/v2.1/os-keypairs", keypairs, get=may.KEYPAIR_LIST, post=may.KEYPAIR_CREATE)
    add("/v2.1/os-keypairs/{name}", keypairs, "one", get=may.KEYPAIR_SHOW, delete=may.KEYPAIR_DELETE)
    groups = ServerGroups(settings, database, limits)
    add("/v2.1/os-server-groups", groups, get=may.GROUP_LIST, post=may.GROUP_CREATE)
    add("/v2.1/os-server-groups/{group_id}", groups, "one", get=may.GROUP_SHOW, delete=may.GROUP_DELETE)
    add("/v2.1/limits", ProjectLimits(database, limits), get=may.LIMITS)
    usage = TenantUsage(settings, database, silences)
    add("/v2.1/os-simple-tenant-usage", usage, get=may.USAGES)
    add("/v2.1/os-simple-tenant-usage/{project_id}", usage, "one", get=may.USAGE)
    add("/v2.1/os-quota-sets/{project_id}", quotas, get=may.QUOTA_SHOW, put=may.QUOTA_UPDATE, delete=may.QUOTA_DELETE)
    add("/v2.1/os-quota-sets/{project_id}/detail", quotas, "detail", get=may.QUOTA_DETAIL)
    add("/v2.1/os-quota-sets/{project_id}/defaults", quotas, "defaults", get=may.QUOTA_DEFAULTS)
    add("/v2.1/os-quota-class-sets/{quota_class}", quota_classes, get=may.QUOTA_CLASS_SHOW, put=may.QUOTA_CLASS_UPDATE)
    add("/v2.1/superconductor/requests/{request_id}/explanation", RequestExplanation(database), get=may.EXPLAIN)
    add("/v2.1/superconductor/openapi.json", OpenApi(paths), get=may.OPENAPI)
    add("/v2.1/superconductor/dry-run", BootDryRun(acceptor, boot, schedulers), post=may.DRY_RUN)
    holds = Holds(settings, acceptor, boot, ledger, doorbell)
    add("/v2.1/superconductor/holds", holds, get=may.HOLD_LIST, post=may.HOLD_CREATE)
    add("/v2.1/superconductor/holds/{hold_id}", holds, "one", get=may.HOLD_SHOW, delete=may.HOLD_RELEASE)
    add("/v2.1/superconductor/holds/{hold_id}/boot", holds, "boot", post=may.HOLD_BOOT)
    capacity = ServerCapacity(settings, database, registry, catalog, acceptor, schedulers)
    add("/v2.1/superconductor/capacity", capacity, get=may.CAPACITY)
    add("/v2.1/superconductor/rebalance", RebalanceDryRun(acceptor, schedulers), get=may.REBALANCE)
    add("/v2.1/superconductor/status", Status(settings, database, registry, watch), get=may.STATUS)
    app.add_sink(not_served.unrouted, "/v2.1/")
    app.add_sink(not_served.unrouted, "/network/")
    return app
