"""Sends what Terraform's OpenStack provider sends, in its order, and reads from the answers what it reads.

``tests/clients/terraform_requests.json`` has the requests as data: for each resource what gophercloud makes of it. The provider is
written in Go, so a field of another type is an error to it, and one that is missing or null is empty.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import requests

from service.periodic import wait_until

RECORDS = Path(__file__).parents[1] / "clients" / "terraform_requests.json"
_TIMEOUT_S = 60.0
_PAUSE_S = 0.2
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?"
_TIMES = {"time": re.compile(f"{_TIME}Z"), "time without zone": re.compile(_TIME)}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "int": int,
    "number": (int, float),
    "bool": bool,
    "list": list,
    "object": dict,
}
_PART = re.compile(r"([^.\[\]]+)(?:\[([^=\]]+)=([^\]]*)\])?")


class Wait(msgspec.Struct, forbid_unknown_fields=True):
    """The provider asks again until ``field`` is one of ``for``; a status of HTTP counts, too.

    ``while``: the values that it waits through: any other is an error to it. None: it waits through all.
    """

    field: str
    targets: list[str | int | None] = msgspec.field(name="for")
    pending: list[str] | None = msgspec.field(name="while", default=None)


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """``for``: what of the resource it belongs to. ``send``: method, service and path. ``version``: its microversion, if any.

    ``answer``: the statuses that gophercloud takes for success. ``reads``: the fields that it reads, with their types. ``keep``:
    the fields that later requests name. ``content``: of an upload, whose length is not known at its start.
    """

    purpose: str = msgspec.field(name="for")
    send: str
    answer: list[int]
    version: str | None = None
    body: Any = msgspec.UNSET
    content: str | None = None
    type: str = "application/json"
    reads: dict[str, str] = {}
    keep: dict[str, str] = {}
    wait: Wait | None = None


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """The life of a resource. ``user``: who has the rights that it needs."""

    resource: str
    user: str
    requests: list[Request]


def records() -> list[Record]:
    return msgspec.json.decode(RECORDS.read_bytes(), type=list[Record])


class TerraformReplay:
    """``endpoints``: addresses of services, as a catalog has them. ``kept``: what the requests name of what is there already."""

    def __init__(self, endpoints: Mapping[str, str], token: str, kept: Mapping[str, str]) -> None:
        self._endpoints = endpoints
        self._token = token
        self._kept = dict(kept)
        self._uploaded = b""

    def run(self, record: Record) -> None:
        """Raises AssertionError at the first answer that the provider would take for an error."""
        with requests.Session() as http:
            http.trust_env = False
            for request in record.requests:
                try:
                    self._carry_out(http, request)
                except AssertionError as error:
                    raise AssertionError(f"{record.resource}, {request.purpose}: {request.send}: {error}") from None

    def _carry_out(self, http: requests.Session, request: Request) -> None:
        answer = self._send(http, request)
        if request.wait is not None:
            answer = self._wait(http, request, request.wait, answer)
        document = answer.json() if answer.content and "json" in answer.headers["content-type"] else {}
        for path, kind in request.reads.items():
            value = _found(document, self._filled(path))
            assert self._is_as_read(value, kind), f"{path} is {value!r}, and should be: {kind}"
        for name, path in request.keep.items():
            value = _found(document, path)
            assert value is not None, f"{path} is missing: {answer.text[:2000]}"
            self._kept[name] = str(value)

    def _send(self, http: requests.Session, request: Request) -> requests.Response:
        method, service, path = request.send.split(" ")
        headers = {"X-Auth-Token": self._token, "Accept": "application/json"}
        if request.version is not None:
            headers |= {"X-OpenStack-Nova-API-Version": request.version, "OpenStack-API-Version": f"compute {request.version}"}
        data: bytes | Iterator[bytes] | None = None
        if request.content is not None:
            self._uploaded = request.content.encode()
            headers["Content-Type"], data = "application/octet-stream", iter([self._uploaded])  # in chunks, as Go sends a file
        elif request.body is not msgspec.UNSET:
            headers["Content-Type"], data = request.type, self._filled(json.dumps(request.body)).encode()
        url = self._endpoints[service] + self._filled(path)
        answer = http.request(method, url, headers=headers, data=data, timeout=_TIMEOUT_S)
        assert answer.status_code in request.answer, f"{answer.status_code} {answer.text[:2000]}"
        return answer

    def _wait(self, http: requests.Session, request: Request, wait: Wait, first: requests.Response) -> requests.Response:
        answers = [first]

        def is_reached() -> bool:
            answer = answers[-1]
            value = _found(answer.json(), wait.field) if answer.status_code < 300 else answer.status_code
            if value in wait.targets:
                return True
            assert wait.pending is None or value in wait.pending, f"{wait.field} is {value!r} meanwhile: {answer.text[:2000]}"
            answers.append(self._send(http, request))
            return False

        assert wait_until(is_reached, _TIMEOUT_S, _PAUSE_S), (
            f"{wait.field} does not come to {wait.targets}: {answers[-1].text[:2000]}"
        )
        return answers[-1]

    def _is_as_read(self, value: Any, kind: str) -> bool:
        if kind == "MD5 of the content":
            return bool(value == hashlib.md5(self._uploaded, usedforsecurity=False).hexdigest())
        return _is_a(value, kind)

    def _filled(self, text: str) -> str:
        return Template(text).substitute(self._kept)


def _is_a(value: Any, kind: str) -> bool:
    """Whether Go reads the value as this."""
    if kind.endswith("?"):
        return value is None or _is_a(value, kind[:-1])
    if kind == "int or empty":
        return value == "" or _is_a(value, "int")
    if kind == "JSON":
        return isinstance(value, dict) or value == "" or isinstance(json.loads(value), dict)
    if kind in _TIMES:
        return isinstance(value, str) and _TIMES[kind].fullmatch(value) is not None
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))


def _found(document: Any, path: str) -> Any:
    """The value at ``path``, such as ``flavors[name=m1.tiny].id`` or ``networks.0.name``; None: it is not there."""
    for name, key, wanted in _PART.findall(path):
        if isinstance(document, list):
            document = document[int(name)] if int(name) < len(document) else None
        else:
            document = document.get(name) if isinstance(document, dict) else None
        if key:
            document = next((each for each in document or () if str(each.get(key)) == wanted), None)
    return document
