"""What a command prints, made safe for a terminal: names and texts of others may hold escape sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO, cast

from objects import text


class EscapingStream:
    """A text stream that writes control characters, tabs and newlines excepted, as escapes."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, words: str) -> int:
        return self.inner.write(text.escape_controls(words))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def escape_stream(stream: TextIO) -> TextIO:
    """The stream, with an ``EscapingStream`` around it."""
    return cast("TextIO", EscapingStream(stream))


def inner_stream(stream: Any) -> TextIO:
    """The stream inside an ``EscapingStream``; another stream as it is."""
    unwrapped: TextIO = stream.inner if isinstance(stream, EscapingStream) else stream
    return unwrapped
