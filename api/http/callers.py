"""Access to an API without authentication: allow only this machine, and no web page in a browser on it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import falcon

from api.opts import ApiSettings
from objects import errors


class Callers:
    """Refuses callers on other machines, and web pages in a browser on this machine.

    Any web page can make a browser send requests to loopback. Such a request names the page's host in ``Origin``, or in ``Host`` if
    the page's name resolves to 127.0.0.1 (DNS rebinding). With ``noauth_anywhere`` every caller is served.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._anybody = settings.noauth_anywhere
        endpoint = urlsplit(settings.public_endpoint).hostname
        self._names = {_normalize_host(name) for name in (settings.host, endpoint, *settings.allowed_hosts) if name}

    def check_peer(self, req: falcon.Request) -> None:
        """Raises errors.Forbidden, or errors.Invalid if only ``Host`` is wrong."""
        if self._anybody:
            return
        peer = req.remote_addr
        if peer and not _is_loopback(peer):
            raise errors.Forbidden("This API authenticates nobody, so it serves its own machine only ([api] noauth_anywhere).")
        named = req.get_header("Host")
        if named is not None and not self._is_ours(_host_of(f"//{named}")):
            raise errors.Invalid(
                f"Host: {named[:80]!r} is not a name of this API, which authenticates nobody; "
                "ask at its address, or list the name in [api] allowed_hosts."
            )
        origin = req.get_header("Origin")
        if origin is not None and not self._is_ours(_host_of(origin)):
            raise errors.Forbidden(f"Origin: pages of {origin[:80]!r} may not use this API, because it authenticates nobody.")

    def link_prefix(self, req: falcon.Request) -> str:
        """Scheme, host and port for links. ``Host`` is used only if it is a name of this API, because clients can send any."""
        named = req.get_header("Host")
        if named is None or self._is_ours(_host_of(f"//{named}")):
            return req.prefix
        return f"{req.scheme}://{req.env['SERVER_NAME']}:{req.env['SERVER_PORT']}"

    def _is_ours(self, host: str) -> bool:
        return host == "localhost" or host in self._names or _is_loopback(host)


def _host_of(url: str) -> str:
    """The host in a URL; "" if there is none or the URL is invalid."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if it is invalid
        return _normalize_host(parts.hostname or "") if "@" not in parts.netloc else ""
    except ValueError:
        return ""


def _normalize_host(host: str) -> str:
    return host.lower().rstrip(".").removeprefix("[").removesuffix("]")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
