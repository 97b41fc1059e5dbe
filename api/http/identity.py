"""Identify the caller: from unverified headers (noauth), or from headers that keystonemiddleware sets after it validated a
token.
"""

from __future__ import annotations

from typing import Protocol

import falcon

from api.http.callers import Callers
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
