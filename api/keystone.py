"""Have tokens checked by an identity service, where that is configured: keystonemiddleware around the application."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection
from typing import Any

from oslo_config import cfg

from api.identity import CHECKED
from objects import errors
from service.config import Listing
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

Application = Callable[[dict[str, Any], Any], Any]
"""A WSGI application."""

GROUP = "keystone_authtoken"
TIMEOUT = 5
"""Seconds that one question to the identity service may take, where the configuration says nothing else."""
AWAY = b'{"serviceUnavailable": {"code": 503, "message": "The identity service cannot be asked. Try again in a moment."}}'
_KEPT = ("HTTP_X_AUTH_TOKEN", "HTTP_X_SERVICE_TOKEN", "HTTP_X_OPENSTACK_")
"""Of the headers X-..., those that clients may send; all others are the middleware's to write, or nobody's."""
MISSING = "[api] auth_strategy = keystone needs the Python package keystonemiddleware: pip install 'superconductor[keystone]'"


def list_opts() -> Listing:
    """All that may stand in our group, for those who show configuration; nothing where keystonemiddleware is not installed."""
    found = {option.dest: option for option in _own_options()}
    if found:
        from keystoneauth1 import loading

        for option in map(copy.copy, loading.get_auth_plugin_conf_options("password")):
            option.required = False  # of an API that checks no tokens
            found[option.dest] = option
    return [(GROUP, list(found.values()))] if found else []


def _own_options() -> list[cfg.Opt]:
    """keystonemiddleware's, without those of the way in which it gets its own token: these it registers itself."""
    try:
        from keystonemiddleware.opts import list_auth_token_opts
    except ImportError:
        return []
    return [option for _, options in list_auth_token_opts() for option in options]


def check(conf: cfg.ConfigOpts) -> None:
    """Raises Misconfigured where tokens could not be checked with this configuration."""
    options = _own_options()
    if not options:
        raise errors.Misconfigured(MISSING)
    conf.register_opts(options, group=GROUP)
    conf.set_default("http_connect_timeout", TIMEOUT, group=GROUP)
    given = conf[GROUP]
    if not given.www_authenticate_uri:
        raise errors.Misconfigured(f"[{GROUP}] www_authenticate_uri: say where clients get their tokens")
    if not (given.auth_type or given.auth_section):
        raise errors.Misconfigured(f"[{GROUP}] auth_type: say how this service itself gets a token, for instance password")


def guarded(application: Application, conf: cfg.ConfigOpts, public: Collection[str]) -> Application:
    """``application`` with every request's token checked, except that ``public`` paths need none.

    Without a token, or with one that is not valid, the answer is 401; 503 if the identity service cannot be asked.
    """
    from keystoneauth1.exceptions import ClientException
    from keystonemiddleware.auth_token import AuthProtocol

    checked: Application = AuthProtocol(application, {"oslo_config_config": conf})

    complaints = RateLimitedLog(LOG)

    def choose(environ: dict[str, Any], start_response: Any) -> Any:
        for name in [name for name in environ if name.startswith("HTTP_X_") and not name.startswith(_KEPT)]:
            del environ[name]
        environ[CHECKED] = (environ.get("PATH_INFO") or "/") not in public
        if not environ[CHECKED]:
            return application(environ, start_response)
        try:
            return checked(environ, start_response)
        except ClientException as error:  # of this service's own way to the identity service: the middleware lets some through
            complaints(type(error).__name__, logging.WARNING, "no token can be checked: %s: %s", type(error).__name__, error)
            start_response("503 Service Unavailable", [("Content-Type", "application/json"), ("Content-Length", str(len(AWAY)))])
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [AWAY]

    return choose
