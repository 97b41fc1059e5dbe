"""Signals of a super conductor that are carried out at once, in the thread that gives them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from conductor.build import Builder
from conductor.operate import Operator
from conductor.signals import NoSignals


class DirectSignals(NoSignals):
    """Batches are built, and operations advanced, by these. ``operator``: None: nobody advances operations."""

    def __init__(self, builder: Builder, operator: Operator | None = None) -> None:
        self._builder = builder
        self._operator = operator

    def build_batches(self, batch_ids: Sequence[str]) -> None:
        self._builder.schedule_and_build(batch_ids)

    def advance_operations(self, operations: Collection[str]) -> None:
        if self._operator is not None:
            self._operator.advance_operations(operations)
