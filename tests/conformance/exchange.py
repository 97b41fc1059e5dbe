"""A deployment that is asked over HTTP, and everything that was asked of it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote

import falcon.inspect
import requests

from objects.base import Object
from service.periodic import wait_until
from tests.support.region import IMAGE

Version = tuple[int, int]
Headers = Mapping[str, str]

ROLES: dict[str, Headers] = {
    "admin": {},
    "member": {"X-Project-Id": "p1", "X-User-Id": "u1", "X-Roles": "member"},
}
FLAVOR, LARGER_FLAVOR = "tiny", "small"
WAIT_S = 60.0


class Route(NamedTuple):
    """A method and a path below ``/v2.1``, with ``{}`` for parameters; ``action``: the name in the body of an action, or ""."""

    method: str
    path: str
    action: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path}{f' ({self.action})' if self.action else ''}"


class Exchange(Object, frozen=True, kw_only=True):
    """A request and its answer. ``allowed``: refusals that are no misfit."""

    number: int
    role: str
    method: str
    path: str
    action: str
    version: Version
    query: dict[str, list[str]]
    request: Any
    status: int
    response: Any
    url: str
    allowed: tuple[int, ...] = ()

    @property
    def route(self) -> Route:
        return Route(self.method, self.path, self.action)


class Deployment:
    """Asks the API at ``endpoint``, and keeps every exchange."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.exchanges: list[Exchange] = []
        self._http = requests.Session()
        self._http.trust_env = False

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        role: str,
        version: Version,
        route: Route,
        values: tuple[str, ...] = (),
        body: Any = None,
        query: str = "",
        allowed: tuple[int, ...] = (),
    ) -> Exchange:
        """``values``: of the path's parameters. ``allowed``: refusals that this request may get."""
        path = route.path
        for value in values:
            path = path.replace("{}", quote(value, safe=""), 1)
        url = f"{self.endpoint}{path}{f'?{query}' if query else ''}"
        headers = {**ROLES[role], "OpenStack-API-Version": f"compute {version[0]}.{version[1]}"}
        answer = self._http.request(route.method, url, json=body, headers=headers, timeout=60)
        exchange = Exchange(
            number=len(self.exchanges),
            role=role,
            method=route.method,
            path=route.path,
            action=route.action,
            version=version,
            query=parse_qs(query, keep_blank_values=True),
            request=body,
            status=answer.status_code,
            response=_document(answer),
            url=url.removeprefix(self.endpoint),
            allowed=allowed,
        )
        self.exchanges.append(exchange)
        return exchange

    def plain(self, method: str, path: str, role: str = "admin", version: Version = (2, 53), body: Any = None) -> Any:
        """Ask without keeping it; the document of an answer that must be a success."""
        headers = {**ROLES[role], "OpenStack-API-Version": f"compute {version[0]}.{version[1]}"}
        answer = self._http.request(method, f"{self.endpoint}{path}", json=body, headers=headers, timeout=60)
        assert answer.ok, f"{method} {path} {body}: {answer.status_code} {answer.text}"
        return _document(answer)

    def description(self, version: Version) -> dict[str, Any]:
        """Our description of the API in this version, with the schemas of request bodies."""
        document: dict[str, Any] = self.plain("GET", "/superconductor/openapi.json", version=version)
        return document

    def boot(self, role: str = "admin", wait: str = "ACTIVE", **fields: Any) -> str:
        """Boot a server and wait until its status is ``wait``; its ID."""
        hints = fields.pop("hints", None)
        server = {"name": f"s-{uuid.uuid4().hex[:8]}", "flavorRef": FLAVOR, "imageRef": IMAGE, "networks": "none"} | fields
        body = {"server": server} | ({"os:scheduler_hints": hints} if hints else {})
        found = str(self.plain("POST", "/servers", role, (2, 52), body)["server"]["id"])
        self.wait(found, wait)
        return found

    def rest(self, server: str) -> None:
        """Wait until the newest action on the server has ended."""
        newest = self.plain("GET", f"/servers/{server}/os-instance-actions")["instanceActions"][0]["request_id"]
        path = f"/servers/{server}/os-instance-actions/{newest}"
        assert wait_until(lambda: self.plain("GET", path)["instanceAction"]["events"][0]["finish_time"] is not None, WAIT_S)

    def upload(self, role: str = "admin", /, **properties: str) -> str:
        """Upload an image; its ID."""
        images = f"{self.endpoint.removesuffix('/v2.1')}/image/v2/images"
        made = self._http.post(images, json={"name": "uploaded"} | properties, headers=ROLES[role], timeout=60)
        assert made.ok, made.text
        found = str(made.json()["id"])
        headers = {**ROLES[role], "Content-Type": "application/octet-stream"}
        sent = self._http.put(f"{images}/{found}/file", data=bytes(512), headers=headers, timeout=60)
        assert sent.ok, sent.text
        return found

    def act(self, server: str, action: str, value: Any = None, wait: str = "", version: Version = (2, 53)) -> None:
        """Do as an administrator, and wait for the status."""
        self.plain("POST", f"/servers/{server}/action", version=version, body={action: value})
        if wait:
            self.wait(server, wait)

    def status(self, server: str) -> str:
        return str(self.plain("GET", f"/servers/{server}")["server"]["status"])

    def show(self, server: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plain("GET", f"/servers/{server}")["server"]
        return found

    def wait(self, server: str, status: str) -> None:
        """Until it is shown with this status, and listed with it: the rows of lists, which actions look at, follow the cell."""

        def reached() -> bool:
            found = self.show(server)
            if found["status"] != status or found.get("OS-EXT-STS:task_state") is not None:
                return False
            return bool(self.plain("GET", f"/servers?all_tenants=1&uuid={server}&status={status}")["servers"])

        assert wait_until(reached, WAIT_S, pause=0.05), f"{server} is {self.show(server)}, {status} expected"


def _document(answer: requests.Response) -> Any:
    try:
        return answer.json() if answer.content else None
    except ValueError:
        return answer.text


def routes_of(app: Any) -> set[Route]:
    """Every method and path of the application; actions are not among them."""
    found = set()
    for route in falcon.inspect.inspect_routes(app):
        path = re.sub(r"\{[^}]*\}", "{}", route.path)
        if path.startswith("/v2.1/"):
            found |= {Route(method.method, path.removeprefix("/v2.1")) for method in route.methods if not method.internal}
    return found
