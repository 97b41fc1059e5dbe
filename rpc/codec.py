"""Messages to and from what JSON can carry, with their name and version.

On the wire a message is ``{"$message": "Selection", "version": "1.0", "fields": {...}}``. Messages may stand anywhere in lists,
tuples and dicts; sequences arrive as lists. What is nested in the *fields* of a message has no name or version of its own there:
the outer message's version speaks for it, and a test keeps a fingerprint of the whole.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

import objects
from objects import errors, typed
from objects.base import Message

_NAME = "$message"
_VERSION = "version"
_FIELDS = "fields"


def all_messages() -> Iterator[type[Message]]:
    """Every message defined in ``objects``, whether or not its module was imported before."""
    for module in pkgutil.iter_modules(objects.__path__):
        importlib.import_module(f"objects.{module.name}")
    pending = list(Message.__subclasses__())
    while pending:
        found = pending.pop()
        pending.extend(found.__subclasses__())
        if found.__module__.startswith("objects."):
            yield found


class Codec:
    """Encodes values of any nesting and decodes them again, for the message types given (default: all in ``objects``)."""

    def __init__(self, types: Iterable[type[Message]] | None = None) -> None:
        self._types: dict[str, type[Message]] = {}
        for cls in all_messages() if types is None else types:
            if self._types.setdefault(cls.__name__, cls) is not cls:
                raise TypeError(f"two messages are called {cls.__name__}: names on the bus must be unique")

    def encode(self, value: object) -> Any:
        """Return ``value`` as JSON-able builtins. Raises TypeError for what may not cross the bus."""
        if value is None or isinstance(value, (str, int, float)):
            return value
        if isinstance(value, Message):
            cls = type(value)
            return {_NAME: cls.__name__, _VERSION: cls.VERSION, _FIELDS: msgspec.to_builtins(value)}
        if isinstance(value, (list, tuple)):
            return [self.encode(item) for item in value]
        if isinstance(value, dict) and _NAME not in value and all(isinstance(key, str) for key in value):
            return {key: self.encode(item) for key, item in value.items()}
        raise TypeError(
            f"{type(value).__name__} cannot cross the bus: only messages, text, numbers, and lists and dicts of them can"
        )

    def decode(self, value: Any) -> Any:
        """The inverse of ``encode``. Raises Unsupported for a message of an unknown name or another major version."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if isinstance(value, dict):
            if _NAME in value:
                return self._message(value)
            return {key: self.decode(item) for key, item in value.items()}
        return value

    def _message(self, value: dict[str, Any]) -> Message:
        name, version = value[_NAME], str(value.get(_VERSION))
        cls = self._types.get(name)
        if cls is None:
            raise errors.Unsupported(f"Message {name} {version} is not known here: upgrade this service before its peers.")
        if version.partition(".")[0] != cls.VERSION.partition(".")[0]:
            raise errors.Unsupported(f"Message {name} came in version {version}, but this service speaks {cls.VERSION}.")
        try:
            return typed.convert(value.get(_FIELDS), cls)
        except msgspec.ValidationError as error:
            raise errors.Unsupported(f"Message {name} {version} cannot be read as {cls.VERSION}: {error}.") from None
