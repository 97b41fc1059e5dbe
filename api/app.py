"""The WSGI application: paths, and what serves each."""

from __future__ import annotations

import falcon

from api import faults
from api.accept import Acceptor
from api.actions import Actions
from api.catalog import Catalog
from api.confidence import Confidence
from api.doorbell import Bell, Doorbell
from api.explanation import Explanation, RequestExplanation
from api.finding import Finder
from api.flavors import Flavors, OneFlavor
from api.hosts import HostWatch
from api.limits import ProjectLimits
from api.middleware import Intake
from api.opts import Settings
from api.quota_sets import QuotaSets
from api.servers import BootServers, OneServer, Servers
from api.silence import Silences
from api.status import Status
from api.versions import ComputeVersion, Extensions, IdentityVersion, NoImages, Versions
from cells.registry import CellRegistry
from db.claims import Ledger
from db.engine import Database
from service.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def make_app(settings: Settings, database: Database, registry: CellRegistry, ledger: Ledger, bell: Bell, vault: Vault) -> App:
    """The application around these. It may be called from any number of threads."""
    catalog = Catalog(database)
    watch = HostWatch(registry, settings.service_down_time, settings.cell_timeout)
    doorbell = Doorbell(bell)
    finder = Finder(settings, database, registry)
    boot = BootServers(settings, Acceptor(settings, database, catalog, Confidence(settings, vault)), doorbell)
    silences = Silences(registry)
    servers = Servers(settings, database, boot, watch, silences)
    flavors = Flavors(settings, catalog)
    flavor = OneFlavor(catalog)
    quotas = QuotaSets(settings, database)

    app: App = falcon.App(middleware=[Intake(settings)])
    app.req_options.strip_url_path_trailing_slash = True
    faults.install(app)
    app.add_route("/", Versions())
    app.add_route("/v2.1", ComputeVersion())
    app.add_route("/identity/v3", IdentityVersion())
    app.add_route("/v2.1/extensions", Extensions())
    app.add_route("/v2.1/images", NoImages())
    app.add_route("/v2.1/images/{image_id}", NoImages())
    app.add_route("/v2.1/servers", servers)
    app.add_route("/v2.1/servers/detail", servers, suffix="detail")
    app.add_route("/v2.1/servers/{server_id}", OneServer(finder, watch, ledger, doorbell, silences))
    app.add_route("/v2.1/servers/{server_id}/explanation", Explanation(finder, database))
    actions = Actions(finder)
    app.add_route("/v2.1/servers/{server_id}/os-instance-actions", actions)
    app.add_route("/v2.1/servers/{server_id}/os-instance-actions/{request_id}", actions, suffix="one")
    app.add_route("/v2.1/flavors", flavors)
    app.add_route("/v2.1/flavors/detail", flavors, suffix="detail")
    app.add_route("/v2.1/flavors/{flavor_id}", flavor)
    app.add_route("/v2.1/flavors/{flavor_id}/os-extra_specs", flavor, suffix="extra_specs")
    app.add_route("/v2.1/limits", ProjectLimits(settings, database))
    app.add_route("/v2.1/os-quota-sets/{project_id}", quotas)
    app.add_route("/v2.1/os-quota-sets/{project_id}/detail", quotas, suffix="detail")
    app.add_route("/v2.1/os-quota-sets/{project_id}/defaults", quotas, suffix="defaults")
    app.add_route("/v2.1/superconductor/requests/{request_id}/explanation", RequestExplanation(database))
    app.add_route("/v2.1/superconductor/status", Status(settings, database, registry, watch))
    return app
