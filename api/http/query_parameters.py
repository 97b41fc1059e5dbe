"""Parameters of query strings: whole numbers, and the refusal of unknown names."""

from __future__ import annotations

from collections.abc import Collection

import falcon

from api.http.call import Call
from api.http.microversions import Microversion
from objects import errors
from objects.base import INT32_MAX

_MAX_DIGITS = len(str(INT32_MAX))


def whole_number(name: str, text: str) -> int:
    """The value of the parameter ``name``; INT32_MAX if it is larger. Raises errors.Invalid for anything else.

    Python converts at most 4,300 digits, in time that grows with their square.
    """
    if not (text.isascii() and text.isdigit()):
        raise errors.Invalid(f"{name}: {text[:40]!r} is not a whole number of 0 or more")
    digits = text.lstrip("0")
    return min(int(digits or "0"), INT32_MAX) if len(digits) <= _MAX_DIGITS else INT32_MAX


def refuse_unknown_names(req: falcon.Request, call: Call, known: Collection[str]) -> None:
    """Raises errors.Invalid for a parameter that is not ``known``, in versions that refuse those."""
    for name in req.params:
        if name not in known and call.has_feature(Microversion.QUERY_CHECKED):
            raise errors.Invalid(f"{name[:40]}: is not a parameter that can be given here")
