"""Which hosts are up, judged by the reader's own clock, and by what it hears of the others."""

from __future__ import annotations

from collections.abc import Iterable

from objects.compute_node import Service

SHORTEST = 1.0
"""Seconds that a silence of all hosts may count at least, however short the down time is."""


class Liveness:
    """A host is down that has been silent for long *while others were heard*. The reporter's clock is never compared with ours.

    When nobody is heard, it is the bus, the database or the reader itself that is down: no host is called dead for that, and those
    that are heard of again a little later than the first are not either. So the time in which hosts may fall silent is measured by
    the signs of life of all of them, and a gap in which there was none counts half a down time at most. The host that was heard of
    last is up: of a single host, or of all hosts at once, silence proves nothing.

    ``down_time``: seconds of such silence after which a host is down. A host seen for the first time gets the benefit of the doubt
    for as long; one that was forced down is down at once.
    """

    def __init__(self, down_time: float) -> None:
        self._down_time = down_time
        self._longest_gap = max(down_time / 2, SHORTEST)
        self._audible = 0.0
        """Seconds in which somebody could be heard, since the first look."""
        self._last_heard: float | None = None
        self._heard: dict[str, tuple[int, float]] = {}
        """Of each service its report count and when, in audible time, that was new."""

    def down(self, services: Iterable[Service], now: float) -> set[str]:
        """The hosts among ``services`` that are down; ``now`` is the reader's monotonic clock in seconds."""
        looked_at = list(services)
        heard = [service for service in looked_at if self._is_new(service)]
        if heard:
            if self._last_heard is not None:
                self._audible += min(now - self._last_heard, self._longest_gap)
            self._last_heard = now
        for service in heard:
            self._heard[service.uuid] = (service.report_count, self._audible)
        return {service.host for service in looked_at if service.forced_down or self._is_silent(service)}

    def _is_new(self, service: Service) -> bool:
        return service.uuid not in self._heard or self._heard[service.uuid][0] != service.report_count

    def _is_silent(self, service: Service) -> bool:
        return self._audible - self._heard[service.uuid][1] > self._down_time
