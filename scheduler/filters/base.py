"""What a filter is."""

from __future__ import annotations

import abc
from typing import ClassVar

from scheduler.arrays import Mask
from scheduler.hosts import Hosts
from scheduler.request import Request
from scheduler.settings import Settings


class Filter(abc.ABC):
    """One condition a host must meet. The same object plans and, on the locked rows of the ledger, confirms.

    ``reason`` completes "no host is left, because of ...": shown to tenants, so it names no host. ``dynamic``: the answer may
    change as the batch takes room. ``guards_host``: asked even where an administrator forces the host. ``on_demand``: not mentioned
    in explanations of requests that do not call for it.
    """

    reason: ClassVar[str]
    dynamic: ClassVar[bool] = False
    guards_host: ClassVar[bool] = False
    on_demand: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def name(self) -> str:
        """As it is called in the configuration and in explanations."""
        return type(self).__name__

    @abc.abstractmethod
    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        """True for each of ``hosts`` that may take one more instance of ``request``; None: all of them, whatever they are."""


class HostByHostFilter(Filter):
    """A filter that is given only the hosts that are left, because looking at each is dear."""
