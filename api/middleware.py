"""What happens to every request before its handler and to every answer after it."""

from __future__ import annotations

import re
import time
from uuid import uuid4

import falcon

from api import microversions
from api.call import Call
from api.callers import Callers
from api.microversions import HEADER, LEGACY_HEADER
from api.opts import Settings
from objects import errors
from objects.context import RequestContext
from service import logs, metrics

COLLECTIONS = frozenset({"servers", "flavors", "limits", "os-quota-sets", "extensions", "images", "superconductor"})
"""First words of our paths behind /v2.1; a word that stands before one of them is a project id."""

_IDENTIFIER = re.compile(r"[A-Za-z0-9._@-]{1,255}", re.ASCII)


class Intake:
    """Gives the request its id, its identity and its microversion. Nobody is authenticated, so callers are this machine's only.

    Identity: the project out of the path or ``X-Project-Id``, the user out of ``X-User-Id``; an administrator unless ``X-Roles``
    is sent and does not hold ``admin``. Any token is accepted.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._callers = Callers(settings)

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.request_id = request_id = f"req-{uuid4()}"
        req.context.began = time.monotonic()
        logs.bind(request_id)
        self._callers.check(req)
        in_path = _take_project(req)
        version = microversions.MINIMUM
        if req.path.startswith("/v2.1"):
            version = _version(req)
        req.context.call = Call(
            context=self._identity(req, request_id, in_path),
            version=version,
            prefix=self._settings.public_endpoint.rstrip("/") or req.prefix,
            project_path=f"/{in_path}" if in_path else "",
        )

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: object, req_succeeded: bool) -> None:
        request_id = str(req.context.get("request_id", ""))
        resp.set_header("x-openstack-request-id", request_id)
        if began := req.context.get("began"):
            metrics.API_REQUEST.labels(_method(req), resp.status_code).observe(time.monotonic() - began)
        resp.set_header("x-compute-request-id", request_id)
        call = req.context.get("call")
        if isinstance(call, Call) and req.path.startswith("/v2.1"):
            version = microversions.text(call.version)
            resp.set_header(HEADER, f"{microversions.SERVICE} {version}")
            resp.set_header(LEGACY_HEADER, version)
            resp.set_header("Vary", f"{HEADER}, {LEGACY_HEADER}")

    def _identity(self, req: falcon.Request, request_id: str, in_path: str | None) -> RequestContext:
        in_header = _identifier(req, "X-Project-Id")
        if in_path and in_header and in_path != in_header:
            raise errors.Invalid(f"X-Project-Id: {in_header!r} is not the project in the path, {in_path!r}")
        project = in_path or in_header or self._settings.default_project
        roles = req.get_header("X-Roles")
        return RequestContext(
            request_id=request_id,
            project_id=project,
            user_id=_identifier(req, "X-User-Id") or project,
            is_admin=roles is None or "admin" in {role.strip().lower() for role in roles.split(",")},
        )


def _version(req: falcon.Request) -> microversions.Version:
    answer = microversions.requested(req.get_header(HEADER), req.get_header(LEGACY_HEADER))
    if isinstance(answer, microversions.Refusal):
        if answer.known:
            raise falcon.HTTPNotAcceptable(description=answer.reason)
        raise errors.Invalid(answer.reason)
    return answer


def _method(req: falcon.Request) -> str:
    """For a label: clients may send any."""
    return req.method if req.method in falcon.HTTP_METHODS else "other"


def _take_project(req: falcon.Request) -> str | None:
    """``/v2.1/{project_id}/servers`` is ``/v2.1/servers`` for that project."""
    parts = req.path.split("/", 4)
    if len(parts) < 4 or parts[1] != "v2.1" or parts[2] in COLLECTIONS or parts[3] not in COLLECTIONS:
        return None
    project = parts.pop(2)
    req.path = "/".join(parts)
    return checked_identifier("project_id", project)


def _identifier(req: falcon.Request, header: str) -> str | None:
    value = req.get_header(header)
    return checked_identifier(header, value) if value else None


def checked_identifier(name: str, value: str) -> str:
    """The id of a project or user. Raises errors.Invalid, saying that it is ``name``, for what can be none."""
    if not _IDENTIFIER.fullmatch(value):
        raise errors.Invalid(f"{name}: only letters, digits and . _ @ - can be used, 255 of them at most")
    return value
