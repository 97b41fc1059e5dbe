"""The routes of the API: which handler serves which path, and under which policy rule."""

from __future__ import annotations

from functools import partial

import falcon

from api.consoles.remote_consoles import ConsoleAuthTokens, RemoteConsoles
from api.hosts.accepted_sizes import HostSizes
from api.hosts.aggregates import HostAggregates
from api.hosts.availability_zones import AvailabilityZones
from api.hosts.hypervisors import Hypervisors
from api.hosts.services import Services
from api.hosts.status import Status
from api.http import policies as may
from api.http.openapi import OpenApi
from api.http.paths import Paths
from api.http.policies import PUBLIC
from api.http.rate_limit import RequestRateLimit
from api.http.versions import CHOICES, ComputeVersion, IdentityVersion, Versions
from api.images.changes import ImageChanges
from api.images.image_service import ImageVersions, StoreImages
from api.images.tags import ImageTags
from api.images.uploads import ImageUploads
from api.legacy.compute_images import ComputeImageMetadata, ComputeImages
from api.legacy.extensions import Extensions
from api.legacy.external_events import ExternalEvents
from api.legacy.image_schemas import ImageSchemas
from api.legacy.physical_hosts import PhysicalHosts
from api.legacy.server_leftovers import ServerPassword, VolumeAttachments
from api.legacy.server_security_groups import ServerSecurityGroups
from api.lookup.boot_secrets import BootSecretsPolicy
from api.lookup.catalog import Catalog
from api.lookup.doorbell import WakeupSender, WakeupTarget
from api.lookup.guest_asker import GuestAsker
from api.lookup.hosts import HostWatch
from api.lookup.image_needs import ImageNeeds
from api.lookup.project_images import ProjectImages
from api.lookup.quota_limits import LimitsInForce
from api.lookup.scheduler_queries import SchedulerAsker
from api.lookup.server_lookup import Finder
from api.lookup.silence import Silences
from api.networks.network_service import NetworkResources, NetworkVersions
from api.networks.ports import NetworkPorts
from api.networks.quotas import NetworkQuotas
from api.opts import ApiSettings
from api.projects.flavor_access import FlavorAccess
from api.projects.flavor_specs import FlavorExtraSpecs
from api.projects.flavors import Flavors, OneFlavor
from api.projects.keypairs import KeyPairs
from api.projects.limits import ProjectLimits
from api.projects.quota_classes import QuotaClasses
from api.projects.quota_sets import QuotaSets
from api.projects.usage import TenantUsage
from api.scheduling.capacity import ServerCapacity
from api.scheduling.dry_run import BootDryRun
from api.scheduling.explanation import Explanation, RequestExplanation
from api.scheduling.holds import Holds
from api.scheduling.rebalance import RebalanceDryRun
from api.servers.accept import Acceptor
from api.servers.actions import Locks, NetworkInfo, ServerActions
from api.servers.addresses import ServerAddresses
from api.servers.console_output import ConsoleActions
from api.servers.diagnostics import ServerDiagnostics
from api.servers.edits import ServerEdits
from api.servers.handlers import BootServers, OneServer, Servers
from api.servers.image_actions import ImageActions
from api.servers.instance_actions import Actions
from api.servers.interfaces import ServerInterfaces
from api.servers.metadata import MetadataItems
from api.servers.migrations import Migrations, ServerMigrations
from api.servers.operate import Operations
from api.servers.operations import OperationActions
from api.servers.server_groups import ServerGroups
from api.servers.tags import Tags
from api.servers.topology import ServerTopology
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.rows.cache import EpochReader
from db.sql.engine import ApiDatabase
from images.store import open_store
from service.vault import Vault


