"""The WSGI application: paths, and what serves each."""

from __future__ import annotations

import falcon

from api import faults
from api.accept import Acceptor
from api.catalog import Catalog
from api.doorbell import Bell, Doorbell
from api.explanation import Explanation
from api.finding import Finder
from api.flavors import Flavors, OneFlavor
from api.hosts import HostWatch
from api.middleware import Intake
from api.opts import Settings
from api.servers import BootServers, OneServer, Servers
from api.status import Status
from api.versions import ComputeVersion, Extensions, IdentityVersion, Versions
from cells.registry import CellRegistry
from db.claims import Ledger
from db.engine import Database

App = falcon.App[falcon.Request, falcon.Response]


def make_app(settings: Settings, database: Database, registry: CellRegistry, ledger: Ledger, bell: Bell) -> App:
    """The application around these. It may be called from any number of threads."""
    catalog = Catalog(database)
    watch = HostWatch(registry, settings.service_down_time)
    doorbell = Doorbell(bell)
    finder = Finder(settings, database, registry)
    boot = BootServers(settings, Acceptor(settings, database, catalog), doorbell)
    servers = Servers(settings, database, boot, watch)
    flavors = Flavors(settings, catalog)
    flavor = OneFlavor(catalog)

    app: App = falcon.App(middleware=[Intake(settings)])
    app.req_options.strip_url_path_trailing_slash = True
    faults.install(app)
    app.add_route("/", Versions())
    app.add_route("/v2.1", ComputeVersion())
    app.add_route("/identity/v3", IdentityVersion())
    app.add_route("/v2.1/extensions", Extensions())
    app.add_route("/v2.1/servers", servers)
    app.add_route("/v2.1/servers/detail", servers, suffix="detail")
    app.add_route("/v2.1/servers/{server_id}", OneServer(finder, watch, ledger, doorbell))
    app.add_route("/v2.1/servers/{server_id}/explanation", Explanation(finder, database))
    app.add_route("/v2.1/flavors", flavors)
    app.add_route("/v2.1/flavors/detail", flavors, suffix="detail")
    app.add_route("/v2.1/flavors/{flavor_id}", flavor)
    app.add_route("/v2.1/flavors/{flavor_id}/os-extra_specs", flavor, suffix="extra_specs")
    app.add_route("/v2.1/superconductor/status", Status(database, registry, watch))
    return app
