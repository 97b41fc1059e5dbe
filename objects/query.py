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


def parse_query(query_text: str) -> Condition:
    """Raises Invalid for an invalid condition; the message begins with ``query:``."""
    try:
        return _parse_condition(json.loads(query_text), NESTING_LIMIT)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply to be parsed or quoted
        raise _invalid_query(f"{query_text[:80]!r} is not JSON") from None


def _parse_condition(parts: Any, depth: int) -> Condition:
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise _invalid_query(f"{_excerpt_of(parts)} is not a list that begins with an operator")
    operator, *rest = parts
    if not depth:
        raise _invalid_query(f"is nested more than {NESTING_LIMIT} deep")
    if operator in ("and", "or", "not"):
        if not rest or (operator == "not" and len(rest) > 1):
            raise _invalid_query(
                f"{operator!r} takes {'one condition' if operator == 'not' else 'conditions'}, in {_excerpt_of(parts)}"
            )
        return Combination(operator, tuple(_parse_condition(operand, depth - 1) for operand in rest))
    if operator in COMPARISONS:
        if len(rest) < 2:
            raise _invalid_query(f"{operator!r} takes two operands or more, in {_excerpt_of(parts)}")
        return Comparison(operator, tuple(_parse_operand(operand) for operand in rest))
    raise _invalid_query(f"there is no operator {operator[:80]!r}; choose from {', '.join((*COMPARISONS, 'and', 'or', 'not'))}")


def _parse_operand(operand: Any) -> Operand:
    if isinstance(operand, bool) or not isinstance(operand, (str, int, float)):
        raise _invalid_query(f"{_excerpt_of(operand)} is neither a number nor a text")
    if not isinstance(operand, str):
        try:
            return float(operand)
        except OverflowError:
            raise _invalid_query(f"{_excerpt_of(operand)} is too large a number") from None
    if not text.is_safe(operand):
        raise _invalid_query(f"{_excerpt_of(operand)} has a control character")
    if not operand.startswith("$"):
        return operand
    name = operand[1:]
    if name.startswith(REPORTED) and name != REPORTED:
        return Attribute(name.removeprefix(REPORTED), reported=True)
    if name not in (*NUMBERS, *TEXTS):
        raise _invalid_query(f"there is no {operand[:80]!r}; choose from {', '.join(f'${known}' for known in (*NUMBERS, *TEXTS))}")
    return Attribute(name)


def _excerpt_of(value: Any) -> str:
    return json.dumps(value)[:80]


def _invalid_query(reason: str) -> errors.Invalid:
    return errors.Invalid(f"query: {reason}")
