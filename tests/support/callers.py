"""Callers of the API as its handlers see them, under the default policy."""

from __future__ import annotations

from api.http.call import Call
from api.http.identity import IMPLIED
from api.http.microversions import MAXIMUM, Version
from api.http.policies import ADMIN
from api.http.policy import Caller, PolicyRules, Rights
from objects.context import RequestContext

_POLICY = PolicyRules()


def caller(*roles: str, project: str = "p1", user: str = "u1") -> Caller:
    """With these roles and what they imply."""
    return Caller(project_id=project, user_id=user, roles=frozenset(name for role in roles for name in IMPLIED.get(role, (role,))))


def call(version: Version = MAXIMUM, *, admin: bool = True, project: str = "p1", project_path: str = "") -> Call:
    """Of an administrator, or else a member, of ``project``."""
    rights = Rights(_POLICY, caller("admin" if admin else "member", project=project))
    context = RequestContext(request_id="req-1", project_id=project, user_id="u1", is_admin=rights.is_allowed(ADMIN))
    return Call(context=context, version=version, prefix="http://api", rights=rights, project_path=project_path)
