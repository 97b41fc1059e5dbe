"""Versions of the messages that releases exchange. A process's span of them stands in its service record.

A messages version stands for one version of every message (``rpc/backport.py``). Its minor number rises when any message changes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from objects import errors


class MessagesVersion(NamedTuple):
    """One version of every message."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Span(NamedTuple):
    """The messages versions that a process understands, from ``oldest`` to ``newest``."""

    oldest: MessagesVersion
    newest: MessagesVersion

    def __str__(self) -> str:
        return str(self.oldest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"

    def is_compatible_with(self, other: Span) -> bool:
        """Whether there is a version that both understand."""
        return self.oldest <= other.newest and other.oldest <= self.newest


V1_0, V1_1 = MessagesVersion(1, 0), MessagesVersion(1, 1)
KNOWN = (V1_0, V1_1)
"""Those that this release can write, the oldest first. The next release adds its own, and drops what the last one did not write."""

SPAN = Span(KNOWN[0], KNOWN[-1])
"""What this release understands."""

_VERSION = r"(\d{1,4})\.(\d{1,4})"
_SPAN = re.compile(f"{_VERSION}(?:-{_VERSION})?")


def span_of(text: str | None) -> Span:
    """The span in a service record, such as ``1.0-1.1``. Older releases recorded one version or none."""
    match = _SPAN.fullmatch(text or "")
    if match is None:
        return Span(V1_0, V1_0)
    oldest = MessagesVersion(int(match[1]), int(match[2]))
    return Span(oldest, MessagesVersion(int(match[3]), int(match[4])) if match[3] else oldest)


def version_of(text: str) -> MessagesVersion:
    """A version as operators write it. Raises errors.Invalid for one that this release cannot write."""
    version = next((known for known in KNOWN if str(known) == text), None)
    if version is None:
        raise errors.Invalid(f"{text!r} is no messages version of this release: {', '.join(map(str, KNOWN))}")
    return version


def version_for(span: Span) -> MessagesVersion:
    """What to write to a peer with this span: the newest version that both know; if there is none, the nearest to it."""
    return min(max(span.newest, SPAN.oldest), SPAN.newest)
