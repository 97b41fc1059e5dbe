"""What the API level's conductor answers to. Both methods are doorbells: what they announce is in rows already."""

from __future__ import annotations

from collections.abc import Sequence

from conductor.build import Builder
from conductor.delete import Deleter
from objects.context import RequestContext


class SuperConductor:
    """The endpoint of topic ``super-conductor``."""

    def __init__(self, builder: Builder, deleter: Deleter) -> None:
        self._builder = builder
        self._deleter = deleter

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        """A batch was accepted: build it now rather than at the next sweep."""
        self._builder.schedule_and_build([batch_id])

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Deletes were decided: carry them into their cells now rather than at the next sweep."""
        self._deleter.carry_out(uuids, context.request_id)
