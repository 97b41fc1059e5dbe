"""Validate tokens with keystonemiddleware around the application, if an identity service is configured."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection
from typing import Any

from oslo_config import cfg

from api.http.identity import CHECKED
from objects import errors
from service.config import Listing
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

Application = Callable[[dict[str, Any], Any], Any]
"""A WSGI application."""

GROUP = "keystone_authtoken"
HTTP_TIMEOUT_S = 5
"""Default seconds that one request to the identity service may take."""
AWAY = b'{"serviceUnavailable": {"code": 503, "message": "The identity service cannot be asked. Try again in a moment."}}'
_ALLOWED_X_HEADERS = ("HTTP_X_AUTH_TOKEN", "HTTP_X_SERVICE_TOKEN", "HTTP_X_OPENSTACK_")
"""The X- headers that clients may send; all others are removed, so that only the middleware can set them."""
MISSING = "[api] auth_strategy = keystone needs the Python package keystonemiddleware: pip install 'superconductor-cloud[keystone]'"


def list_opts() -> Listing:
    """All options of our group, for displaying the configuration; empty if keystonemiddleware is not installed."""
    options = {option.dest: option for option in _own_options()}
    if options:
        from keystoneauth1 import loading

        for option in map(copy.copy, loading.get_auth_plugin_conf_options("password")):
            option.required = False  # an API without token validation does not need it
            options[option.dest] = option
    return [(GROUP, list(options.values()))] if options else []


def _own_options() -> list[cfg.Opt]:
    """keystonemiddleware's options, without those of its authentication plugin, which it registers itself."""
    try:
        from keystonemiddleware.opts import list_auth_token_opts
    except ImportError:
        return []
    return [option for _, options in list_auth_token_opts() for option in options]


def check_options(conf: cfg.ConfigOpts) -> None:
    """Raises Misconfigured if tokens cannot be validated with this configuration."""
    options = _own_options()
    if not options:
        raise errors.Misconfigured(MISSING)
    conf.register_opts(options, group=GROUP)
    conf.set_default("http_connect_timeout", HTTP_TIMEOUT_S, group=GROUP)
    values = conf[GROUP]
    if not values.www_authenticate_uri:
        raise errors.Misconfigured(f"[{GROUP}] www_authenticate_uri: say where clients get their tokens")
    if not (values.auth_type or values.auth_section):
        raise errors.Misconfigured(f"[{GROUP}] auth_type: say how this service itself gets a token, for instance password")


def guard_application(application: Application, conf: cfg.ConfigOpts, public: Collection[str]) -> Application:
    """``application`` with token validation for every request, except on ``public`` paths.

    The answer is 401 if the token is missing or invalid, and 503 if the identity service is unavailable.
    """
    from keystoneauth1.exceptions import ClientException
    from keystonemiddleware.auth_token import AuthProtocol

    checked: Application = AuthProtocol(application, {"oslo_config_config": conf})

    complaints = RateLimitedLog(LOG)

    def validate_token(environ: dict[str, Any], start_response: Any) -> Any:
        for name in [name for name in environ if name.startswith("HTTP_X_") and not name.startswith(_ALLOWED_X_HEADERS)]:
            del environ[name]
        environ[CHECKED] = (environ.get("PATH_INFO") or "/") not in public
        if not environ[CHECKED]:
            return application(environ, start_response)
        try:
            return checked(environ, start_response)
        except ClientException as error:  # from our own access to the identity service: the middleware does not catch all
            complaints(type(error).__name__, logging.WARNING, "no token can be checked: %s: %s", type(error).__name__, error)
            start_response("503 Service Unavailable", [("Content-Type", "application/json"), ("Content-Length", str(len(AWAY)))])
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [AWAY]

    return validate_token
