"""Arguments and answers by their types: the annotations of an endpoint's methods say what each must be.

On the wire a message stands as ``{"$message": "Report", "version": "1.2", "fields": {...}}`` wherever an annotation names its class
(see ``rpc.codec``). Types here are those that endpoints use: plain ones, messages, and sequences, dicts and options of them.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Hashable
from typing import Annotated, Any, cast

import msgspec

from objects import errors, typed
from objects.base import Message
from objects.text import one_line
from rpc.codec import Codec, Wrapped, shared_codec

ITEMS_LIMIT = 10_000
"""Maximum number of items of a sequence among the arguments."""

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,255}\Z")]
"""The name of a host or binary: see ``objects.text.checked_name``."""

Id = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,255}\Z")]
"""An id of ours: ASCII, printable, without blanks."""

Ids = Annotated[collections.abc.Sequence[Id], msgspec.Meta(max_length=ITEMS_LIMIT)]

_Unwrap = Callable[[Any], Any]
_SEQUENCES = (list, tuple, collections.abc.Sequence)


class Shape:
    """How values of a type are read off the wire."""

    def __init__(self, kind: Any, codec: Codec) -> None:
        self.wire, self.unwrap = _make_shape(kind, codec)

    def read(self, text: msgspec.Raw | bytes) -> Any:
        """Raises msgspec.DecodeError, RecursionError or ValueError for what is no such value.

        Raises errors.Unsupported for messages that are not known here.
        """
        value = typed.decode_json(text, self.wire)
        return value if self.unwrap is None else self.unwrap(value)


class Signature:
    """What a method may be called with, by name."""

    def __init__(self, name: str, method: Callable[..., object], codec: Codec) -> None:
        """``method``: unbound; its first parameters are the object and the request context."""
        self._name = name
        hints = _type_hints(method)
        parameters = list(inspect.signature(method).parameters.values())[2:]
        shapes = {parameter.name: Shape(hints.get(parameter.name, object), codec) for parameter in parameters}
        self._unwraps = [(name, shape.unwrap) for name, shape in shapes.items()]
        fields = [
            (parameter.name, shapes[parameter.name].wire)
            if parameter.default is inspect.Parameter.empty
            else (parameter.name, shapes[parameter.name].wire | msgspec.UnsetType, msgspec.UNSET)
            for parameter in parameters
        ]
        self._struct: Any = msgspec.defstruct(f"Arguments of {name}", fields, forbid_unknown_fields=True, kw_only=True)

    def read(self, text: msgspec.Raw | bytes) -> dict[str, Any]:
        """The arguments that a caller gives, as JSON.

        Raises errors.Invalid, and errors.Unsupported for what a newer peer may know.
        """
        try:
            arguments = typed.decode_json(text, self._struct)
        except msgspec.ValidationError as error:
            raise self._refusal_of(error) from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise errors.Invalid(f"The arguments of {self._name} cannot be read: {_error_line(error)}.") from None
        return {
            name: value if unwrap is None else unwrap(value)
            for name, unwrap in self._unwraps
            if (value := getattr(arguments, name)) is not msgspec.UNSET
        }

    def _refusal_of(self, error: msgspec.ValidationError) -> errors.SuperconductorError:
        text = f"The arguments of {self._name} cannot be used: {_error_line(error)}."
        return errors.Unsupported(text) if "unknown field" in text else errors.Invalid(text)


def signatures_of(kind: type) -> dict[str, Signature]:
    """Those of the public methods of a class, made once."""
    return _read_signatures(cast(Hashable, kind))


def argument_shape(kind: type) -> Shape:
    """The shape of a type, made once."""
    return _shape_of(cast(Hashable, kind))


@functools.cache
def _read_signatures(kind: Any) -> dict[str, Signature]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: Signature(name, method, shared_codec()) for name, method in methods if not name.startswith("_")}


@functools.cache
def _shape_of(kind: Any) -> Shape:
    return Shape(kind, shared_codec())


def _make_shape(kind: Any, codec: Codec) -> tuple[Any, _Unwrap | None]:
    """What a value of ``kind`` is decoded into, and what becomes of that; None: nothing."""
    if kind is object or kind is Any:
        return Any, codec.decode_value
    if isinstance(kind, type) and issubclass(kind, Message):
        return Wrapped, functools.partial(codec.unwrap_message, kind)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        wire, unwrap = _make_shape(parts[0], codec)
        return Annotated[(wire, *parts[1:])], unwrap
    if origin in _SEQUENCES:
        wire, unwrap = _make_shape(parts[0], codec)
        return types.GenericAlias(list, (wire,)), None if unwrap is None else functools.partial(_unwrap_each, unwrap)
    if origin is dict:
        wire, unwrap = _make_shape(parts[1], codec)
        return types.GenericAlias(dict, (str, wire)), None if unwrap is None else functools.partial(_each_value, unwrap)
    if origin in (typing.Union, types.UnionType) and type(None) in parts and len(parts) == len((None, kind)):
        wire, unwrap = _make_shape(next(part for part in parts if part is not type(None)), codec)
        return wire | None, None if unwrap is None else functools.partial(_unwrap_optional, unwrap)
    return kind, None


def _unwrap_each(unwrap: _Unwrap, values: list[Any]) -> list[Any]:
    return [unwrap(value) for value in values]


def _each_value(unwrap: _Unwrap, values: dict[str, Any]) -> dict[str, Any]:
    return {name: unwrap(value) for name, value in values.items()}


def _unwrap_optional(unwrap: _Unwrap, value: Any) -> Any:
    return None if value is None else unwrap(value)


def _type_hints(method: Callable[..., object]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(method, include_extras=True)
    except NameError:  # classes defined in a function, as in tests: their values are not checked
        return {}


def _error_line(error: Exception) -> str:
    return one_line("nested too deeply" if isinstance(error, RecursionError) else str(error), 300)
