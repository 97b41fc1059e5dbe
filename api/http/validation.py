"""Validate a request body against its schema; an error says in one sentence which field is wrong and why."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import falcon
import jsonschema
import msgspec

from api.http.microversions import Version
from objects import errors, text
from objects.quota import UNLIMITED

_Handler = TypeVar("_Handler", bound=Callable[..., None])

COMPUTE_MEDIA_TYPE = "application/vnd.openstack.compute+json"
"""Another name for JSON: clients may send it, and get it if they prefer it."""

_SECRET = frozenset({"user_data", "metadata", "adminPass", "personality"})
"""Fields whose value is not repeated in a message."""

UNSAFE = "has a control character; only tab, newline and carriage return are allowed"
"""The message for a text that ``text.is_safe`` refuses."""

NOT_SERVED = {
    "personality": "files are taken by a boot up to version 2.56; user_data of a boot serves instead",
    "block_device_mapping": "volumes and snapshots are not served; give block_device_mapping_v2 with images and blank disks",
}
"""Fields of the Compute API that are refused, with the reason."""

_QUOTED_LENGTH = 80
"""Maximum number of characters of an invalid value that a message quotes."""


def read_body(req: falcon.Request, limit: int) -> dict[str, Any]:
    """The body as JSON. Raises errors.Invalid, or falcon's errors for a body too large or of another media type."""
    # Required, not guessed: a web page can make a browser post anything to this machine, except with these media types.
    kind = (req.content_type or "").split(";")[0].strip().lower()
    if kind not in (falcon.MEDIA_JSON, COMPUTE_MEDIA_TYPE):
        raise falcon.HTTPUnsupportedMediaType(description=f"Content-Type: {kind[:40]!r} is not application/json")
    raw = req.bounded_stream.read(limit + 1)
    if len(raw) > limit:
        raise falcon.HTTPContentTooLarge(description=f"The body is larger than {limit} bytes.")
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise errors.Invalid(f"The body is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise errors.Invalid("The body is not JSON: it is not UTF-8 text") from error
    except RecursionError as error:
        raise errors.Invalid("The body is not JSON that can be read: it is nested too deeply") from error
    if not isinstance(body, dict):
        raise errors.Invalid("The body must be a JSON object.")
    return body


VALIDATED = "validated_by"
"""The attribute of a handler that names the validators of its body."""


def validated_by(*names: str) -> Callable[[_Handler], _Handler]:
    """Say which attributes of its resource validate the body of a handler: the API's description has their schemas."""

    def mark_handler(handler: _Handler) -> _Handler:
        setattr(handler, VALIDATED, names)
        return handler

    return mark_handler


class Validator:
    """One schema. Thread-safe."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        validator = jsonschema.Draft202012Validator(schema, format_checker=_format_checker())
        self.list_errors: Callable[[Any], Iterator[jsonschema.ValidationError]] = validator.iter_errors
        """Everything in which a body does not fit the schema."""

    def schema(self, version: Version) -> dict[str, Any]:
        """The schema, which is the same in all versions."""
        return self._schema

    def check_body(self, body: Any) -> None:
        """Raises errors.Invalid, naming the first field that is wrong."""
        check_texts(body)
        error = next(self.list_errors(body), None)
        if error is not None:
            raise errors.Invalid(_error_sentence(error))


class VersionedValidator:
    """The schemas of one body by microversion. Thread-safe."""

    def __init__(self, versions: Iterable[tuple[Version, dict[str, Any]]]) -> None:
        """``versions``: each schema with the first microversion that has it, the oldest first; that one is of 2.1."""
        self._newest_first = [(since, Validator(schema)) for since, schema in versions][::-1]

    def schema(self, version: Version) -> dict[str, Any]:
        """The schema of this version."""
        return next(validator for since, validator in self._newest_first if since <= version).schema(version)

    def check_body(self, version: Version, body: Any) -> None:
        """Raises errors.Invalid, naming the first field that is wrong in this version."""
        next(validator for since, validator in self._newest_first if since <= version).check_body(body)


def check_texts(value: Any, path: tuple[str | int, ...] = ()) -> None:
    """Raises errors.Invalid, naming the field, for a text or key anywhere in a body that not every database can store."""
    if isinstance(value, str):
        if not text.is_safe(value):
            raise errors.Invalid(f"{_error_path(path)}: {UNSAFE}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not text.is_safe(key):
                raise errors.Invalid(f"{_error_path(path)}: the key {_quote_value(key)} {UNSAFE}")
            check_texts(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            check_texts(item, (*path, number))


def checked_metadata(metadata: dict[str, str], limit: int) -> dict[str, str]:
    """The same. Raises errors.Forbidden for more items than ``limit``, as the Compute API does for what it counts as a quota."""
    if limit != UNLIMITED and len(metadata) > limit:
        raise errors.Forbidden(f"Maximum number of metadata items exceeds {limit}")
    return metadata


def _error_sentence(error: Any) -> str:
    field_path = _error_path(error.absolute_path)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"{_join_path(field_path, missing)}: is required"
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = error.schema.get("properties", {})
        unknown = next(name for name in error.instance if name not in known)
        reason = NOT_SERVED.get(unknown, "is not a field that can be given here")
        return f"{_join_path(field_path, unknown)}: {reason}"
    if any(part in _SECRET for part in error.absolute_path):
        return f"{field_path}: is not valid ({error.validator} {_quote_value(error.validator_value)})"
    return f"{field_path}: {_error_reason(error)}"


def _error_reason(error: Any) -> str:
    value, rule = error.instance, error.validator_value
    match error.validator:
        case "type" if rule == "null":
            return "is not served; only null can be given"
        case "type":
            kinds = rule if isinstance(rule, str) else " or ".join(rule)
            return f"{_quote_value(value)} is not of type {kinds}"
        case "enum":
            return f"{_quote_value(value)} is not one of {', '.join(str(choice) for choice in rule)}"
        case "format":
            return f"{_quote_value(value)} is not a valid {rule.replace('-', ' ')}"
        case "maxLength" | "maxItems":
            return f"is too long, {rule} is the most"
        case "minLength" | "minItems":
            return "must not be empty"
        case _:
            return f"{_quote_value(value)} does not fit ({error.validator} {rule})"


def _error_path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        path = f"{path}[{part}]" if isinstance(part, int) else _join_path(path, part)
    return path or "body"


def _join_path(parent: str, name: str) -> str:
    return f"{parent}.{name[:_QUOTED_LENGTH]}" if parent and parent != "body" else name[:_QUOTED_LENGTH]


def _quote_value(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _QUOTED_LENGTH else shown[:_QUOTED_LENGTH] + "..."


def canonical_ipv6(address: str) -> str:
    """The one form of an address (RFC 5952), of several that are valid; nothing for nothing."""
    return str(ipaddress.IPv6Address(address)) if address else ""


def _format_checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    for name, test in (
        ("uuid", is_uuid),
        ("uuid-or-empty", lambda value: value == "" or is_uuid(value)),
        ("base64", _is_base64),
        ("ip-address", _is_address),
        ("ipv4-or-empty", lambda value: value == "" or _is_address(value, 4)),
        ("ipv6-or-empty", lambda value: value == "" or _is_address(value, 6)),
        ("name", _is_name),
        ("printable", _is_printable),
    ):
        checker.checks(name)(test)
    return checker


def is_uuid(value: object) -> bool:
    """A uuid in its usual form, or one without dashes. Values that are not strings pass: the type check handles them."""
    if not isinstance(value, str):
        return True
    try:
        return str(uuid.UUID(value)).replace("-", "") == value.lower().replace("-", "")
    except ValueError:
        return False


def _is_base64(value: object) -> bool:
    if not isinstance(value, str):
        return True
    try:
        base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_address(value: object, version: int | None = None) -> bool:
    if not isinstance(value, str):
        return True
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    return version in (None, address.version) and "%" not in value


def _is_printable(value: object) -> bool:
    return not isinstance(value, str) or all(c.isprintable() or c in "\t\r\n" for c in value)


def _is_name(value: object) -> bool:
    """Printable, not blank, and without leading or trailing whitespace."""
    return not isinstance(value, str) or (value.isprintable() and value == value.strip())
