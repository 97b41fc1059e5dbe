"""The scheduler's seam: the two calls there are, and the first of them for many, as the library that everyone else uses.

``dry_run``, ``capacity`` and ``rebalance`` are questions of operators, ``refusal_of_image`` one of the API: they claim nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from objects import stats as checked
from objects.capacity import Capacity, Loss
from objects.choice import Choice
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.dry_run import DryRun
from objects.rebalance import Rebalance
from objects.selection import Selection
from objects.spec import RequestSpec
from rpc.arguments import ITEMS_LIMIT, Id, Ids
from rpc.cell_conductor import CellConductorClient
from rpc.server import TopicServer
from rpc.transport import CALL_TIMEOUT_S, Bus

TOPIC = "scheduler"

FLAVORS_LIMIT = 16
"""Maximum number of flavors in one question for capacity."""


class SchedulerEndpoint(Protocol):
    """What a scheduler serves."""

    def select_destinations(self, context: RequestContext, request_spec: RequestSpec, instance_uuids: Ids) -> list[list[Selection]]:
        """See ``SchedulerClient.select_destinations``."""
        ...

    def select_for_each(
        self, context: RequestContext, request_specs: Annotated[Sequence[RequestSpec], msgspec.Meta(max_length=ITEMS_LIMIT)]
    ) -> list[Choice]:
        """See ``SchedulerClient.select_for_each``."""
        ...

    def capacity(
        self,
        context: RequestContext,
        request_specs: Annotated[Sequence[RequestSpec], msgspec.Meta(max_length=FLAVORS_LIMIT)],
        lost: Loss | None = None,
    ) -> Capacity:
        """See ``SchedulerClient.capacity``."""
        ...

    def dry_run(self, context: RequestContext, request_spec: RequestSpec) -> DryRun:
        """See ``SchedulerClient.dry_run``."""
        ...

    def refusal_of_image(self, context: RequestContext, request_spec: RequestSpec, instance_uuid: Id) -> str:
        """See ``SchedulerClient.refusal_of_image``."""
        ...

    def rebalance(
        self,
        context: RequestContext,
        request_specs: Annotated[Sequence[RequestSpec], msgspec.Meta(max_length=FLAVORS_LIMIT)],
        at_most: Annotated[float, msgspec.Meta(ge=0, le=100)],
    ) -> Rebalance:
        """See ``SchedulerClient.rebalance``."""
        ...


class SchedulerClient:
    """Choose hosts, and tell what a host has. The scheduler chooses and claims; it launches nothing."""

    def __init__(self, bus: Bus, *, timeout: float = CALL_TIMEOUT_S) -> None:
        self._bus = bus
        self._client = bus.make_client(TOPIC, timeout=timeout)

    def select_destinations(
        self, context: RequestContext, request_spec: RequestSpec, instance_uuids: Sequence[str]
    ) -> list[list[Selection]]:
        """Choose and claim a host for every instance, all or none; with ``request_spec.min_count`` so many of them at least.

        Returns, in the order of ``instance_uuids``, the Selection that is claimed under the instance's fence, followed by
        alternates in the same cell, which are not; nothing for an instance whose request is gone, or that found no host where
        enough others did. Asking again with the same fences returns the same claims. With ``request_spec.move`` it is the
        destination of that move that is chosen, and claimed under a uuid of the operation.

        Raises NoValidHost, Conflict or NotFound as the scheduler says, and Timeout, Unreachable or RemoteFault.
        """
        uuids = list(instance_uuids)
        return self._client.call(
            context, "select_destinations", list[list[Selection]], request_spec=request_spec, instance_uuids=uuids
        )

    def select_for_each(self, context: RequestContext, request_specs: Sequence[RequestSpec]) -> list[Choice]:
        """``select_destinations`` for batches of one moment, all instances of each spec's ``fences``: one message, one claim.

        Each batch stands or falls by itself; the answers come in the order asked, and each is taken with ``Choice.get_selections``.
        Nobody is waited for: a batch that no host is known for yet is told to come again.

        Raises Timeout, Unreachable, RemoteFault, and Unsupported where the scheduler that answers is too old: ask for each alone.
        """
        return self._client.call(context, "select_for_each", list[Choice], request_specs=list(request_specs))

    def capacity(self, context: RequestContext, request_specs: Sequence[RequestSpec], lost: Loss | None = None) -> Capacity:
        """How many more servers of each spec fit, and of all of them together; at most ``FLAVORS_LIMIT`` specs.

        ``lost``: count as if its hosts were lost and their servers placed elsewhere first.

        Raises TooCostly if too much is lost, NoValidHost for a spec that no host can meet, and what ``dry_run`` does.
        """
        return self._client.call(context, "capacity", Capacity, request_specs=list(request_specs), lost=lost)

    def dry_run(self, context: RequestContext, request_spec: RequestSpec) -> DryRun:
        """What ``select_destinations`` would decide about all instances of the spec's ``fences``. Nothing is claimed or stored.

        Raises Conflict if the scheduler does not know all hosts yet, Unsupported if it is too old, and Timeout, Unreachable or
        RemoteFault.
        """
        return self._client.call(context, "dry_run", DryRun, request_spec=request_spec)

    def refusal_of_image(self, context: RequestContext, request_spec: RequestSpec, instance_uuid: str) -> str:
        """Why the host of an instance does not run the image of this spec; empty if it does. Only filters that read images run.

        Raises NoValidHost for an image that no host can run, Conflict if the scheduler does not know the host yet, Unsupported if
        it is too old, and Timeout, Unreachable or RemoteFault.
        """
        return self._client.call(context, "refusal_of_image", str, request_spec=request_spec, instance_uuid=instance_uuid)

    def rebalance(self, context: RequestContext, request_specs: Sequence[RequestSpec], at_most: float) -> Rebalance:
        """Which moves of at most so many per cent of the servers empty the most hosts, and what fits before and after them.

        Raises what ``capacity`` does.
        """
        return self._client.call(context, "rebalance", Rebalance, request_specs=list(request_specs), at_most=at_most)

    def update_resource_stats(self, context: RequestContext, name: checked.Name, stats: ComputeNode | Mapping[str, Any]) -> None:
        """Tell what a host, or a ``(host, node)``, offers and uses now: the fields of ``ComputeNode``, or such an object.

        It goes to the cell conductor of the bus this client was made with, which puts it into the cell's feed that schedulers read:
        no process in a cell calls the API level. Raises Invalid if ``name`` is not whose stats they are or a field cannot be,
        Conflict if newer ones are known already, Timeout or Unreachable.
        """
        CellConductorClient(self._bus).update_resource_stats(context, checked.of_name(name, stats))


def serve_topic(bus: Bus, server: str, endpoint: SchedulerEndpoint, *, threads: int = 8) -> TopicServer:
    """Serve the scheduler's topic with ``endpoint``."""
    questions = ("capacity", "dry_run", "rebalance", "refusal_of_image")
    return bus.serve_topic(TOPIC, server, [endpoint], threads=threads, interface=SchedulerEndpoint, apart=questions)
