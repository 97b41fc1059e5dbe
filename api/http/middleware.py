"""Processing of every request before its handler, and of every answer after it."""

from __future__ import annotations

import time
from uuid import uuid4

import falcon

from api.http import microversions
from api.http.call import Call
from api.http.identity import Callers, Identity, Keystone, Nobody
from api.http.microversions import HEADER, LEGACY_HEADER
from api.http.not_served import COLLECTIONS
from api.http.paths import METHODS
from api.http.policies import ADMIN
from api.http.policy import PolicyRules, Rights
from api.http.validation import COMPUTE_MEDIA_TYPE, UNSAFE
from api.opts import ApiSettings
from objects import errors, text
from objects.context import RequestContext
from objects.ids import checked_identifier
from service import logs, metrics

LEGACY = "/v2/"
"""What begins with it is served as 2.1, whatever version the headers select."""


class Intake:
    """Sets the ID, the caller with its rights, and the microversion of each request."""

    def __init__(self, settings: ApiSettings, policy: PolicyRules) -> None:
        self._settings = settings
        self._policy = policy
        self._callers = Callers(settings)
        self._identity: Identity = Keystone() if settings.auth_strategy == "keystone" else Nobody(settings)

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.request_id = request_id = f"req-{uuid4()}"
        req.context.began = time.monotonic()
        logs.bind_request(request_id)
        if req.method not in falcon.HTTP_METHODS:
            raise falcon.HTTPMethodNotAllowed([method.upper() for method in METHODS])
        req.context.is_head = req.method == "HEAD"
        if req.context.is_head:
            req.method = "GET"  # until the answer is ready; its body is then dropped
        _check_texts(req)
        is_legacy = req.path.startswith(LEGACY)
        if is_legacy:
            req.path = f"/v2.1/{req.path.removeprefix(LEGACY)}"
        in_path = _take_project(req)
        caller = self._identity.identify_caller(req, in_path)
        rights = Rights(self._policy, caller)
        version = microversions.MINIMUM
        if req.path.startswith("/v2.1/") and req.path != "/v2.1/" and not is_legacy:  # the version document itself has no version
            version = microversions.select_version(req.get_header(HEADER), req.get_header(LEGACY_HEADER))
        req.context.call = Call(
            context=RequestContext(
                request_id=request_id, project_id=caller.project_id, user_id=caller.user_id, is_admin=rights.is_allowed(ADMIN)
            ),
            rights=rights,
            version=version,
            prefix=self._settings.public_endpoint.rstrip("/") or self._callers.link_prefix(req),
            project_path=f"/{in_path}" if in_path else "",
            detailed_faults=self._settings.fault_detail == "detailed",
        )

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: object, req_succeeded: bool) -> None:
        if req.context.get("is_head"):
            req.method = "HEAD"
        if resp.content_type == falcon.MEDIA_JSON and COMPUTE_MEDIA_TYPE in (req.get_header("Accept") or ""):
            resp.content_type = req.client_prefers((falcon.MEDIA_JSON, COMPUTE_MEDIA_TYPE)) or falcon.MEDIA_JSON
        request_id = str(req.context.get("request_id", ""))
        resp.set_header("x-openstack-request-id", request_id)
        if began := req.context.get("began"):
            method = req.method if req.method in falcon.HTTP_METHODS else "other"  # clients may send any text
            metrics.API_REQUEST.labels(method, resp.status_code).observe(time.monotonic() - began)
        resp.set_header("x-compute-request-id", request_id)
        call = req.context.get("call")
        if isinstance(call, Call) and req.path.startswith("/v2.1"):
            version = microversions.format_version(call.version)
            resp.set_header(HEADER, f"{microversions.SERVICE} {version}")
            resp.set_header(LEGACY_HEADER, version)
            resp.set_header("Vary", f"{HEADER}, {LEGACY_HEADER}")


def _check_texts(req: falcon.Request) -> None:
    """Raises errors.Invalid for a path or a parameter that a database query cannot contain."""
    if not text.is_safe(req.path):
        raise errors.Invalid(f"The path {UNSAFE}")
    for name, value in req.params.items():
        if not (text.is_safe(name) and all(map(text.is_safe, [value] if isinstance(value, str) else value))):
            raise errors.Invalid(f"{text.clean_text(name, 40)}: {UNSAFE}")


def _take_project(req: falcon.Request) -> str | None:
    """Remove the project from ``/v2.1/{project_id}/servers`` and return it."""
    parts = req.path.split("/", 4)
    if len(parts) < 4 or parts[1] != "v2.1" or parts[2] in COLLECTIONS or parts[3] not in COLLECTIONS:
        return None
    project = parts.pop(2)
    req.path = "/".join(parts)
    return checked_identifier("project_id", project)
