"""Who sent a message: what the broker vouches for, and nothing that the sender writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from objects.base import Object


class MessageSender(Object, frozen=True, kw_only=True):
    """``user``: the broker's user that published the message, which the broker compares with the login; None: it names none.

    ``is_local``: the message never left this process.
    """

    user: str | None = None
    is_local: bool = False


UNKNOWN = MessageSender()
LOCAL = MessageSender(is_local=True)

_CURRENT: ContextVar[MessageSender] = ContextVar("sender", default=UNKNOWN)


@contextlib.contextmanager
def handling_message_of(sender: MessageSender) -> Iterator[None]:
    """While a message of ``sender`` is dispatched in this thread."""
    token = _CURRENT.set(sender)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_sender() -> MessageSender:
    """The sender of the message that this thread dispatches; UNKNOWN where there is none."""
    return _CURRENT.get()
