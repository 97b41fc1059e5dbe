"""Check the URLs of a cell before they are saved, and tell whether two of them mean the same place."""

from __future__ import annotations

import os
from urllib.parse import SplitResult, unquote, urlsplit

from db.sql import url as database_url
from objects import errors
from objects.mask import mask_url

NO_TRANSPORT = "none:///"
"""The transport URL of a cell without a bus."""

_DATABASE_PORTS = {"mysql": 3306, "postgresql": 5432}
_TRANSPORT_PORTS = {"embedded": None, "rabbit": 5672}


def database_place(url: str) -> str:
    """Which database the URL means, whoever logs in: equal for two URLs of one database. Raises Invalid or Misconfigured.

    A SQLite file must be named absolutely, since each process would look for a relative one somewhere else.
    """
    parsed = database_url.parse_url(url)
    backend, name, query = parsed.get_backend_name(), parsed.database or "", parsed.query
    if backend == "sqlite":
        if not os.path.isabs(name) or name.endswith("/"):
            raise errors.Invalid(f"Database URL '{mask_url(url)}' must name a file absolutely: sqlite:////folder/file.db")
        return f"sqlite {database_url.file_of(parsed)}"
    host = parsed.host or query.get("unix_socket") or query.get("host")
    if not host or not name:
        raise errors.Invalid(f"Database URL '{mask_url(url)}' needs a host and a database: {backend}://user:password@host/database")
    return f"{backend} {str(host).lower()}:{parsed.port or _DATABASE_PORTS.get(backend)}/{name}"


def transport_place(url: str) -> str:
    """Which broker and virtual host the URL means, whoever logs in. Raises Invalid."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise errors.Invalid(f"Transport URL '{mask_url(url)}' cannot be read: {error}") from None
    if parts.scheme not in _TRANSPORT_PORTS or "://" not in url or any(c.isspace() for c in url):
        raise errors.Invalid(f"Transport URL '{mask_url(url)}' must begin with rabbit:// or embedded://")
    return f"{parts.scheme} {_ordered_hosts(url, parts)}{unquote(parts.path).rstrip('/') or '/'}"


def _ordered_hosts(url: str, parts: SplitResult) -> str:
    """The hosts of the URL in one order, with their ports; names compare without case."""
    hosts = []
    for login in parts.netloc.split(","):
        host, colon, port = login.rpartition("@")[2].lower().partition(":")
        if not host or (colon and not (port.isdigit() and 0 < int(port) < 65536)):
            raise errors.Invalid(
                f"Transport URL '{mask_url(url)}' needs hosts with ports of 1 to 65535: rabbit://user@host:5672/vhost"
            )
        hosts.append(f"{host}:{port or _TRANSPORT_PORTS[parts.scheme] or ''}")
    return ",".join(sorted(hosts))
