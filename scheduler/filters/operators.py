"""The operators of extra specs, such as ``>= 4``, ``s== x86``, ``<or> a <or> b``, with exactly Nova's semantics."""

from __future__ import annotations

from collections.abc import Callable

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": lambda have, want: have >= want,  # sic: in Nova a single equals sign means "at least"
    "==": lambda have, want: have == want,
    "!=": lambda have, want: have != want,
    ">=": lambda have, want: have >= want,
    "<=": lambda have, want: have <= want,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "s==": lambda have, want: have == want,
    "s!=": lambda have, want: have != want,
    "s<": lambda have, want: have < want,
    "s<=": lambda have, want: have <= want,
    "s>": lambda have, want: have > want,
    "s>=": lambda have, want: have >= want,
    "<in>": lambda have, want: want in have,  # part of the text
}


def matches_spec(have: str, expected: str) -> bool:
    """Whether a host's value matches an extra spec. Without an operator the two must be equal.

    An operator without an operand does not match, nor does a numeric comparison with a value that is no number.
    """
    operator, *operands = expected.split() or [""]
    if operator == "<or>":
        return have in operands[::2]
    if operator == "<all-in>":
        return bool(operands) and all(operand in have for operand in operands)
    if operator in _NUMBERS:
        return bool(operands) and _compare_numbers(_NUMBERS[operator], have, operands[0])
    if operator in _TEXTS:
        return bool(operands) and _TEXTS[operator](have, operands[0])
    return have == expected


def _compare_numbers(holds: Callable[[float, float], bool], have: str, want: str) -> bool:
    try:
        return holds(float(have), float(want))
    except ValueError:
        return False
