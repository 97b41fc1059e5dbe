"""Let an operator's own filter, written for one host at a time, join the chain."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from objects.spec import RequestSpec
from scheduler.filters.base import HostByHostFilter
from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts, HostState


@runtime_checkable
class HostPasses(Protocol):
    """All that such a filter must have; a class attribute ``reason`` is used if there is one. It must not do I/O."""

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool: ...


class Adapter(HostByHostFilter):
    """Asks ``host_passes`` for each host the filters before it have left, in configured order."""

    reason = "refused by a filter of this site"

    def __init__(self, settings: SchedulerSettings, name: str, adapted: HostPasses) -> None:
        super().__init__(settings)
        self.name = name
        self._adapted = adapted
        self.reason = getattr(adapted, "reason", Adapter.reason)  # type: ignore[misc]  # each adapted filter has its own

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        answers = (bool(self._adapted.host_passes(hosts.state(i), request.spec)) for i in range(len(hosts)))
        try:
            return np.fromiter(answers, dtype=np.bool_, count=len(hosts))
        except Exception as error:  # who reads it in a log or at a server knows which filter to mend
            raise RuntimeError(f"filter {self.name} failed: {type(error).__name__}: {error}") from error
