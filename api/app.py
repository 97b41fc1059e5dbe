"""The WSGI application."""

from __future__ import annotations

import falcon

from api.http import faults, not_served
from api.http.middleware import Intake
from api.http.paths import Paths
from api.http.policy import PolicyRules
from api.opts import ApiSettings
from api.routes import Routes

App = falcon.App[falcon.Request, falcon.Response]


def make_app(settings: ApiSettings, routes: Routes) -> App:
    """The application with these routes. Thread-safe. Raises Misconfigured for an invalid policy file."""
    paths = Paths()
    app: App = falcon.App(middleware=[Intake(settings, PolicyRules(settings.policy_files)), paths])
    app.req_options.strip_url_path_trailing_slash = True
    faults.install_handlers(app)
    routes.add_all(app, paths)
    app.add_sink(not_served.refuse_unrouted, "/v2.1/")
    app.add_sink(not_served.refuse_unrouted, "/network/")
    return app
