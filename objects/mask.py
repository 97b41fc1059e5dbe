"""Hide passwords in URLs and text before they are shown or logged."""

from __future__ import annotations

import re

_USERINFO = re.compile(r"(?P<before>[/,][^/@,\s:]*:)(?P<secret>[^/@,\s]+)(?=@)")
_QUERY = re.compile(r"(?P<before>[?&][^=&\s]*(?:password|passwd|secret|token|key)[^=&\s]*=)(?P<secret>[^&\s]+)", re.IGNORECASE)


def mask_url(text: str) -> str:
    """Return ``text`` with every password in a URL replaced by ``***``.

    Covers ``user:password@`` of each host of a multi-host URL and query parameters whose name speaks of a secret. A password that
    holds an unescaped ``@``, ``/`` or ``,`` makes an invalid URL and is masked up to that character only where it can be told.
    """
    masked = _USERINFO.sub(lambda m: m["before"] + "***", text)
    return _QUERY.sub(lambda m: m["before"] + "***", masked)
