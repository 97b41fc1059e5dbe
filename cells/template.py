"""URL templates: what a cell's URLs leave to the configuration of the process that uses them, such as ``{username}:{password}``.

Cell mappings keep templates; only who connects expands them, each process from its own configuration. Nothing that was expanded is
ever saved, shown or compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from urllib.parse import urlsplit

import msgspec

from objects import errors
from objects.base import Object
from objects.cell import CellMapping
from objects.mask import mask_url

_OF_HOST = ("username", "password", "hostname", "port")
_OF_URL = ("scheme", "path", "query", "fragment")
_MAY_BE_EMPTY = ("query", "fragment")


class Local(Object, frozen=True, kw_only=True):
    """The URLs of this process's own configuration that templates are filled in from; empty where it has none.

    ``database_url``: of the API database. ``transport_url``: of the API level's bus.
    """

    database_url: str = ""
    transport_url: str = ""

    def __repr__(self) -> str:
        return "Local(...)"  # the URLs may hold passwords


NOTHING = Local()
"""Templates cannot be expanded."""


def expand_mapping(mapping: CellMapping, local: Local) -> CellMapping:
    """The mapping as this process connects by it: never to be saved or shown. Raises Invalid and Misconfigured, see below."""
    return msgspec.structs.replace(
        mapping,
        database_url=expand_database(mapping.database_url, local),
        transport_url=expand_transport(mapping.transport_url, local),
    )


def expand_database(url: str, local: Local) -> str:
    """Raises Invalid for a template that no configuration could fill in, Misconfigured for one that this one cannot."""
    return _expand_template(url, local.database_url, "[api_database] connection")


def expand_transport(url: str, local: Local) -> str:
    """Raises as ``expand_database``."""
    return _expand_template(url, local.transport_url, "transport_url")


def _expand_template(template: str, source: str, option: str) -> str:
    if "{" not in template and "}" not in template:
        return template
    shown = mask_url(template)
    parts = list(_split_template(template, shown))
    for _, field in parts:
        _check_name(field, shown)
    values = _values_by_field(source)
    for _, field in parts:
        if field is not None and not values.get(field) and not (source and field in _MAY_BE_EMPTY):
            raise errors.Misconfigured(f"URL template '{shown}' needs {{{field}}}, which {_describe_lack(field, source, option)}")
    return "".join(text + values.get(field or "", "") for text, field in parts)


def _split_template(template: str, shown: str) -> Iterator[tuple[str, str | None]]:
    """Text, and the name of the field after it."""
    try:
        for text, field, spec, conversion in Formatter().parse(template):
            if spec or conversion:
                raise ValueError
            yield text, field
    except ValueError:
        message = f"URL template '{shown}' cannot be read: fields are like {{username}}, and a brace itself is written {{{{ or }}}}"
        raise errors.Invalid(message) from None


def _check_name(field: str | None, shown: str) -> None:
    if field is None:
        return
    stem = field.rstrip("0123456789")
    if field not in (*_OF_HOST, *_OF_URL) and not (stem in _OF_HOST and not field.removeprefix(stem).startswith("0")):
        known = ", ".join(_OF_HOST + _OF_URL)
        raise errors.Invalid(
            f"URL template '{shown}' has an unknown field {{{field[:40]}}}; there are: {known}, and of several hosts username1..."
        )


def _describe_lack(field: str, source: str, option: str) -> str:
    if not source:
        return f"comes from {option} of this process, and that is not set"
    if field in _OF_HOST and "," in urlsplit(source).netloc:
        return f"{option} of this process has for each of several hosts: write {{{field}1}} for the first"
    return f"{option} of this process does not have"


def _values_by_field(source: str) -> dict[str, str]:
    """By field, as they stand in the URL: what is escaped there stays so. With one host it needs no number."""
    try:
        parts = urlsplit(source)
    except ValueError:
        return {}
    values = {"scheme": parts.scheme, "path": parts.path.lstrip("/"), "query": parts.query, "fragment": parts.fragment}
    hosts = [_host_parts(login) for login in parts.netloc.split(",")]
    for number, host in enumerate(hosts, 1):
        values |= {f"{name}{number}": value for name, value in host.items()}
    return values | (hosts[0] if len(hosts) == 1 else {})


def _host_parts(login: str) -> dict[str, str]:
    user, _, place = login.rpartition("@")
    username, _, password = user.partition(":")
    hostname, colon, port = place.rpartition(":")
    if not colon or "]" in port:  # an address of IPv6 without a port
        hostname, port = place, ""
    return dict(zip(_OF_HOST, (username, password, hostname, port), strict=True))
