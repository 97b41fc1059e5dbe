"""Commands that speak HTTP to the API: where it is, who asks, and what an error says."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from cli.shared import running
from cli.shared.base import Admin
from cli.shared.connection import FAILURES, ApiConnection, HttpAnswer, with_query
from cli.shared.endpoint import ENDPOINT
from objects import errors
from objects.cell import UNKNOWN_CELLS_HEADER

VERSION = "2.62"
"""The microversion that the commands are written for."""

UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
"""How users may write ids."""


class ApiClient:
    """The API at one endpoint, asked for one project.

    Raises errors of ours whose text is one line: NotFound and Invalid and so on for what the API refuses, Unreachable for the rest.
    """

    def __init__(self, endpoint: str, project: str | None = None, roles: str | None = None) -> None:
        """``roles``: those to ask with, where these are not an administrator's."""
        self.endpoint = endpoint.rstrip("/")
        try:
            where = urlsplit(self.endpoint)
            self._connection = ApiConnection(where)
        except ValueError:
            raise errors.Invalid(f"--endpoint: {endpoint!r} is not a URL like {ENDPOINT}") from None
        self._base = where.path
        self._has_warned = False
        self._headers = {"OpenStack-API-Version": f"compute {VERSION}", "Accept": "application/json"}
        if project:
            self._headers["X-Project-Id"] = project
        if roles:
            self._headers["X-Roles"] = roles
        if token := os.environ.get("OS_TOKEN"):
            self._headers["X-Auth-Token"] = token  # of an API that has tokens checked; the others take any
        for header, value in self._headers.items():
            if not (value.isascii() and value.isprintable()):
                raise errors.Invalid(f"The value of {header} has characters that HTTP does not carry: see --project and OS_TOKEN.")

    def get(self, path: str, **query: str | None) -> Any:
        return self.send_request("GET", with_query(path, {key: value for key, value in query.items() if value is not None}))

    def post_json(self, path: str, body: dict[str, Any]) -> Any:
        return self.send_request("POST", path, body)

    def put_json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.send_request("PUT", path, body)

    def delete(self, path: str) -> None:
        self.send_request("DELETE", path)

    def send_request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer, None where there is none."""
        return self._request_json(method, f"{self._base}/{path}", body)

    def _request_json(self, method: str, target: str, body: dict[str, Any] | None = None) -> Any:
        try:
            answer = self._connection.send_request(method, target, self._headers, body)
        except TimeoutError as error:
            raise ApiUnreachable(f"The API at {self.endpoint} did not answer in time.") from error
        except FAILURES as error:
            raise ApiUnreachable(
                f"No API can be reached at {self.endpoint}: {_cause_text(error)}. "
                f"Start one with 'superconductor standalone', or name another with --endpoint{_running_ones()}."
            ) from error
        if answer.status >= 300:
            raise _fault_error(answer, f"{self.endpoint.removesuffix(self._base)}{target}")
        self._tell_unknown(answer.headers.get(UNKNOWN_CELLS_HEADER, ""))
        try:
            return answer.parse_json() if answer.body else None
        except ValueError as error:
            raise ApiUnreachable(f"{self.endpoint} does not answer like a Compute API: is the address right?") from error

    def _tell_unknown(self, cells: str) -> None:
        """Say once, beside the output, of which cells the answer shows what was known last."""
        if cells and not self._has_warned:
            self._has_warned = True
            descriptions = [
                f"{'a cell' if name == '*' else unquote(name)} since {at}"
                for name, at in re.findall(r"([^;, ]+);since=([^,]+)", cells)
            ]
            print(f"Shown as last known: servers in {', '.join(descriptions)}", file=sys.stderr)  # noqa: T201 - beside the rows

    def list_items(self, path: str, key: str, limit: int | None = None, **query: str | None) -> Iterator[Any]:
        """The items of a list, page after page, ``limit`` of them at most."""
        remaining = limit
        document = self.get(path, limit=None if remaining is None else str(remaining), **query)
        while True:
            items = document[key]
            yield from items if remaining is None else items[:remaining]
            remaining = None if remaining is None else remaining - len(items)
            link = next((entry["href"] for entry in document.get(f"{key}_links", ()) if entry["rel"] == "next"), None)
            if link is None or not items or (remaining is not None and remaining <= 0):
                return
            document = self.get(f"{path}?{urlsplit(link).query}")

    def list_images(self, name: str | None = None) -> list[dict[str, Any]]:
        """The images in the store of the deployment, or those of one name. Raises NotFound if its API shows none."""
        answer = self._request_json(
            "GET", with_query(f"{self._service_root}/image/v2/images", {} if name is None else {"name": name})
        )
        return [image for image in answer["images"] if name in (None, image["name"])]

    def list_networks(self) -> list[dict[str, Any]]:
        """The networks that the project may use."""
        networks: list[dict[str, Any]] = self._request_json("GET", f"{self._service_root}/network/v2.0/networks")["networks"]
        return networks

    @property
    def _service_root(self) -> str:
        """Below which the other services of the deployment are."""
        return re.sub(r"/v2\.1(/[^/]*)?$", "", self._base)

    def find_server(self, reference: str, **query: str | None) -> str:
        """The uuid of the server with this uuid or exactly this name. Raises NotFound, and Conflict where several have the name.

        ``query``: filters of the list in which the name is looked up. Without one it has no soft-deleted servers.
        """
        if UUID.fullmatch(reference):
            return reference
        query["name"] = f"^{re.escape(reference)}$"
        matching = [s for s in self.list_items("servers", "servers", None, **query) if s["name"] == reference]
        if not matching:
            raise errors.NotFound(f"There is no server {reference!r} in this project.")
        if len(matching) > 1:
            raise errors.Conflict(f"{len(matching)} servers are called {reference!r}: name one by its id.")
        return str(matching[0]["id"])


class ApiUnreachable(errors.SuperconductorError):
    """The API gave no usable answer."""


def read_views(endpoint: str) -> dict[str, dict[str, Any]]:
    """What the API sees of each cell, by uuid; nothing where it cannot be asked."""
    try:
        cells = ApiClient(endpoint).get("superconductor/status")["status"]["cells"]
    except errors.SuperconductorError:
        return {}
    return {cell["uuid"]: cell for cell in cells}


def _running_ones() -> str:
    """Which standalones of this user run, for a message; empty if none does."""
    endpoints = " and ".join(one.endpoint for one in running.find_all())
    return f": yours run at {endpoints}" if endpoints else ""


class HttpCommand(Admin):
    """A command that asks the API, and opens no database."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        text = (
            "where the API is (environment: SUPERCONDUCTOR_ENDPOINT or OS_ENDPOINT;"
            f" default: the standalone of --state, or {ENDPOINT})"
        )
        parser.add_argument("--endpoint", metavar="URL", help=text)
        text = "project to ask for (environment: OS_PROJECT_ID; default: the API's own)"
        parser.add_argument("--project", metavar="ID", default=os.environ.get("OS_PROJECT_ID"), help=text)
        return parser

    def api_client(self, parsed_args: argparse.Namespace, roles: str | None = None) -> ApiClient:
        """Raises Misconfigured where the usual place has the standalone of another folder than the one that was named."""
        return ApiClient(parsed_args.endpoint or self.deployment.own_endpoint(), parsed_args.project, roles)


_KINDS: dict[int, type[errors.SuperconductorError]] = {
    400: errors.Invalid,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
}


def _fault_error(answer: HttpAnswer, url: str) -> errors.SuperconductorError:
    request_id = answer.headers.get("x-openstack-request-id")
    try:
        (fault,) = answer.parse_json().values()
        message = str(fault["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        location = answer.headers.get("Location") if answer.status < 400 else None
        message = f"{url} answers {answer.status} {answer.reason}{f': it is at {location}' if location else ''}"
    if answer.status >= 500 and request_id:
        message = f"{message} ({request_id})"
    return _KINDS.get(answer.status, ApiUnreachable)(message)


def _cause_text(error: BaseException) -> str:
    """The words of the operating system, where it has some."""
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else type(error).__name__
