"""The RPC endpoint of the API level's conductor. Its methods are doorbells: what they announce is already in the database.

``console_output``, ``open_console`` and ``diagnostics`` are questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conductor.build import Builder
from conductor.delete import Deleter
from conductor.guest_reader import GuestReader
from objects import errors
from objects.console import ConsoleKind, ConsolePlace
from objects.context import RequestContext
from objects.diagnostics import Diagnostics


class SuperConductor:
    """The endpoint of topic ``super-conductor``. ``build``: called with the IDs of accepted batches; None: build them at once."""

    def __init__(
        self,
        builder: Builder,
        deleter: Deleter,
        build: Callable[[Sequence[str]], None] | None = None,
        operate: Callable[[Sequence[str]], None] = lambda operations: None,
        guests: GuestReader | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """``heard``: called at every doorbell."""
        self._build = build or builder.schedule_and_build
        self._deleter = deleter
        self._operate = operate
        self._guests = guests
        self._heard = heard

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        """A batch was accepted: build it now rather than at the next sweep."""
        self._heard()
        self._build([batch_id])

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        """Several batches were accepted together."""
        self._heard()
        self._build(batch_ids)

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Deletes were decided: send them to their cells now rather than at the next sweep."""
        self._heard()
        self._deleter.carry_out(uuids, context.request_id)

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Operations wait for their next steps: take them now rather than at the next sweep."""
        self._heard()
        self._operate(uuids)

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str:
        """Return the end of a server's console output. Raises what ``GuestReader.console_output`` does."""
        return self._reader().console_output(context, uuid, lines, timeout)

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace:
        """Return the way to a server's console. Raises what ``GuestReader.open_console`` does."""
        return self._reader().open_console(context, uuid, kind, path_digest, lifetime, timeout)

    def diagnostics(self, context: RequestContext, uuid: str, timeout: float) -> Diagnostics:
        """Return what the hypervisor knows of a server's guest. Raises what ``GuestReader.diagnostics`` does."""
        return self._reader().diagnostics(context, uuid, timeout)

    def _reader(self) -> GuestReader:
        if self._guests is None:
            raise errors.Unsupported("This super conductor asks no hosts about guests.")
        return self._guests
