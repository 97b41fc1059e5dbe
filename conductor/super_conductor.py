"""The RPC endpoint of the API level's conductor. Its methods are doorbells: what they announce is already in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conductor.build import Builder
from conductor.delete import Deleter
from objects.context import RequestContext


class SuperConductor:
    """The endpoint of topic ``super-conductor``. ``build``: called with the IDs of accepted batches; None: build them at once."""

    def __init__(
        self,
        builder: Builder,
        deleter: Deleter,
        build: Callable[[Sequence[str]], None] | None = None,
        operate: Callable[[Sequence[str]], None] = lambda operations: None,
    ) -> None:
        self._build = build or builder.schedule_and_build
        self._deleter = deleter
        self._operate = operate

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        """A batch was accepted: build it now rather than at the next sweep."""
        self._build([batch_id])

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        """Several batches were accepted together."""
        self._build(batch_ids)

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Deletes were decided: send them to their cells now rather than at the next sweep."""
        self._deleter.carry_out(uuids, context.request_id)

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Operations wait for their next steps: take them now rather than at the next sweep."""
        self._operate(uuids)
