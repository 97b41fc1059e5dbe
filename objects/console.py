"""The console output of a guest: how much of it is read, and what of it is passed on. Whoever runs the guest writes it."""

from __future__ import annotations

import re

CONSOLE_BYTES = 100 * 1024
"""Maximum bytes of a console log that are read: the last ones. The answer has at most as many characters."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What the Compute API leaves out, and the other characters that control a terminal or cannot be encoded."""


def readable(output: str, lines: int | None = None) -> str:
    """The end of the output without control characters other than tab and newline. ``lines``: how many, None for all."""
    text = _CONTROL.sub("", output[-CONSOLE_BYTES:])
    if lines is None:
        return text
    end = "\n" if text.endswith("\n") else ""
    wanted = text.removesuffix("\n").split("\n")[-lines:] if lines else []
    return "\n".join(wanted) + end if wanted else ""
