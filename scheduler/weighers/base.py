"""What a weigher is."""

from __future__ import annotations

import abc
from typing import ClassVar

from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts


class Weigher(abc.ABC):
    """One opinion on which hosts are better. The host with the highest sum wins.

    Raw weights are scaled so that the hosts left by the filters span 0 to 1, then multiplied by ``multiplier``: negative turns the
    opinion round, 0 switches it off. ``least`` is where the range begins (Nova's ``minval``), what is less counts as that; None: at
    the least of the hosts. Where it has no finite number for one of the hosts left it has no say. ``option``: where aggregates have
    this key, the smallest of their values is the multiplier of their hosts.
    ``applies_when``: it has no opinion of requests that have none of these OPTIONAL fields of a spec; empty: of any it may.
    ``cell_wide``: a server that is placed changes what this weigher says of all hosts of its cell alike. It is asked for hosts
    that filters have refused as well, whose weights are disregarded: each host is weighed by itself.
    """

    least: ClassVar[float | None] = None
    option: ClassVar[str] = ""
    applies_when: ClassVar[tuple[str, ...]] = ()
    cell_wide: ClassVar[bool] = False

    name: str
    """As it is called in the configuration and in explanations."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings

    @property
    @abc.abstractmethod
    def multiplier(self) -> float: ...

    def multipliers(self, hosts: Hosts) -> Floats | float:
        """The multiplier, or one for each host where aggregates have their own."""
        return hosts.least(self.option, self.multiplier) if self.option else self.multiplier

    @abc.abstractmethod
    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        """One raw weight per host; None: no opinion on this request."""
