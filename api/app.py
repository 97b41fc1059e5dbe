"""The WSGI application."""

from __future__ import annotations

import falcon

from api import faults, not_served
from api.doorbell import Bell
from api.guest_asker import GuestAsker
from api.middleware import Intake
from api.opts import ApiSettings
from api.paths import Paths
from api.policy import PolicyRules
from api.routes import Routes
from api.scheduler import SchedulerAsker
from cells.registry import CellRegistry
from db.api.claims import Ledger
from db.sql.engine import ApiDatabase
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
    paths = Paths()
    app: App = falcon.App(middleware=[Intake(settings, PolicyRules(settings.policy_files)), paths])
    app.req_options.strip_url_path_trailing_slash = True
    faults.install(app)
    Routes(app, paths, settings, database, registry, ledger, bell, guests, vault, schedulers).add_all()
    app.add_sink(not_served.unrouted, "/v2.1/")
    app.add_sink(not_served.unrouted, "/network/")
    return app
