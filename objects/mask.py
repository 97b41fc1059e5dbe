"""Hide passwords in URLs and text before they are shown or logged."""

from __future__ import annotations

import re

HIDDEN = "***"

_URL = re.compile(r"//(?P<rest>.*?)(?=(?<=[,;=|'\"([{])[A-Za-z][A-Za-z0-9+.-]{0,30}://|\s|\Z)", re.DOTALL)
"""A URL in a text ends at a blank, or where another one is set off from it: everything else may be part of a password."""

_ONE = r"[^:/@,]*:[^/@,]*@(?:\[[^\]@]*\]|[^/@,:]+)(?::\d+)?"
"""A user without a password, or no host, is more likely the end of a password with ``@`` and a comma in it."""
_REGULAR = re.compile(rf"(?P<hosts>{_ONE}(?:,{_ONE})*)[^@]*", re.DOTALL)
"""``user:password@host:port`` once or several times, and no ``@`` after it: nothing about it is in doubt."""
_SECRET = re.compile(r"(?P<before>(?:^|,)[^:/@,]*:)[^/@,]*(?=@)")

_BROKEN = re.compile(r"(?P<before>//[^:/@,\s]*:)(?!\d+(?:[/?#,;'\")\]}>]|\s|\Z))(?!\*\*\*@)[^@\n]{0,200}(?=@)")
"""A password with a blank in it: what stands where a port would, is no number, and has an ``@`` after it."""

_QUERY = re.compile(
    r"(?P<before>[?&;][^=&?;\s]{0,64}(?:pass|pwd|secret|token|key|cred)[^=&?;\s]{0,64}=)(?P<secret>[^&\s]+)"
    r"|(?P<word>(?<![A-Za-z0-9])(?:password|passwd|pwd)\s?=\s?)(?P<value>[^&\s,;)'\"]+)",
    re.IGNORECASE,
)


def mask_url(text: str) -> str:
    """Return ``text`` with every password in a URL replaced by ``***``.

    Covers ``user:password@`` of each host of a multi-host URL, query parameters whose name speaks of a secret, and ``password=``.
    Where a password holds characters that a URL has escaped, it cannot be told for certain where it ends, and more is hidden rather
    than less: all from the first colon to the last ``@``.
    """
    if "@" in text:
        text = _URL.sub(lambda found: f"//{_without_passwords(found['rest'])}", text)
        text = _BROKEN.sub(lambda found: found["before"] + HIDDEN, text)
    if "=" in text and _speaks_of_secrets(text):
        text = _QUERY.sub(lambda found: (found["before"] or found["word"]) + HIDDEN, text)
    return text


def _speaks_of_secrets(text: str) -> bool:
    """Whether ``_QUERY`` can find anything: told in a tenth of the time that a search takes, which each line of a log costs."""
    if not text.isascii():
        return True  # letters that count as others where case does not matter
    lower = text.lower()
    return "pass" in lower or "pwd" in lower or ("?" in text or "&" in text or ";" in text)


def _without_passwords(rest: str) -> str:
    """What follows the two slashes."""
    colon, at = rest.find(":"), rest.rfind("@")
    if not 0 <= colon < at:
        return rest
    regular = _REGULAR.fullmatch(rest)
    if regular is None:
        return f"{rest[: colon + 1]}{HIDDEN}{rest[at:]}"
    end = regular.end("hosts")
    return _SECRET.sub(lambda found: found["before"] + HIDDEN, rest[:end]) + rest[end:]
