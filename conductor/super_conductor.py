"""The RPC endpoint of the API level's conductor. Its methods are doorbells: what they announce is already in the database.

``console_output``, ``open_console`` and ``diagnostics`` are questions.
"""

from __future__ import annotations

from collections.abc import Sequence

from conductor.delete import Deleter
from conductor.guest_reader import GuestReader
from conductor.signals import WorkSignals
from objects import errors
from objects.console import ConsoleKind, ConsolePlace
from objects.context import RequestContext
from objects.diagnostics import Diagnostics


class SuperConductor:
    """The endpoint of topic ``super-conductor``. ``guests``: None: this process asks no hosts about guests."""

    def __init__(self, signals: WorkSignals, deleter: Deleter, guests: GuestReader | None = None) -> None:
        self._signals = signals
        self._deleter = deleter
        self._guests = guests

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        """A batch was accepted: build it now rather than at the next sweep."""
        self._signals.note_request()
        self._signals.build_batches([batch_id])

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        """Several batches were accepted together."""
        self._signals.note_request()
        self._signals.build_batches(batch_ids)

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Deletes were decided: send them to their cells now rather than at the next sweep."""
        self._signals.note_request()
        self._deleter.carry_out(uuids, context.request_id)

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Operations wait for their next steps: take them now rather than at the next sweep."""
        self._signals.note_request()
        self._signals.advance_operations(uuids)

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str:
        """Return the end of a server's console output. Raises what ``GuestReader.console_output`` does."""
        return self._guest_reader().console_output(context, uuid, lines, timeout)

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace:
        """Return the way to a server's console. Raises what ``GuestReader.open_console`` does."""
        return self._guest_reader().open_console(context, uuid, kind, path_digest, lifetime, timeout)

    def diagnostics(self, context: RequestContext, uuid: str, timeout: float) -> Diagnostics:
        """Return what the hypervisor knows of a server's guest. Raises what ``GuestReader.diagnostics`` does."""
        return self._guest_reader().diagnostics(context, uuid, timeout)

    def _guest_reader(self) -> GuestReader:
        if self._guests is None:
            raise errors.Unsupported("This super conductor asks no hosts about guests.")
        return self._guests
