"""Decide which hosts are up, by the reader's own clock and by the heartbeats of all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from objects.compute_node import Service

MIN_INTERVAL_S = 1.0
"""Smallest limit, in seconds, of how much a silence of all hosts counts, however short the down time is."""


class Liveness:
    """A host is down if it was silent too long *while others were heard*. The reporter's clock is never compared with ours.

    If no host is heard, the bus, the database or the reader itself is down. No host is called down for that, nor if it is heard
    again a little later than the first. So silence is measured in audible time, which advances only with the heartbeats of all
    hosts. A gap without any heartbeat counts as at most half a down time. The host heard last is up: silence of a single host, or
    of all hosts at once, proves nothing.

    ``down_time``: seconds of such silence after which a host is down. A host seen for the first time counts as up for as long; a
    host that was forced down is down at once.
    """

    def __init__(self, down_time: float) -> None:
        self._down_time = down_time
        self._longest_gap = max(down_time / 2, MIN_INTERVAL_S)
        self._audible = 0.0
        """Seconds since the first look in which a host could be heard."""
        self._last_heard: float | None = None
        self._heard: dict[str, tuple[int, float]] = {}
        """By the key of a service: its report count, and the audible time when that count was new."""

    def hosts_down(self, services: Iterable[Service], now: float) -> set[str]:
        """The hosts among ``services`` that are down; ``now`` is the reader's monotonic clock in seconds."""
        looked_at = list(services)
        silent = self.silent_services({service.uuid: service.report_count for service in looked_at}, now)
        return {service.host for service in looked_at if service.forced_down or service.uuid in silent}

    def silent_services(self, report_counts: Mapping[str, int], now: float) -> set[str]:
        """Those that are down by their silence, whatever an operator says. ``report_counts``: by a key of each service."""
        counts_heard = {key: count for key, count in report_counts.items() if self._is_new(key, count)}
        if counts_heard:
            if self._last_heard is not None:
                self._audible += min(now - self._last_heard, self._longest_gap)
            self._last_heard = now
        for key, count in counts_heard.items():
            self._heard[key] = (count, self._audible)
        return {key for key in report_counts if self._audible - self._heard[key][1] > self._down_time}

    def _is_new(self, key: str, count: int) -> bool:
        return key not in self._heard or self._heard[key][0] != count