class Routes:
    """Adds the routes of each part of the API. The parts that several of them need are made once."""

    def __init__(
        self,
        settings: ApiSettings,
        database: ApiDatabase,
        registry: CellRegistry,
        ledger: Ledger,
        bell: WakeupTarget,
        guests: GuestAsker,
        vault: Vault,
        schedulers: SchedulerAsker,
    ) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry
        self._ledger = ledger
        self._guests = guests
        self._schedulers = schedulers
        reader = EpochReader(database)
        self._catalog = Catalog(reader)
        self._limits = LimitsInForce(settings, reader)
        self._watch = HostWatch(registry, settings.service_down_time, settings.cell_timeout)
        self._silences = Silences(registry)
        self._finder = Finder(settings, database, registry)
        self._edits = ServerEdits(database, settings.unique_server_names)
        self._doorbell = WakeupSender(bell)
        self._boot_secrets = BootSecretsPolicy(settings, vault)
        self._store = open_store(settings.images_folder)
        self._needs = ImageNeeds(self._store, database)
        self._acceptor = Acceptor(settings, database, self._catalog, self._limits, self._boot_secrets, self._needs)
        rate = RequestRateLimit(settings.boot_rate, settings.boot_burst)
        self._boot = BootServers(settings, rate, self._acceptor, self._doorbell, vault)
        self._operations = Operations(
            settings, ledger, registry, self._catalog, self._limits, self._watch, self._doorbell, self._boot_secrets
        )

    def add_all(self, app: falcon.App[falcon.Request, falcon.Response], paths: Paths) -> None:
        """``paths`` adds the routes to ``app``, and knows them afterwards."""
        self._paths = paths
        self._add = partial(paths.add_route, app)
        self._add_versions()
        self._add_networks()
        self._add_images()
        self._add_servers()
        self._add_server_parts()
        self._add_actions()
        self._add_flavors()
        self._add_hosts()
        self._add_projects()
        self._add_own()

    def _add_versions(self) -> None:
        """Versions, which anybody may read."""
        version = ComputeVersion()
        self._add("/v2", version, "v2", get=PUBLIC)
        self._add(CHOICES, Versions(), "choices", get=PUBLIC)
        self._add("/identity/v3", IdentityVersion(), get=PUBLIC)
        self._add("/", Versions(), get=PUBLIC)
        self._add("/v2.1", version, get=PUBLIC)
        self._add("/v2.1/versions/{version_id}", version, "one", get=PUBLIC)

    def _add_networks(self) -> None:
        """Networks and security groups of ``/network``."""
        network_resources = NetworkResources(self._settings, self._database, self._catalog)
        self._add("/network", NetworkVersions(), get=PUBLIC)
        self._add("/network/v2.0", NetworkVersions(), "resources", get=PUBLIC)
        self._add("/network/v2.0/{collection}", network_resources, "nothing", get=may.NETWORK_SERVICE_LIST)
        self._add("/network/v2.0/{collection}/{resource_id}", network_resources, "none", get=may.NETWORK_SERVICE_SHOW)
        for name in ("network", "subnet", "security_group", "security_group_rule"):
            path = f"/network/v2.0/{name.replace('_', '-')}s"
            self._add(path, network_resources, f"{name}s", get=may.NETWORK_SERVICE_LIST)
            changes = {"delete": may.SECURITY_GROUP_DELETE} if name == "security_group" else {}
            self._add(f"{path}/{{{name}_id}}", network_resources, name, get=may.NETWORK_SERVICE_SHOW, **changes)
        ports = NetworkPorts(self._settings, self._database, self._catalog)
        self._add("/network/v2.0/ports", ports, get=may.NETWORK_SERVICE_LIST, post=may.PORT_CREATE)
        network_quotas, quota_path = NetworkQuotas(self._settings, self._database), "/network/v2.0/quotas/{project_id}"
        self._add(quota_path, network_quotas, get=may.NETWORK_QUOTAS, delete=may.QUOTA_DELETE)
        self._add(f"{quota_path}/default", network_quotas, "default", get=may.NETWORK_QUOTAS)
        self._add(f"{quota_path}/details", network_quotas, "details", get=may.NETWORK_QUOTAS)
        one = "/network/v2.0/ports/{port_id}"
        self._add(one, ports, "one", get=may.NETWORK_SERVICE_SHOW, put=may.PORT_UPDATE, delete=may.PORT_DELETE)
        self._add(f"{one}/tags", ports, "tags", get=may.NETWORK_SERVICE_SHOW, put=may.PORT_UPDATE, delete=may.PORT_UPDATE)

    def _add_images(self) -> None:
        """Images: of the Compute API up to 2.35, and of ``/image``."""
        project_images = ProjectImages(self._store, self._database)
        compute_images = ComputeImages(project_images, self._settings.max_limit)
        image_metadata = ComputeImageMetadata(self._settings, project_images, self._limits)
        update = may.IMAGE_UPDATE
        uploads = ImageUploads(self._settings, project_images, self._database)
        changes = ImageChanges(self._settings, project_images, self._limits)
        images = StoreImages(project_images, uploads, changes, self._settings.max_limit)
        self._add("/v2.1/images", compute_images, get=may.IMAGES)
        self._add("/v2.1/images/detail", compute_images, "detail", get=may.IMAGES)
        self._add("/v2.1/images/{image_id}", compute_images, "one", get=may.IMAGES, delete=may.IMAGE_DELETE)
        self._add("/v2.1/images/{image_id}/metadata", image_metadata, get=may.IMAGES, post=update, put=update)
        self._add("/v2.1/images/{image_id}/metadata/{key}", image_metadata, "item", get=may.IMAGES, put=update, delete=update)
        self._add("/image", ImageVersions(), get=PUBLIC)
        self._add("/image/v2", ImageVersions(), get=PUBLIC)
        self._add("/image/v2/images", images, get=may.IMAGE_LIST, post=may.IMAGE_CREATE)
        self._add("/image/v2/images/{image_id}", images, "one", get=may.IMAGE_SHOW, patch=update, delete=may.IMAGE_DELETE)
        tags = ImageTags(project_images)
        self._add("/image/v2/images/{image_id}/tags/{tag}", tags, put=update, delete=update)
        self._add("/image/v2/images/{image_id}/tasks", images, "tasks", get=may.IMAGE_SHOW)
        self._add("/image/v2/images/{image_id}/file", uploads, "content", get=may.IMAGE_DOWNLOAD, put=may.IMAGE_CREATE)
        self._add("/image/v2/schemas/image", ImageSchemas(), "image", get=may.IMAGE_SHOW)
        self._add("/image/v2/schemas/images", ImageSchemas(), "images", get=may.IMAGE_LIST)

    def _add_servers(self) -> None:
        """Servers."""
        server = OneServer(self._settings, self._finder, self._watch, self._silences, self._edits, self._operations)
        servers = Servers(self._settings, self._database, self._boot, self._watch, self._silences)
        self._add("/v2.1/servers", servers, get=may.LIST, post=may.CREATE)
        self._add("/v2.1/servers/detail", servers, "detail", get=may.LIST_DETAIL)
        self._add("/v2.1/servers/{server_id}", server, get=may.SHOW, put=may.UPDATE, delete=may.DELETE)

    def _add_server_parts(self) -> None:
        """What belongs to one server."""
        metadata = MetadataItems(self._settings, self._edits, self._limits)
        tags = Tags(self._settings, self._edits)
        actions = Actions(self._settings, self._finder)
        addresses = ServerAddresses(self._finder)
        interfaces = ServerInterfaces(self._settings, self._finder, self._catalog, self._operations)
        one_interface = "/v2.1/servers/{server_id}/os-interface/{port_id}"
        volumes = VolumeAttachments(self._finder)
        posted = ServerPassword(self._finder)
        migrations = ServerMigrations(self._settings, self._ledger, self._finder)
        force_complete = may.SERVER_MIGRATION_FORCE_COMPLETE
        self._add(one_interface, interfaces, "one", get=may.INTERFACE_SHOW, delete=may.INTERFACE_DETACH)
        self._add(
            "/v2.1/servers/{server_id}/metadata",
            metadata,
            get=may.METADATA_LIST,
            post=may.METADATA_CREATE,
            put=may.METADATA_REPLACE,
        )
        self._add(
            "/v2.1/servers/{server_id}/metadata/{key}",
            metadata,
            "item",
            get=may.METADATA_SHOW,
            put=may.METADATA_UPDATE,
            delete=may.METADATA_DELETE,
        )
        self._add("/v2.1/servers/{server_id}/tags", tags, get=may.TAG_LIST, put=may.TAG_REPLACE, delete=may.TAG_DELETE_ALL)
        self._add("/v2.1/servers/{server_id}/tags/{tag}", tags, "one", get=may.TAG_SHOW, put=may.TAG_ADD, delete=may.TAG_DELETE)
        self._add("/v2.1/servers/{server_id}/diagnostics", ServerDiagnostics(self._guests), get=may.DIAGNOSTICS)
        self._add("/v2.1/servers/{server_id}/topology", ServerTopology(self._finder), get=may.TOPOLOGY)
        self._add("/v2.1/servers/{server_id}/ips", addresses, get=may.IP_LIST)
        self._add("/v2.1/servers/{server_id}/ips/{network}", addresses, "one", get=may.IP_SHOW)
        self._add("/v2.1/servers/{server_id}/os-interface", interfaces, get=may.INTERFACE_LIST, post=may.INTERFACE_ATTACH)
        self._add("/v2.1/servers/{server_id}/os-volume_attachments", volumes, get=may.VOLUME_ATTACHMENT_LIST)
        self._add("/v2.1/servers/{server_id}/os-volume_attachments/{volume_id}", volumes, "one", get=may.VOLUME_ATTACHMENT_SHOW)
        self._add(
            "/v2.1/servers/{server_id}/os-server-password", posted, get=may.SERVER_PASSWORD_SHOW, delete=may.SERVER_PASSWORD_CLEAR
        )
        self._add("/v2.1/servers/{server_id}/explanation", Explanation(self._finder, self._database), get=may.EXPLAIN)
        self._add("/v2.1/servers/{server_id}/os-instance-actions", actions, get=may.ACTIONS)
        self._add("/v2.1/servers/{server_id}/os-instance-actions/{request_id}", actions, "one", get=may.ACTION)
        self._add("/v2.1/servers/{server_id}/migrations", migrations, get=may.SERVER_MIGRATION_LIST)
        self._add(
            "/v2.1/servers/{server_id}/migrations/{migration}",
            migrations,
            "one",
            get=may.SERVER_MIGRATION_SHOW,
            delete=may.SERVER_MIGRATION_ABORT,
        )
        self._add("/v2.1/servers/{server_id}/migrations/{migration}/action", migrations, "action", post=force_complete)
        self._add("/v2.1/os-migrations", Migrations(self._settings, self._ledger), get=may.MIGRATION_LIST)

    def _add_actions(self) -> None:
        """Actions on servers, consoles, and extensions, which follow from what is served."""
        remote_consoles = RemoteConsoles(self._settings, self._database, self._guests)
        console_actions = (*ConsoleActions(self._guests).server_actions(), *remote_consoles.server_actions())
        operation_actions = OperationActions(
            self._operations, self._finder, self._watch, self._boot_secrets, self._needs, self._schedulers
        ).server_actions()
        image_actions = ImageActions(self._operations, self._finder, self._store).server_actions()
        security_groups = ServerSecurityGroups(self._finder)
        own_actions = (*Locks(self._edits).server_actions(), *NetworkInfo(self._finder).server_actions())
        every = (*own_actions, *operation_actions, *image_actions, *console_actions, *security_groups.server_actions())
        server_actions = ServerActions(self._settings, every)
        self._add("/v2.1/servers/{server_id}/action", server_actions, post=may.ACT)
        self._add("/v2.1/servers/{server_id}/remote-consoles", remote_consoles, post=may.REMOTE_CONSOLES)
        self._add("/v2.1/os-console-auth-tokens/{token}", ConsoleAuthTokens(self._database), get=may.CONSOLE_TOKENS)
        self._add("/v2.1/servers/{server_id}/os-security-groups", security_groups, get=may.SECURITY_GROUP_LIST)
        extensions = Extensions(
            lambda operation: operation.removeprefix("action ") in server_actions.action_names or self._paths.is_served(operation)
        )
        self._add("/v2.1/extensions", extensions, get=may.EXTENSIONS)
        self._add("/v2.1/extensions/{alias}", extensions, "one", get=may.EXTENSIONS)

    def _add_flavors(self) -> None:
        """Flavors."""
        flavors = Flavors(self._settings, self._database, self._catalog)
        flavor = OneFlavor(self._settings, self._database, self._catalog)
        extra_specs = FlavorExtraSpecs(self._settings, self._database, self._catalog)
        flavor_access = FlavorAccess(self._settings, self._database)
        self._add("/v2.1/flavors", flavors, get=may.FLAVORS, post=may.FLAVOR_CREATE)
        self._add("/v2.1/flavors/detail", flavors, "detail", get=may.FLAVORS)
        self._add("/v2.1/flavors/{flavor_id}", flavor, get=may.FLAVORS, put=may.FLAVOR_UPDATE, delete=may.FLAVOR_DELETE)
        self._add("/v2.1/flavors/{flavor_id}/action", flavor_access, "action", post=may.FLAVOR_ACT)
        self._add("/v2.1/flavors/{flavor_id}/os-flavor-access", flavor_access, get=may.FLAVOR_ACCESS)
        self._add("/v2.1/flavors/{flavor_id}/os-extra_specs", extra_specs, get=may.EXTRA_SPECS, post=may.EXTRA_SPEC_CREATE)
        self._add(
            "/v2.1/flavors/{flavor_id}/os-extra_specs/{key}",
            extra_specs,
            "one",
            get=may.EXTRA_SPEC_SHOW,
            put=may.EXTRA_SPEC_UPDATE,
            delete=may.EXTRA_SPEC_DELETE,
        )

    def _add_hosts(self) -> None:
        """Services, hosts, hypervisors, aggregates and zones."""
        services = Services(self._settings, self._ledger, self._registry, self._watch, self._silences)
        physical_hosts = PhysicalHosts(self._settings, self._database, self._registry, services)
        host_aggregates = HostAggregates(self._settings, self._database)
        hypervisors = Hypervisors(self._settings, self._database, self._registry, self._watch, self._silences)
        zones = AvailabilityZones(self._settings, self._database, self._registry, self._watch, self._silences)
        self._add("/v2.1/os-services", services, get=may.SERVICES)
        self._add("/v2.1/os-services/{service_id}", services, "one", put=may.SERVICE_UPDATE, delete=may.SERVICE_DELETE)
        self._add("/v2.1/os-hosts", physical_hosts, get=may.HOST_LIST)
        self._add("/v2.1/os-hosts/{host}", physical_hosts, "one", get=may.HOST_SHOW, put=may.HOST_UPDATE)
        for action, rule in (("startup", may.HOST_START), ("shutdown", may.HOST_SHUTDOWN), ("reboot", may.HOST_REBOOT)):
            self._add(f"/v2.1/os-hosts/{{host}}/{action}", physical_hosts, "power", get=rule)
        self._add("/v2.1/os-server-external-events", ExternalEvents(self._settings, self._database), post=may.EXTERNAL_EVENTS)
        self._add("/v2.1/os-aggregates", host_aggregates, get=may.AGGREGATE_LIST, post=may.AGGREGATE_CREATE)
        self._add(
            "/v2.1/os-aggregates/{aggregate_id}",
            host_aggregates,
            "one",
            get=may.AGGREGATE_SHOW,
            put=may.AGGREGATE_UPDATE,
            delete=may.AGGREGATE_DELETE,
        )
        self._add("/v2.1/os-aggregates/{aggregate_id}/action", host_aggregates, "action", post=may.AGGREGATE_ACT)
        self._add("/v2.1/os-hypervisors", hypervisors, get=may.HYPERVISOR_LIST)
        self._add("/v2.1/os-hypervisors/detail", hypervisors, "detail", get=may.HYPERVISOR_DETAIL)
        self._add("/v2.1/os-hypervisors/statistics", hypervisors, "statistics", get=may.HYPERVISOR_STATISTICS)
        self._add("/v2.1/os-hypervisors/{hypervisor_id}", hypervisors, "one", get=may.HYPERVISOR_SHOW)
        self._add("/v2.1/os-hypervisors/{hypervisor_id}/uptime", hypervisors, "uptime", get=may.HYPERVISOR_UPTIME)
        self._add("/v2.1/os-hypervisors/{hypervisor_id}/search", hypervisors, "search", get=may.HYPERVISOR_SEARCH)
        self._add("/v2.1/os-hypervisors/{hypervisor_id}/servers", hypervisors, "servers", get=may.HYPERVISOR_SERVERS)
        self._add("/v2.1/os-availability-zone", zones, get=may.ZONES)
        self._add("/v2.1/os-availability-zone/detail", zones, "detail", get=may.ZONES_DETAIL)

    def _add_projects(self) -> None:
        """What projects and users have: key pairs, groups, limits, quotas, usage."""
        quotas = QuotaSets(self._settings, self._database, self._limits)
        quota_classes = QuotaClasses(self._settings, self._database, self._limits)
        keypairs = KeyPairs(self._settings, self._database, self._limits)
        groups = ServerGroups(self._settings, self._database, self._limits)
        usage = TenantUsage(self._settings, self._database, self._silences)
        self._add("/v2.1/os-keypairs", keypairs, get=may.KEYPAIR_LIST, post=may.KEYPAIR_CREATE)
        self._add("/v2.1/os-keypairs/{name}", keypairs, "one", get=may.KEYPAIR_SHOW, delete=may.KEYPAIR_DELETE)
        self._add("/v2.1/os-server-groups", groups, get=may.GROUP_LIST, post=may.GROUP_CREATE)
        self._add("/v2.1/os-server-groups/{group_id}", groups, "one", get=may.GROUP_SHOW, delete=may.GROUP_DELETE)
        self._add("/v2.1/limits", ProjectLimits(self._database, self._limits), get=may.LIMITS)
        self._add("/v2.1/os-simple-tenant-usage", usage, get=may.USAGES)
        self._add("/v2.1/os-simple-tenant-usage/{project_id}", usage, "one", get=may.USAGE)
        self._add("/v2.1/os-quota-sets/{project_id}", quotas, get=may.QUOTA_SHOW, put=may.QUOTA_UPDATE, delete=may.QUOTA_DELETE)
        self._add("/v2.1/os-quota-sets/{project_id}/detail", quotas, "detail", get=may.QUOTA_DETAIL)
        self._add("/v2.1/os-quota-sets/{project_id}/defaults", quotas, "defaults", get=may.QUOTA_DEFAULTS)
        self._add("/v2.1/os-quota-class-sets/{quota_class}", quota_classes, get=may.QUOTA_CLASS_SHOW, put=may.QUOTA_CLASS_UPDATE)

    def _add_own(self) -> None:
        """What the Compute API does not have."""
        holds = Holds(self._settings, self._acceptor, self._boot, self._ledger, self._doorbell)
        capacity = ServerCapacity(self._settings, self._database, self._registry, self._catalog, self._acceptor, self._schedulers)
        self._add("/v2.1/superconductor/requests/{request_id}/explanation", RequestExplanation(self._database), get=may.EXPLAIN)
        self._add("/v2.1/superconductor/openapi.json", OpenApi(self._paths), get=may.OPENAPI)
        self._add("/v2.1/superconductor/dry-run", BootDryRun(self._acceptor, self._boot, self._schedulers), post=may.DRY_RUN)
        self._add("/v2.1/superconductor/holds", holds, get=may.HOLD_LIST, post=may.HOLD_CREATE)
        self._add("/v2.1/superconductor/holds/{hold_id}", holds, "one", get=may.HOLD_SHOW, delete=may.HOLD_RELEASE)
        self._add("/v2.1/superconductor/holds/{hold_id}/boot", holds, "boot", post=may.HOLD_BOOT)
        self._add("/v2.1/superconductor/capacity", capacity, get=may.CAPACITY)
        self._add("/v2.1/superconductor/rebalance", RebalanceDryRun(self._acceptor, self._schedulers), get=may.REBALANCE)
        self._add("/v2.1/superconductor/hosts/{host}/accept", HostSizes(self._settings, self._registry), post=may.HOST_ACCEPT)
        self._add(
            "/v2.1/superconductor/status", Status(self._settings, self._database, self._registry, self._watch), get=may.STATUS
        )
