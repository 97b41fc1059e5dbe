"""Relaxations: changes with which a request that found no host would have been placed."""

from __future__ import annotations

import enum

from objects.base import Object


class Asked(enum.StrEnum):
    """Parts of a request that could be reduced or left out."""

    SERVERS = "servers"
    VCPUS = "vcpus"
    MEMORY = "memory_mb"
    DISK = "disk_gb"
    ZONE = "availability_zone"
    CELL = "cell"
    GROUP = "server_group"
    HINT = "hint"
    EXTRA_SPEC = "extra_spec"
    IMAGE_PROPERTY = "image_property"
    FORCED_HOST = "forced_host"
    IGNORED_HOSTS = "ignored_hosts"


class Relaxation(Object, frozen=True, kw_only=True):
    """One change with which the whole request, or its minimum number of servers, would have been placed, with all else
    unchanged.

    ``name``: the hint, extra spec, image property or policy; for an amount, the extra spec that asks for it, if any. ``less``: by
    how many servers, or by how many vCPUs, MiB or GiB per server, to reduce the request; one less is not enough. ``places``:
    availability zones or cells, each of which could take all of it; empty if only several together could. ``total_share``: the
    share of the request that is given up, 0 to 1; 1 is a whole condition.
    """

    asked: Asked
    name: str = ""
    less: int = 0
    places: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def is_for_tenants(self) -> bool:
        """Tenants do not know of cells."""
        return self.asked is not Asked.CELL

    @property
    def plain_words(self) -> str:
        """The same without amounts, which reveal how full the hosts are."""
        if self.asked in _AMOUNTS:
            return f"with a flavor that asks for less of {self.name}" if self.name else _AMOUNTS[self.asked]
        return self.as_text

    @property
    def as_text(self) -> str:
        """Text that follows "It would have fitted". Names no host; names cells only if it is not for tenants."""
        if self.asked in _CONDITIONS:
            return _CONDITIONS[self.asked].format(self.name)
        places = " or ".join(self.places)
        if self.asked is Asked.ZONE:
            return f"in availability zone {places}" if places else "in several availability zones"
        if self.asked is Asked.CELL:
            return f"in cell {places}, closed to it" if places else "in several cells, closed to it"
        if self.asked is Asked.SERVERS:
            return f"with {_count_of(self.less, 'server')} fewer"
        if self.name:
            return f"with a flavor that asks for {self.less} less of {self.name}"
        if self.asked is Asked.VCPUS:
            return f"with a flavor of {_count_of(self.less, 'vCPU')} less"
        return f"with a flavor of {self.less} {'MiB less memory' if self.asked is Asked.MEMORY else 'GiB less disk'}"


class RelaxationPair(Object, frozen=True, kw_only=True):
    """Two changes that are enough together, where no single one is. Each has the amount or the places that suit the other."""

    first: Relaxation
    second: Relaxation

    @property
    def total_share(self) -> float:
        """What both give up, 0 to 2: the size of the pair."""
        return self.first.share + self.second.share

    @property
    def is_for_tenants(self) -> bool:
        return self.first.is_for_tenants and self.second.is_for_tenants

    @property
    def as_text(self) -> str:
        """Text that follows "It would have fitted"."""
        return _join_texts(self.first.as_text, self.second.as_text)

    @property
    def plain_words(self) -> str:
        """The same without amounts."""
        return _join_texts(self.first.plain_words, self.second.plain_words)


_AMOUNTS = {
    Asked.SERVERS: "with fewer servers",
    Asked.VCPUS: "with a flavor of fewer vCPUs",
    Asked.MEMORY: "with a flavor of less memory",
    Asked.DISK: "with a flavor of less disk",
}

_CONDITIONS = {
    Asked.GROUP: "without the {} policy of its server group",
    Asked.HINT: "without the hint {}",
    Asked.EXTRA_SPEC: "with a flavor without {}",
    Asked.IMAGE_PROPERTY: "with an image without {}",
    Asked.FORCED_HOST: "without a forced host",
    Asked.IGNORED_HOSTS: "without ignored hosts",
}


_FLAVOR = "with a flavor of "


def _join_texts(first: str, second: str) -> str:
    """Two amounts are of one flavor."""
    if first.startswith(_FLAVOR) and second.startswith(_FLAVOR):
        second = second.removeprefix(_FLAVOR)
    return f"{first} and {second}"


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
