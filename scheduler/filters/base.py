"""What a filter is."""

from __future__ import annotations

import abc
from typing import ClassVar

from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class Filter(abc.ABC):
    """One condition a host must meet. The same object plans and, on the locked rows of the ledger, confirms.

    ``reason`` completes "no host is left, because of ...". Tenants see it, so it names no host.
    ``guards_host``: the filter also runs for a host that an administrator forces.
    ``on_demand``: explanations leave the filter out where it returned None, because the request does not use it.
    ``applies_when``: the filter runs only for requests with at least one of these OPTIONAL fields of a spec. Empty: for all.
    ``host_by_host``: the filter gets only the hosts that are left.
    """

    reason: ClassVar[str]
    guards_host: ClassVar[bool] = False
    on_demand: ClassVar[bool] = False
    applies_when: ClassVar[tuple[str, ...]] = ()
    host_by_host: ClassVar[bool] = False

    name: str
    """As it is called in the configuration and in explanations."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings

    @abc.abstractmethod
    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        """True for each of ``hosts`` that may take one more instance of ``request``; None: all of them, whatever they are."""

    def refusal(self, hosts: Hosts, request: Request) -> str:
        """``reason`` in the words of this request, where the filter has left none of ``hosts``."""
        del hosts, request  # a filter that can be more precise looks at them
        return self.reason


class HostByHostFilter(Filter):
    """A filter that is given only the hosts that are left, because looking at each is dear."""

    host_by_host = True
