"""Questions to a scheduler: what it would decide. Nobody waits for longer than for a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from api.http.call import Call
from api.http.faults import SchedulerSilent
from api.opts import ApiSettings
from cells.bulkhead import Bulkhead, BulkheadSettings
from objects import errors
from objects.capacity import Capacity, Loss
from objects.context import RequestContext
from objects.dry_run import DryRun
from objects.rebalance import Rebalance
from objects.spec import RequestSpec
from rpc.errors import RemoteFault, Timeout, Unreachable

T = TypeVar("T")


class SchedulerSource(Protocol):
    """Asks schedulers: ``rpc.scheduler.SchedulerClient``."""

    def dry_run(self, context: RequestContext, request_spec: RequestSpec) -> DryRun: ...

    def capacity(self, context: RequestContext, request_specs: Sequence[RequestSpec], lost: Loss | None) -> Capacity: ...

    def rebalance(self, context: RequestContext, request_specs: Sequence[RequestSpec], at_most: float) -> Rebalance: ...

    def refusal_of_image(self, context: RequestContext, request_spec: RequestSpec, instance_uuid: str) -> str: ...


class SchedulerAsker:
    """``inline``: the bus to the schedulers is inside this process, and needs no threads."""

    def __init__(self, settings: ApiSettings, source: SchedulerSource, *, inline: bool) -> None:
        self._source = source
        patience = BulkheadSettings(timeout=settings.cell_timeout)
        self._schedulers = Bulkhead("the API level", "bus", patience, inline=inline, silent=(Timeout, Unreachable))

    def dry_run(self, call: Call, spec: RequestSpec) -> DryRun:
        """What a scheduler would decide. Raises SchedulerSilent, and errors.Conflict if it does not know all hosts yet."""
        return self._ask_scheduler(partial(self._source.dry_run, call.context, spec))

    def get_capacity(self, call: Call, specs: Sequence[RequestSpec], lost: Loss | None) -> Capacity:
        """How many more servers of these fit, after this loss if there is one.

        Raises SchedulerSilent, errors.TooCostly, and errors.Invalid for specs that no host can meet.
        """
        return self._ask_scheduler(partial(self._source.capacity, call.context, specs, lost))

    def plan_rebalance(self, call: Call, specs: Sequence[RequestSpec], at_most: float) -> Rebalance:
        """Which moves of at most so many per cent of the servers empty the most hosts.

        Raises SchedulerSilent, and errors.Invalid for specs that no host can meet.
        """
        return self._ask_scheduler(partial(self._source.rebalance, call.context, specs, at_most))

    def refusal_of_image(self, call: Call, spec: RequestSpec, instance_uuid: str) -> str:
        """Why the host of an instance does not run the image of this spec; empty if it does.

        Raises SchedulerSilent, errors.Invalid for an image that no host can run, and errors.Conflict if the scheduler does not know
        the host yet.
        """
        return self._ask_scheduler(partial(self._source.refusal_of_image, call.context, spec, instance_uuid))

    def _ask_scheduler(self, ask: Callable[[], T]) -> T:
        try:
            return self._schedulers.run(ask)
        except errors.CellUnavailable as silent:
            raise SchedulerSilent("No scheduler answers. Nothing was changed; try again in a moment.") from silent
        except errors.Unsupported as old:
            raise SchedulerSilent(
                "The scheduler that answered is of an older release, which cannot tell this: upgrade it."
            ) from old
        except RemoteFault as fault:
            raise SchedulerSilent("The scheduler failed to answer; its log says why. Nothing was changed.") from fault
        except errors.NoValidHost as refusal:  # of a flavor or an image that no host can meet
            raise errors.Invalid(str(refusal)) from refusal
