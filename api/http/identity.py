"""Identify the caller: from unverified headers (noauth), or from headers that keystonemiddleware sets after it validated a
token.
"""

from __future__ import annotations

import ipaddress
from typing import Protocol
from urllib.parse import urlsplit

import falcon

from api.http.policy import Caller
from api.opts import ApiSettings
from objects import errors
from objects.ids import checked_identifier

PUBLIC_PATHS = frozenset(
    {
        "/",
        "/v2",
        "/v2/",
        "/v2.0",
        "/v2.0/",
        "/v2.1",
        "/v2.1/",
        "/identity/v3",
        "/identity/v3/",
        "/image",
        "/image/",
        "/image/v2",
        "/image/v2/",
        "/network",
        "/network/",
        "/network/v2.0",
        "/network/v2.0/",
    },
)
"""Version documents, which clients read without a token. Compared exactly."""

CHECKED = "superconductor.checked"
"""Key in the request's environment: whether its path required a valid token. Only the guard can set it, no header can."""

ANYBODY = Caller(project_id="", user_id="", roles=frozenset())
"""The caller of public paths if callers are authenticated."""

IMPLIED = {"admin": ("admin", "member", "reader"), "member": ("member", "reader")}
"""Roles that a role implies, as in the identity service's defaults."""


class Identity(Protocol):
    """The way in which callers are identified."""

    def identify_caller(self, req: falcon.Request, in_path: str | None) -> Caller:
        """``in_path``: the project in the path. Raises errors.Forbidden, Invalid or falcon.HTTPUnauthorized."""
        ...


class Callers:
    """Refuses callers on other machines, and web pages in a browser on this machine.

    Any web page can make a browser send requests to loopback. Such a request names the page's host in ``Origin``, or in ``Host`` if
    the page's name resolves to 127.0.0.1 (DNS rebinding). With ``noauth_anywhere`` every caller is served.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._anybody = settings.noauth_anywhere
        endpoint = urlsplit(settings.public_endpoint).hostname
        names = [name.lower().rstrip(".") for name in (settings.host, endpoint, *settings.allowed_hosts) if name]
        self._names = {name.removeprefix("[").removesuffix("]") for name in names}

    def check_peer(self, req: falcon.Request) -> None:
        """Raises errors.Forbidden, or errors.Invalid if only ``Host`` is wrong."""
        if self._anybody:
            return
        peer = req.remote_addr
        if peer and not _is_loopback(peer):
            raise errors.Forbidden("This API authenticates nobody, so it serves its own machine only ([api] noauth_anywhere).")
        named = req.get_header("Host")
        if named is not None and not self._is_ours(f"//{named}"):
            raise errors.Invalid(
                f"Host: {named[:80]!r} is not a name of this API, which authenticates nobody; "
                "ask at its address, or list the name in [api] allowed_hosts."
            )
        origin = req.get_header("Origin")
        if origin is not None and not self._is_ours(origin):
            raise errors.Forbidden(f"Origin: pages of {origin[:80]!r} may not use this API, because it authenticates nobody.")

    def link_prefix(self, req: falcon.Request) -> str:
        """Scheme, host and port for links. ``Host`` is used only if it is a name of this API, because clients can send any."""
        named = req.get_header("Host")
        if named is None or self._is_ours(f"//{named}"):
            return req.prefix
        return f"{req.scheme}://{req.env['SERVER_NAME']}:{req.env['SERVER_PORT']}"

    def _is_ours(self, url: str) -> bool:
        """Whether the host in ``url`` is this machine or one of our names. An invalid URL is not ours."""
        try:
            parts = urlsplit(url)
            _ = parts.port  # raises ValueError if it is invalid
        except ValueError:
            return False
        host = (parts.hostname or "").rstrip(".") if "@" not in parts.netloc else ""
        return host == "localhost" or host in self._names or _is_loopback(host)


class Nobody:
    """No authentication; only callers on this machine are served.

    The project comes from the path or ``X-Project-Id``, the user from ``X-User-Id``. The caller is an administrator unless
    ``X-Roles`` is sent. Any token is accepted.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._callers = Callers(settings)

    def identify_caller(self, req: falcon.Request, in_path: str | None) -> Caller:
        self._callers.check_peer(req)
        in_header = _read_identifier(req, "X-Project-Id")
        _check_projects_agree(in_path, in_header)
        project = in_path or in_header or self._settings.default_project
        roles = _parse_roles(req.get_header("X-Roles") or "") if req.get_header("X-Roles") is not None else {"admin"}
        implied = {name for role in roles for name in IMPLIED.get(role, (role,))}
        return Caller(project_id=project, user_id=_read_identifier(req, "X-User-Id") or project, roles=frozenset(implied))


class Keystone:
    """The identity that keystonemiddleware read from the caller's token. The guard (``api/http/keystone.py``) decides which paths
    need none.
    """

    def identify_caller(self, req: falcon.Request, in_path: str | None) -> Caller:
        if req.env.get(CHECKED) is False:
            return ANYBODY
        if (
            req.env.get(CHECKED) is not True or req.get_header("X-Identity-Status") != "Confirmed"
        ):  # defence in depth: the middleware should have refused it
            raise falcon.HTTPUnauthorized(description="The request you have made requires authentication.")
        project, user = _read_identifier(req, "X-Project-Id"), _read_identifier(req, "X-User-Id")
        if not project or not user:
            raise errors.Forbidden("The token is not scoped to a project: request one that is.")
        _check_projects_agree(in_path, project)
        return Caller(project_id=project, user_id=user, roles=frozenset(_parse_roles(req.get_header("X-Roles") or "")))


def _check_projects_agree(in_path: str | None, in_header: str | None) -> None:
    if in_path and in_header and in_path != in_header:
        raise errors.Invalid(f"X-Project-Id: {in_header!r} is not the project in the path, {in_path!r}")


def _parse_roles(header: str) -> set[str]:
    return {role.strip().lower() for role in header.split(",") if role.strip()}


def _read_identifier(req: falcon.Request, header: str) -> str | None:
    value = req.get_header(header)
    return checked_identifier(header, value) if value else None


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
