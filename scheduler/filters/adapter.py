"""Adapts an operator's own filter, which judges one host at a time, to the filter interface."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from objects.spec import RequestSpec
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import HostByHostFilter
from scheduler.framework.hosts import Hosts, HostState
from scheduler.framework.settings import SchedulerSettings


@runtime_checkable
class HostPasses(Protocol):
    """The interface of such a filter. Its class attribute ``reason`` is used if it has one. It must not do I/O."""

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool: ...


class Adapter(HostByHostFilter):
    """Calls ``host_passes`` for each host that the filters before it have left."""

    reason = "refused by a filter of this site"
    per_host = True

    def __init__(self, settings: SchedulerSettings, name: str, adapted: HostPasses) -> None:
        super().__init__(settings)
        self.name = name
        self._adapted = adapted
        self.reason = getattr(adapted, "reason", Adapter.reason)  # type: ignore[misc]  # each adapted filter has its own

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        answers = (bool(self._adapted.host_passes(hosts.state_at(i), request.spec)) for i in range(len(hosts)))
        try:
            return np.fromiter(answers, dtype=np.bool_, count=len(hosts))
        except Exception as error:  # the message names the filter to fix, in logs and in the server's fault
            raise RuntimeError(f"filter {self.name} failed: {type(error).__name__}: {error}") from error
