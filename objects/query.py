"""The hint ``query``: a condition on hosts as JSON, ``["and", [">=", "$free_ram_mb", 4096], ["=", "$hypervisor_type",
"kvm"]]``.

Tenants write it, so it can use only the names listed here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from objects import errors, text

NUMBERS = (
    "failed_builds",
    "free_disk_mb",
    "free_ram_mb",
    "free_vcpus",
    "hypervisor_version",
    "num_instances",
    "num_io_ops",
    "total_usable_disk_gb",
    "total_usable_ram_mb",
    "vcpus_total",
    "vcpus_used",
)
TEXTS = ("hypervisor_type",)
REPORTED = "attributes."
"""Prefix of attributes that the host's driver reports; the operator configures which of them may be used."""
COMPARISONS = ("=", "<", ">", "<=", ">=", "in")
NESTING_LIMIT = 10


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the host. ``reported``: by its driver."""

    name: str
    reported: bool = False


Operand = Attribute | float | str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares the first operand with each of the others; all comparisons must hold. ``in``: it must equal one of them."""

    operator: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """``and`` or ``or`` of several conditions, or ``not`` of a single one."""

    operator: str
    parts: tuple[Condition, ...]


Condition = Comparison | Combination


def parse(given: str) -> Condition:
    """Raises Invalid for an invalid condition; the message begins with ``query:``."""
    try:
        return _condition(json.loads(given), NESTING_LIMIT)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply to be parsed or quoted
        raise _invalid(f"{given[:80]!r} is not JSON") from None


def _condition(given: Any, depth: int) -> Condition:
    if not isinstance(given, list) or not given or not isinstance(given[0], str):
        raise _invalid(f"{_shown(given)} is not a list that begins with an operator")
    operator, *rest = given
    if not depth:
        raise _invalid(f"is nested more than {NESTING_LIMIT} deep")
    if operator in ("and", "or", "not"):
        if not rest or (operator == "not" and len(rest) > 1):
            raise _invalid(f"{operator!r} takes {'one condition' if operator == 'not' else 'conditions'}, in {_shown(given)}")
        return Combination(operator, tuple(_condition(each, depth - 1) for each in rest))
    if operator in COMPARISONS:
        if len(rest) < 2:
            raise _invalid(f"{operator!r} takes two operands or more, in {_shown(given)}")
        return Comparison(operator, tuple(_operand(each) for each in rest))
    raise _invalid(f"there is no operator {operator[:80]!r}; choose from {', '.join((*COMPARISONS, 'and', 'or', 'not'))}")


def _operand(given: Any) -> Operand:
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise _invalid(f"{_shown(given)} is neither a number nor a text")
    if not isinstance(given, str):
        try:
            return float(given)
        except OverflowError:
            raise _invalid(f"{_shown(given)} is too large a number") from None
    if not text.is_safe(given):
        raise _invalid(f"{_shown(given)} has a control character")
    if not given.startswith("$"):
        return given
    name = given[1:]
    if name.startswith(REPORTED) and name != REPORTED:
        return Attribute(name.removeprefix(REPORTED), reported=True)
    if name not in (*NUMBERS, *TEXTS):
        raise _invalid(f"there is no {given[:80]!r}; choose from {', '.join(f'${known}' for known in (*NUMBERS, *TEXTS))}")
    return Attribute(name)


def _shown(given: Any) -> str:
    return json.dumps(given)[:80]


def _invalid(reason: str) -> errors.Invalid:
    return errors.Invalid(f"query: {reason}")
