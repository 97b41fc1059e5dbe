"""The hostnames of servers, as lists filter and sort by them."""

from __future__ import annotations

from objects.spec import RequestSpec
from objects.text import hostname_of


def hostname_of_spec(spec: RequestSpec | None, name: str, uuid: str) -> str:
    """The hostname of a server that its tenant has not changed: that of the request, or made of its name."""
    return (spec.properties.hostname if spec is not None else None) or hostname_of(name, uuid)
