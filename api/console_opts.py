"""Options of the group [console]: what URLs of remote consoles are, and the proxy that they lead to."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from oslo_config import cfg

from objects import errors
from objects.base import Object
from service.option_maker import OptionMaker

GROUP = "console"


class ConsoleUrls(Object, frozen=True, kw_only=True):
    """What the API says of consoles. Seconds."""

    token_ttl: float = 600.0
    serial_url: str = ""
    novnc_url: str = ""


class ProxySettings(Object, frozen=True, kw_only=True):
    """What the proxy does. ``read_urls``: for the schemes that pages may have."""

    host: str = "127.0.0.1"
    port: int = 6083
    max_connections: int = 200
    allowed_origins: tuple[str, ...] = ()
    cert: str = ""
    key: str = ""
    urls: ConsoleUrls = ConsoleUrls()


_url = OptionMaker(ConsoleUrls)
_option = OptionMaker(ProxySettings)


URLS: tuple[cfg.Opt, ...] = (
    _url(
        "token_ttl",
        "Seconds in which the URL of a remote console can be opened. Connections that are open then stay open.",
        min=1.0,
        max=86400.0,
    ),
    _url(
        "serial_url",
        "Where browsers and other clients reach the console proxy, such as wss://console.example.org/. The URLs of serial "
        "consoles begin with it. Empty: there are none.",
    ),
    _url(
        "novnc_url",
        "Where the page of noVNC is served, such as https://console.example.org/vnc_lite.html. The URLs of VNC consoles begin "
        "with it. noVNC is not part of Superconductor. Empty: there are none.",
    ),
)

PROXY: tuple[cfg.Opt, ...] = (
    _option("host", "Address on which the console proxy listens.", kind=cfg.HostAddressOpt),
    _option("port", "Port on which the console proxy listens; 0 takes a free one.", kind=cfg.PortOpt),
    _option("max_connections", "Connections to consoles at once. Further ones are closed.", min=1),
    _option(
        "allowed_origins",
        "Names of hosts whose pages may open consoles in a browser, beside the one that the request names as Host.",
    ),
    _option("cert", "File with the certificate of the proxy and its chain. Empty: no TLS."),
    _option("key", "File with the private key of the certificate. Empty: it is in the file cert."),
)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator of the sample configuration."""
    return [(GROUP, [*URLS, *PROXY])]


def read_urls(conf: cfg.ConfigOpts) -> ConsoleUrls:
    """Those options. Registers them if necessary. Raises Misconfigured."""
    conf.register_opts(URLS, group=GROUP)
    read = ConsoleUrls(**_option_values(conf, URLS))
    check_url("serial_url", read.serial_url, "ws", "wss")
    check_url("novnc_url", read.novnc_url, "http", "https")
    return read


def read_proxy_settings(conf: cfg.ConfigOpts) -> ProxySettings:
    """All options. Registers them if necessary. Raises Misconfigured."""
    conf.register_opts(PROXY, group=GROUP)
    values = _option_values(conf, PROXY)
    if values["key"] and not values["cert"]:
        raise errors.Misconfigured(f"[{GROUP}] key: it is of no use without cert")
    return ProxySettings(**values | {"allowed_origins": tuple(values["allowed_origins"])}, urls=read_urls(conf))


def check_url(option: str, url: str, *schemes: str) -> None:
    """Raises Misconfigured for a URL of another scheme or without a host."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if url and not good:
        raise errors.Misconfigured(f"[{GROUP}] {option}: {url[:80]!r} is no URL that begins with {' or '.join(schemes)}://")


def _option_values(conf: cfg.ConfigOpts, options: tuple[cfg.Opt, ...]) -> dict[str, Any]:
    return {option.dest: conf[GROUP][option.dest] for option in options}
