"""Who asks: out of headers that anyone may write (noauth), or that keystonemiddleware has written after it checked a token."""

from __future__ import annotations

from typing import Protocol

import falcon

from api.callers import Callers
from api.opts import ApiSettings
from api.policy import Caller
from objects import errors
from objects.ids import checked_identifier

PUBLIC_PATHS = frozenset({"/", "/v2.1", "/v2.1/", "/identity/v3", "/identity/v3/"})
"""Version documents, which clients read before they have a token. Compared exactly."""

CHECKED = "superconductor.checked"
"""The key of a request's environment that the guard alone can write, and no header: whether its token was found valid."""

ANYBODY = Caller(project_id="", user_id="", roles=frozenset())
"""Who reads those where callers are authenticated."""

IMPLIED = {"admin": ("admin", "member", "reader"), "member": ("member", "reader")}
"""Roles that come with a role, as the identity service has it by default."""


class Identity(Protocol):
    """How callers are known."""

    def caller(self, req: falcon.Request, in_path: str | None) -> Caller:
        """``in_path``: the project that the path names. Raises errors.Forbidden, Invalid or falcon.HTTPUnauthorized."""
        ...


class Nobody:
    """Nobody is authenticated, so callers are this machine's only.

    The project out of the path or ``X-Project-Id``, the user out of ``X-User-Id``; an administrator unless ``X-Roles`` is sent.
    Any token is accepted.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._callers = Callers(settings)

    def caller(self, req: falcon.Request, in_path: str | None) -> Caller:
        self._callers.check(req)
        in_header = _identifier(req, "X-Project-Id")
        _agree(in_path, in_header)
        project = in_path or in_header or self._settings.default_project
        roles = _roles(req.get_header("X-Roles") or "") if req.get_header("X-Roles") is not None else {"admin"}
        implied = {name for role in roles for name in IMPLIED.get(role, (role,))}
        return Caller(project_id=project, user_id=_identifier(req, "X-User-Id") or project, roles=frozenset(implied))


class Keystone:
    """What keystonemiddleware found out of the caller's token. The guard (``api/keystone.py``) decides which path needs none."""

    def caller(self, req: falcon.Request, in_path: str | None) -> Caller:
        if req.env.get(CHECKED) is False:
            return ANYBODY
        if (
            req.env.get(CHECKED) is not True or req.get_header("X-Identity-Status") != "Confirmed"
        ):  # it lets nobody else through; should it ever
            raise falcon.HTTPUnauthorized(description="The request you have made requires authentication.")
        project, user = _identifier(req, "X-Project-Id"), _identifier(req, "X-User-Id")
        if not project or not user:
            raise errors.Forbidden("The token is of no project: ask for one that is scoped to the project to work in.")
        _agree(in_path, project)
        return Caller(project_id=project, user_id=user, roles=frozenset(_roles(req.get_header("X-Roles") or "")))


def _agree(in_path: str | None, in_header: str | None) -> None:
    if in_path and in_header and in_path != in_header:
        raise errors.Invalid(f"X-Project-Id: {in_header!r} is not the project in the path, {in_path!r}")


def _roles(given: str) -> set[str]:
    return {role.strip().lower() for role in given.split(",") if role.strip()}


def _identifier(req: falcon.Request, header: str) -> str | None:
    value = req.get_header(header)
    return checked_identifier(header, value) if value else None
