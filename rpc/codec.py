"""Messages to and from what JSON can carry, with their name and version.

On the wire a message is ``{"$message": "Selection", "version": "1.0", "fields": {...}}``. Messages may stand anywhere in lists,
tuples and dicts; sequences arrive as lists. What is nested in the *fields* of a message has no name or version of its own there:
the outer message's version speaks for it, and a test keeps a fingerprint of the whole.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

import objects
from objects import errors, typed
from objects.base import Message
from objects.messages_version import SPAN, MessagesVersion
from objects.text import one_line
from rpc.backport import CHANGED, backport_fields, message_version

QUOTE_BYTES = 300
"""Bytes of a message that an error quotes."""

_NAME = "$message"
_VERSION = "version"
_FIELDS = "fields"


def all_messages() -> Iterator[type[Message]]:
    """Every message defined in ``objects``, whether or not its module was imported before."""
    for module in pkgutil.iter_modules(objects.__path__):
        importlib.import_module(f"objects.{module.name}")
    pending = list(Message.__subclasses__())
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        if kind.__module__.startswith("objects."):
            yield kind


class Wrapped(msgspec.Struct):
    """A message on the wire. Its fields are read when its name and version are known."""

    name: str = msgspec.field(name=_NAME)
    version: str
    fields: msgspec.Raw


@functools.cache
def shared_codec() -> Codec:
    """The codec of all messages in ``objects``."""
    return Codec()


class Codec:
    """Encodes values of any nesting and decodes them again, for the message types given (default: all in ``objects``)."""

    def __init__(self, types: Iterable[type[Message]] | None = None) -> None:
        self._types: dict[str, type[Message]] = {}
        for cls in all_messages() if types is None else types:
            if self._types.setdefault(cls.__name__, cls) is not cls:
                raise TypeError(f"two messages are named {cls.__name__}: names on the bus must be unique")

    def encode_value(self, value: object, peer: Callable[[], MessagesVersion] | None = None) -> Any:
        """Return ``value`` as JSON-able builtins, for a peer of this messages version. None: the peer is of this release.

        ``peer`` is called only for messages that differ between versions. Raises TypeError for what may not cross the bus, and
        errors.PeerTooOld for what the peer would not do.
        """
        if value is None or isinstance(value, (str, int, float)):
            return value
        if isinstance(value, Message):
            cls = type(value)
            name, fields, version = cls.__name__, msgspec.to_builtins(value), cls.VERSION
            if name in CHANGED and peer is not None and (known := peer()) != SPAN.newest:
                fields, version = backport_fields(name, fields, known), message_version(name, version, known)
            return {_NAME: name, _VERSION: version, _FIELDS: fields}
        if isinstance(value, (list, tuple)):
            return [self.encode_value(item, peer) for item in value]
        if isinstance(value, dict) and _NAME not in value and all(isinstance(key, str) for key in value):
            return {key: self.encode_value(item, peer) for key, item in value.items()}
        raise TypeError(
            f"{type(value).__name__} cannot cross the bus: only messages, text, numbers, and lists and dicts of them can"
        )

    def decode_value(self, value: Any) -> Any:
        """The inverse of ``encode_value``. Raises Unsupported for a message of an unknown name or another major version."""
        if isinstance(value, list):
            return [self.decode_value(item) for item in value]
        if isinstance(value, dict):
            if _NAME in value:
                return self._decode_message(value)
            return {key: self.decode_value(item) for key, item in value.items()}
        return value

    def unwrap_message(self, kind: type[Message], wrapped: Wrapped) -> Message:
        """The message, which must be a ``kind``. Raises Unsupported as ``decode_value`` does."""
        if wrapped.name != kind.__name__:
            self._known_type(wrapped.name, wrapped.version)
            raise errors.Unsupported(f"Message {wrapped.name} was received instead of {kind.__name__}.")
        self._check_version(kind, wrapped.version)
        try:
            return typed.decode_json(wrapped.fields, kind)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise _unfit_error(kind, wrapped.version, error) from None

    def _decode_message(self, value: dict[str, Any]) -> Message:
        name, version = value[_NAME], str(value.get(_VERSION))
        kind = self._known_type(name, version)
        self._check_version(kind, version)
        try:
            return typed.convert_data(value.get(_FIELDS), kind)
        except (msgspec.ValidationError, RecursionError, ValueError) as error:
            raise _unfit_error(kind, version, error) from None

    def _known_type(self, name: object, version: str) -> type[Message]:
        kind = self._types.get(name) if isinstance(name, str) else None
        if kind is None:
            shown = one_line(f"{name} {version}", QUOTE_BYTES)
            raise errors.Unsupported(f"Message {shown} is not known here: upgrade this service before its peers.")
        return kind

    def _check_version(self, kind: type[Message], version: str) -> None:
        if version.partition(".")[0] != kind.VERSION.partition(".")[0]:
            start = f"Message {kind.__name__} has version {one_line(version, QUOTE_BYTES)}"
            raise errors.Unsupported(f"{start}, but this service supports {kind.VERSION}.")


def _unfit_error(kind: type[Message], version: str, error: Exception) -> errors.Unsupported:
    start = f"Message {kind.__name__} {one_line(version, QUOTE_BYTES)} cannot be read as {kind.VERSION}"
    return errors.Unsupported(f"{start}: {one_line(str(error), QUOTE_BYTES)}.")
