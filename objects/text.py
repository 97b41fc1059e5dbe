"""Validate text from outside: all names and free text from requests, messages, drivers and databases pass through this module.

Databases and codecs refuse different texts: PostgreSQL a NUL, msgspec a lone surrogate, MariaDB's TEXT more than 64 KiB. All of
them can store a value that passes here, so no later step can fail because of its content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from objects import errors

NAME_LENGTH = 255
"""Maximum characters of a name, as in its database column."""

FAULT_SIZE = 4096
"""Bytes of UTF-8 that the failure message of one attempt may have."""

FAULTS_SIZE = 16384
"""Bytes of UTF-8 that the fault of an instance, which describes all its attempts, may have."""

NESTING_LIMIT = 16
"""Maximum levels of lists and dicts in data that a driver reports."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_CUT = "..."
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a terminal's cursor, end a line, change the order of characters, or cannot be encoded."""
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,255}", re.ASCII)


def is_safe(text: str) -> bool:
    """Whether the text has no control character but tab, newline and carriage return, and no lone surrogate."""
    return (text.isascii() and text.isprintable()) or _UNSAFE.search(text) is None


def clean_text(text: str, size: int) -> str:
    """The text with unsafe characters replaced, cut to at most ``size`` bytes of UTF-8. It never raises.

    For text that must be kept even if it is invalid: error messages of drivers, libraries and other processes.
    """
    if not is_safe(text):
        text = _UNSAFE.sub(REPLACEMENT, text)
    if len(text) * 4 <= size:
        return text
    encoded = text.encode()
    if len(encoded) <= size:
        return text
    return encoded[: max(0, size - len(_CUT))].decode(errors="ignore") + _CUT[:size]


def one_line(text: str, size: int) -> str:
    """The result of ``clean_text`` on one line."""
    return " ".join(clean_text(text, size).split())


def escape_controls(text: str) -> str:
    """The text for a terminal or a log: control characters but tab and newline, and surrogates, as ``\\u001b``."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean_json(value: Any, size: int, nesting: int = NESTING_LIMIT) -> Any:
    """Plain JSON data with every text and key cleaned and cut to ``size`` bytes.

    Raises errors.Invalid for data nested deeper than ``nesting`` levels, and for values that JSON cannot represent.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clean_text(str(value), size)
    if not nesting:
        raise errors.Invalid(f"is nested deeper than {NESTING_LIMIT} levels")
    if isinstance(value, list | tuple):
        return [clean_json(item, size, nesting - 1) for item in value]
    if isinstance(value, dict):
        return {clean_text(str(key), size): clean_json(item, size, nesting - 1) for key, item in value.items()}
    raise errors.Invalid(f"{type(value).__name__} is not a text, number, list or dict")


def texts_of(value: Any, nesting: int = NESTING_LIMIT) -> Iterator[str]:
    """Every text and key in plain data. Raises errors.Invalid as ``clean_json`` does."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        if not nesting:
            raise errors.Invalid(f"is nested deeper than {NESTING_LIMIT} levels")
        for item in value:
            yield from texts_of(item, nesting - 1)
        if isinstance(value, dict):
            for item in value.values():
                yield from texts_of(item, nesting - 1)
    elif value is not None and not isinstance(value, bool | int | float):
        raise errors.Invalid(f"{type(value).__name__} is not a text, number, list or dict")


def checked_name(field: str, name: object) -> str:
    """The name of a host, node or binary, of 1 to 255 letters, digits and ``. _ -``, but no dot segment of a path.

    Raises errors.Invalid with ``field`` for any other value. Other names could be different in one database and equal in another,
    or write control characters to the terminal of the person who lists them.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise errors.Invalid(
            f"{field} {clean_text(repr(name), 100)}: a name has 1 to 255 letters, digits and . _ -, and is not . or .."
        )
    return name


def is_zone(name: str) -> bool:
    """Whether an availability zone can have this name: printable, 1 to 255 characters, no outer whitespace, no colon."""
    return 0 < len(name) <= NAME_LENGTH and name.isprintable() and name == name.strip() and ":" not in name


_FILE_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")


def file_name(name: str) -> str:
    """A file name for this name. One that is not plain is hashed: it must not lead to another folder."""
    return name if _FILE_NAME.fullmatch(name) else hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


def hostname_of(name: str, uuid: str) -> str:
    """The name of a server as a DNS label."""
    label = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:63].rstrip("-")
    return label or f"server-{uuid}"
