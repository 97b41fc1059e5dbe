"""What was done to the region, and when: an ERROR that it explains is right, another one is not."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from chaos.links import ABOVE, API, level_of
from chaos.schedule import REAL_ONLY, Kind
from deploy.local.shape import Role, Shape
from objects.base import Object

EVERYWHERE = "everywhere"

DOWN_AFTER_S = 30.0
"""Seconds of silence after which a host is down."""

RECOVERY_S = 15.0
"""Seconds after a fault's end in which its effect may last: processes start, connections are made again."""


def hypervisor_of(host: str) -> str:
    """The place of what runs the guests of a host."""
    return f"hypervisor of {host}"


class Incident(Object, frozen=True, kw_only=True):
    """One fault that was carried out. Times in seconds since the epoch."""

    kind: Kind
    target: str
    began: float
    ended: float

    @property
    def place_hit(self) -> str:
        """What was hit: a member, a hypervisor, a level (see ``links.py``), or EVERYWHERE. Empty: nothing."""
        if self.kind in (Kind.BROKER, Kind.DATABASE):
            return EVERYWHERE
        if self.kind is Kind.DRAIN:
            return ""
        if self.kind in REAL_ONLY:
            return hypervisor_of(self.target.rpartition(" ")[2])
        return level_of(self.target.rpartition(" ")[2])


class Weather:
    """All incidents of one run. ``stalls``: begin and end of when the machine stood still, in seconds since the epoch."""

    def __init__(self, shape: Shape, incidents: Iterable[Incident], stalls: Iterable[tuple[float, float]] = ()) -> None:
        self.incidents = tuple(incidents)
        self._stalls = tuple(stalls)
        self._cells = shape.cell_names()
        self._cell_of = {host.name: host.cell for host in shape.list_hosts()}
        self.hosts = tuple(self._cell_of)
        self._supers = {member.name for member in shape.list_members() if member.role in (Role.SUPER, Role.SCHEDULER)}

    def host_outage(self, host: str, at: float, back: float) -> float:
        """Seconds of the ``back`` seconds before ``at`` in which this host could not speak to its cell's database."""
        return self._outage_of({EVERYWHERE, host, self._cell_of.get(host, "")}, at, back)

    def cell_outage(self, cell: str, at: float, back: float) -> float:
        """The same for a cell as the API level sees it."""
        return self._outage_of({EVERYWHERE, cell, f"{ABOVE}{cell}"}, at, back)

    def seen_host_outage(self, host: str, at: float, back: float) -> float:
        """The same for a host as the API level sees it."""
        cell = self._cell_of.get(host, "")
        return self._outage_of({EVERYWHERE, host, cell, f"{ABOVE}{cell}"}, at, back)

    def shortest_cell_outage(self, at: float, back: float) -> float:
        """The same for the cell that could be seen longest."""
        return min(self.cell_outage(cell, at, back) for cell in self._cells)

    def api_outage(self, at: float, back: float) -> float:
        """The same for the API level: its servers, its super conductors and schedulers."""
        return self._outage_of({EVERYWHERE, API, *self._supers}, at, back)

    def was_touched(self, place: str, at: float, back: float) -> bool:
        """Whether anything was done to this very place within ``back`` seconds before ``at``."""
        return self._outage_of({place}, at, back) > 0

    def called_dead(self, host: str, at: float, back: float) -> bool:
        """Whether the operator called this host dead within ``back`` seconds before ``at``."""
        return self._had_incident(host, at, back, Kind.HOST)

    def was_closed(self, host: str, at: float, back: float) -> bool:
        """The same, or the host took no new servers because it was drained."""
        return self._had_incident(host, at, back, Kind.HOST, Kind.DRAIN)

    def takes_none(self, host: str, at: float) -> bool:
        """Whether this host took no servers at that moment: closed, without its hypervisor, or down after a long silence."""
        is_closed = self.was_closed(host, at, 0.0) or self._outage_of({hypervisor_of(host)}, at, 1.0) > 0
        return is_closed or self.seen_host_outage(host, at, DOWN_AFTER_S + 1.0) > DOWN_AFTER_S

    def _had_incident(self, host: str, at: float, back: float, *kinds: Kind) -> bool:
        return any(
            incident.kind in kinds and incident.target == host and incident.began <= at and incident.ended + RECOVERY_S >= at - back
            for incident in self.incidents
        )

    def _outage_of(self, places: Collection[str], at: float, back: float) -> float:
        hits = [(incident.began, incident.ended) for incident in self.incidents if incident.place_hit in places]
        if EVERYWHERE in places:
            hits += self._stalls
        spans = sorted((max(at - back, began), min(at, ended + RECOVERY_S)) for began, ended in hits)
        total, reached = 0.0, at - back
        for began, ended in spans:
            total += max(0.0, ended - max(began, reached))
            reached = max(reached, ended)
        return total
