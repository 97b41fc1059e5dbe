"""One HTTP connection to the API, on the standard library: importing a larger client would take longer than most commands."""

from __future__ import annotations

import json
import os
import select
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, quote, urlencode

from objects.base import Object

CONNECT_AND_READ_TIMEOUT_S = (3.05, 60.0)
"""Seconds to connect, and to wait for each piece of an answer."""

SAFE = "/?&=%:,;@!$'()*+~[]"
"""What stands in a path as it is, beside letters and digits: paths bring their own query and escapes along."""

FAILURES = (OSError, HTTPException, UnicodeError)
"""What ``ApiConnection.send_request`` raises; TimeoutError is an OSError."""


class HttpAnswer(Object, frozen=True, kw_only=True):
    """What a server answered. ``headers``: names in any case."""

    status: int
    reason: str
    headers: HTTPMessage
    body: bytes

    def parse_json(self) -> Any:
        """Raises ValueError where the body is no JSON."""
        return json.loads(self.body)


class ApiConnection:
    """Asks one server, again and again over one connection while that lasts. It uses no proxy and follows no redirect."""

    def __init__(self, url: SplitResult, timeouts: tuple[float, float] = CONNECT_AND_READ_TIMEOUT_S) -> None:
        """``url``: a URL. Raises ValueError where it is not http or https with a host, or has a login, which would be lost."""
        if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
            raise ValueError(url.geturl())
        self._url = url
        self._connect_timeout, self._read_timeout = timeouts
        self._port = url.port
        self._open: HTTPConnection | None = None

    def send_request(self, method: str, target: str, headers: dict[str, str], body: object = None) -> HttpAnswer:
        """Send a request with a JSON body, or none. Raises one of ``FAILURES``."""
        connection = self._usable_connection()
        try:
            content = None if body is None else json.dumps(body).encode()
            sent = headers if content is None else {**headers, "Content-Type": "application/json"}
            connection.request(method, quote(target, SAFE), content, sent)
            answer = connection.getresponse()
            read = answer.read()
        except BaseException:
            self.close()
            raise
        if answer.will_close:
            self.close()
        return HttpAnswer(status=answer.status, reason=answer.reason, headers=answer.headers, body=read)

    def _usable_connection(self) -> HTTPConnection:
        """The open one, unless the server has closed it meanwhile."""
        if self._open is not None and self._open.sock is not None and select.select([self._open.sock], [], [], 0)[0]:
            self.close()
        if self._open is None:
            self._open = self._new_connection()
        return self._open

    def _new_connection(self) -> HTTPConnection:
        host = self._url.hostname or ""
        if self._url.scheme == "https":
            import ssl  # not for the usual endpoint

            context = ssl.create_default_context(cafile=os.environ.get("OS_CACERT") or None)
            connection: HTTPConnection = HTTPSConnection(host, self._port, timeout=self._connect_timeout, context=context)
        else:
            connection = HTTPConnection(host, self._port, timeout=self._connect_timeout)
        connection.connect()
        connection.sock.settimeout(self._read_timeout)
        return connection

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def with_query(path: str, query: dict[str, str]) -> str:
    """A path with these parameters added."""
    return f"{path}{'&' if '?' in path else '?'}{urlencode(query)}" if query else path
