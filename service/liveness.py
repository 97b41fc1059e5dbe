"""Which hosts are up, judged by the reader's own clock."""

from __future__ import annotations

from collections.abc import Iterable

from objects.compute_node import Service


class Liveness:
    """A host is up while its report count rises. The reporter's clock is never compared with ours, so skew does no harm.

    ``down_time``: seconds of silence after which a host is down. A host seen for the first time gets the benefit of the doubt for
    as long; one that was forced down is down at once.
    """

    def __init__(self, down_time: float) -> None:
        self._down_time = down_time
        self._last: dict[str, tuple[int, float]] = {}

    def down(self, services: Iterable[Service], now: float) -> set[str]:
        """The hosts among ``services`` that are down; ``now`` is the reader's monotonic clock in seconds."""
        down: set[str] = set()
        for service in services:
            count, since = self._last.get(service.uuid, (None, now))
            if count != service.report_count:
                since = now
            self._last[service.uuid] = (service.report_count, since)
            if service.forced_down or now - since > self._down_time:
                down.add(service.host)
        return down
