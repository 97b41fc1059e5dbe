"""Hide passwords in URLs and text before they are shown or logged."""

from __future__ import annotations

import re

HIDDEN = "***"

_URL = re.compile(r"//(?P<rest>.*?)(?=(?<=[,;=|'\"([{])[A-Za-z][A-Za-z0-9+.-]{0,30}://|\s|\Z)", re.DOTALL)
"""A URL in a text ends at whitespace, or where a separator precedes another URL: anything else may be part of a password."""

_ONE = r"[^:/@,]*:[^/@,]*@(?:\[[^\]@]*\]|[^/@,:]+)(?::\d+)?"
"""A user without a password, or an empty host, is more likely the end of a password that contains ``@`` and a comma."""
_REGULAR = re.compile(rf"(?P<hosts>{_ONE}(?:,{_ONE})*)[^@]*", re.DOTALL)
"""``user:password@host:port``, once or several times, without ``@`` after it: unambiguous."""
_SECRET = re.compile(r"(?P<before>(?:^|,)[^:/@,]*:)[^/@,]*(?=@)")

_BROKEN = re.compile(r"(?P<before>//[^:/@,\s]*:)(?!\d+(?:[/?#,;'\")\]}>]|\s|\Z))(?!\*\*\*@)[^@\n]{0,200}(?=@)")
"""A password with whitespace: the text in place of a port is no number and is followed by ``@``."""

_QUERY = re.compile(
    r"(?P<before>[?&;][^=&?;\s]{0,64}(?:pass|pwd|secret|token|key|cred)[^=&?;\s]{0,64}=)(?P<secret>[^&\s]+)"
    r"|(?P<word>(?<![A-Za-z0-9])(?:password|passwd|pwd)\s?=\s?)(?P<value>[^&\s,;)'\"]+)",
    re.IGNORECASE,
)


def mask_url(text: str) -> str:
    """Return ``text`` with every password in a URL replaced by ``***``.

    Covers ``user:password@`` of each host of a multi-host URL, query parameters with names like those of secrets, and
    ``password=``. If a password holds unescaped special characters, its end is uncertain. Then everything from the first colon to
    the last ``@`` is hidden.
    """
    if "@" in text:
        text = _URL.sub(lambda match: f"//{_without_passwords(match['rest'])}", text)
        text = _BROKEN.sub(lambda match: match["before"] + HIDDEN, text)
    if "=" in text and _speaks_of_secrets(text):
        text = _QUERY.sub(lambda match: (match["before"] or match["word"]) + HIDDEN, text)
    return text


def _speaks_of_secrets(text: str) -> bool:
    """Whether ``_QUERY`` can match. Ten times as fast as the search, which would otherwise run for each log line."""
    if not text.isascii():
        return True  # some non-ASCII letters match ASCII ones when case is ignored
    lower = text.lower()
    return "pass" in lower or "pwd" in lower or ("?" in text or "&" in text or ";" in text)


def _without_passwords(rest: str) -> str:
    """``rest``: the text after the two slashes."""
    colon, at = rest.find(":"), rest.rfind("@")
    if not 0 <= colon < at:
        return rest
    regular = _REGULAR.fullmatch(rest)
    if regular is None:
        return f"{rest[: colon + 1]}{HIDDEN}{rest[at:]}"
    end = regular.end("hosts")
    return _SECRET.sub(lambda match: match["before"] + HIDDEN, rest[:end]) + rest[end:]
