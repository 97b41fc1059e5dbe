"""The base class of weighers."""

from __future__ import annotations

import abc
from typing import ClassVar

from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.arrays import Floats
from scheduler.table.host_table import HostTable


class Weigher(abc.ABC):
    """One criterion for ranking hosts. The host with the highest sum of weights wins.

    Raw weights are scaled so that the hosts that passed the filters span 0 to 1, then multiplied by ``weight_multiplier``. A
    negative multiplier reverses the ranking, 0 switches the weigher off. The engine skips a weigher with a non-finite weight for
    one of these hosts. It may also ask for hosts that filters have refused, and ignores those weights: weigh each host by itself.

    ``least``: the lower end of the range (Nova's ``minval``); lower weights are raised to it. None: the lowest weight.
    ``option``: if aggregates have this key, the smallest of their values is the multiplier of their hosts.
    ``hint_names``: the scheduler hints that it reads.
    ``applies_when``: the weigher runs only for requests with at least one of these CONDITIONS. Empty: for all.
    ``cell_wide``: placing a server changes the weights of all hosts of its cell alike.
    ``reads``: what of a request the answers depend on, by the names in ``scheduler.engine.request_classes.FIELDS``. The answers of
    each host are kept then while nothing is told of it. None: anything, or the time.
    ``row_inputs``: what singles out hosts, as in ``Filter``. All other hosts weigh 0.
    ``of_fleet``: its own class has ``fleet_terms``: its weights also depend on the fleet as a whole.
    ``per_host``: of members of the group it asks for those on each host alone, so that placing one changes the weight for no other
    host. It need not hold for requests that get no alternates: of affinity groups, and those that keep to racks.

    A subclass has to declare ``reads``, ``row_inputs`` and ``per_host`` again.
    """

    least: ClassVar[float | None] = None
    option: ClassVar[str] = ""
    applies_when: ClassVar[tuple[str, ...]] = ()
    hint_names: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...] | None] = None
    of_fleet: ClassVar[bool] = False
    row_inputs: ClassVar[tuple[str, ...]] = ()
    per_host: ClassVar[bool] = False
    cell_wide: ClassVar[bool] = False

    name: str
    """The name in the configuration and in explanations."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__
        cls.reads = vars(cls).get("reads")
        cls.of_fleet = "fleet_terms" in vars(cls)
        cls.row_inputs = vars(cls).get("row_inputs", ())
        cls.per_host = vars(cls).get("per_host", False)

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._multiplier = float(getattr(settings, self.option, 1.0))

    @property
    def weight_multiplier(self) -> float:
        """The setting that ``option`` names; 1.0 if there is none."""
        return self._multiplier

    def host_multipliers(self, hosts: Hosts) -> Floats | float:
        """The multiplier, or an array with one per host if aggregates set their own."""
        return hosts.least_of_aggregates(self.option, self.weight_multiplier) if self.option else self.weight_multiplier

    def fleet_terms(self, table: HostTable, request: Request) -> tuple[float, ...] | None:
        """What of the fleet as a whole its weights depend on, as numbers that seldom change; None: it weighs no hosts now."""
        return ()

    def cached_terms(self, table: HostTable, request: Request) -> tuple[float, ...] | None:
        """The same, once for each request: also after it has taken hosts. Records of decisions keep it."""
        return request.remember_result(("terms", self.name), lambda: self.fleet_terms(table, request))

    @abc.abstractmethod
    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        """One raw weight per host; None: the weigher does not apply to this request."""
