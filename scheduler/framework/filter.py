"""The base class of filters."""

from __future__ import annotations

import abc
from typing import ClassVar

from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.arrays import Mask


class Filter(abc.ABC):
    """One condition that a host must meet. The same object is used for planning and for confirming on the ledger's locked rows.

    ``reason`` completes "no host is left, because of ...". Tenants see it, so it names no host.
    ``guards_host``: the filter also runs for a host that an administrator forces.
    ``on_demand``: explanations leave the filter out where it returned None, because the request does not use it.
    ``applies_when``: the filter runs only for requests with at least one of these CONDITIONS. Empty: for all.
    ``host_by_host``: the filter gets only the hosts that are left.
    ``reads``: what of a request the answers depend on, by the names in ``scheduler.engine.request_classes.FIELDS``. The answers of
    each host are kept then while nothing is told of it. None: anything, or the time. It may also name fields of OPTIONAL, and
    ``cells``: the cells that are closed to the request. With them no answers are kept, unless there are ``row_inputs``.
    ``row_inputs``: what singles out hosts, by the names in ``scheduler.engine.row_inputs.ROW_INPUTS``: the members of the
    ``group`` on a host, or in its ``racks``, or that the request names it in ``ignore_hosts`` or ``excluded_hosts``. All other
    hosts get the same answer, whatever their other columns. Answers are then derived from a few hosts.
    ``per_host``: of members of the group it asks for those on each host alone, so that placing one changes the answer for no
    other host. It need not hold for requests that get no alternates: of affinity groups, and those that keep to racks.

    A subclass has to declare ``reads``, ``row_inputs`` and ``per_host`` again.

    ``hint_names``: the scheduler hints that it reads. A filter of a site that applies when there are hints, and names none, may
    read any.

    ``reads`` and ``applies_when`` together tell which changes of a refused request may alter the answers.
    """

    reason: ClassVar[str]
    guards_host: ClassVar[bool] = False
    on_demand: ClassVar[bool] = False
    applies_when: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...] | None] = None
    hint_names: ClassVar[tuple[str, ...]] = ()
    row_inputs: ClassVar[tuple[str, ...]] = ()
    per_host: ClassVar[bool] = False
    host_by_host: ClassVar[bool] = False

    name: str
    """The name in the configuration and in explanations."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__
        cls.reads = vars(cls).get("reads")
        cls.row_inputs = vars(cls).get("row_inputs", ())
        cls.per_host = vars(cls).get("per_host", False)

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings

    @abc.abstractmethod
    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        """True for each of ``hosts`` that may take one more instance of ``request``; None: the request does not use this filter."""

    def explain_refusal(self, hosts: Hosts, request: Request) -> str:
        """The reason for this request, if the filter has left none of ``hosts``."""
        del hosts, request  # for filters that can be more precise
        return self.reason


class HostByHostFilter(Filter):
    """A filter that gets only the hosts that are left, because judging each host is expensive."""

    host_by_host = True
