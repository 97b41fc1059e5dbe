"""What can go wrong between a client and a server, besides the errors of ``objects.errors`` that the server raises."""

from __future__ import annotations

from objects import errors


class Timeout(errors.Transient):
    """No answer came in time. Whether the call was, is being, or will be carried out is unknown."""


class Unreachable(errors.Transient):
    """The bus did not take the message (or, rarely, took it without saying so in time); the text masks its password."""


class RemoteFault(errors.SuperconductorError):
    """The other side met an error that is none of ours, a bug; its traceback is in the log over there."""
