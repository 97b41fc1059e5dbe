"""Parse scheduler hints that have a syntax, in the same way for the API and the scheduler."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from uuid import UUID

from objects import errors, query

Hints = Mapping[str, tuple[str, ...]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SAME_HOST = "same_host"
DIFFERENT_HOST = "different_host"
NEAR = "build_near_host_ip"
CIDR = "cidr"
QUERY = "query"
FAULT_DOMAIN = "fault_domain"
READ_BY_API = frozenset({"group", "ignore_hosts", FAULT_DOMAIN})
"""Hints that become fields of the request, or are read with one."""
FAULT_DOMAIN_LENGTH = 255
"""Maximum number of characters of the name of a fault domain."""
DEFAULT_CIDR = "/24"


def check_hints(hints: Hints) -> None:
    """Raise Invalid for an invalid hint; the message begins with the hint's name."""
    near_network(hints)
    query_condition(hints)
    domain = _single_value(hints, FAULT_DOMAIN)
    if domain is not None and not (domain.isprintable() and 1 <= len(domain) <= FAULT_DOMAIN_LENGTH):
        raise errors.Invalid(f"{FAULT_DOMAIN}: a name has 1 to {FAULT_DOMAIN_LENGTH} printable characters")
    for name in (SAME_HOST, DIFFERENT_HOST):
        for uuid_text in hints.get(name, ()):
            if _canonical_uuid(uuid_text) is None:
                raise errors.Invalid(f"{name}: {uuid_text[:80]!r} is not the uuid of a server")


def server_uuids(hints: Hints, name: str) -> tuple[str, ...]:
    """The server uuids in a hint."""
    return tuple(_canonical_uuid(uuid_text) or uuid_text for uuid_text in hints.get(name, ()))


def near_network(hints: Hints) -> Network | None:
    """The network of ``build_near_host_ip`` and ``cidr`` (default /24). Raises Invalid."""
    address = _single_value(hints, NEAR)
    cidr = _single_value(hints, CIDR) or DEFAULT_CIDR
    if address is None:
        return None
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise errors.Invalid(f"{NEAR}: {address[:80]!r} is not an IP address") from None
    try:
        return ipaddress.ip_network(f"{address}/{cidr.removeprefix('/')}", strict=False)
    except ValueError:
        raise errors.Invalid(f"{CIDR}: {cidr[:80]!r} is not a prefix of {address}; give one like {DEFAULT_CIDR}") from None


def query_condition(hints: Hints) -> query.Condition | None:
    """The parsed ``query`` hint. Raises Invalid."""
    text = _single_value(hints, QUERY)
    return None if text is None else query.parse_query(text)


def _canonical_uuid(uuid_text: str) -> str | None:
    try:
        return str(UUID(uuid_text))
    except ValueError:
        return None


def _single_value(hints: Hints, name: str) -> str | None:
    values = hints.get(name, ())
    if len(values) > 1:
        raise errors.Invalid(f"{name}: can be given once only")
    return values[0] if values else None
