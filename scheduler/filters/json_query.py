"""JsonFilter: passes hosts that meet the condition in the hint ``query``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from objects import errors, hints, query
from objects.query import Attribute, Comparison, Condition, Operand
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Floats, Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts

_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "in": operator.eq,
}
_NUMBERS: dict[str, Callable[[Hosts], Any]] = {
    "failed_builds": lambda hosts: hosts.failed_builds,
    "free_disk_mb": lambda hosts: hosts.free_disk_gb * 1024,
    "free_ram_mb": lambda hosts: hosts.free_memory_mb,
    "free_vcpus": lambda hosts: hosts.free_vcpus,
    "hypervisor_version": lambda hosts: hosts.hypervisor_version,
    "num_instances": lambda hosts: hosts.instance_counts,
    "num_io_ops": lambda hosts: hosts.io_ops,
    "total_usable_disk_gb": lambda hosts: hosts.physical_amount("disk_gb"),
    "total_usable_ram_mb": lambda hosts: hosts.physical_amount("memory_mb"),
    "vcpus_total": lambda hosts: hosts.physical_amount("vcpus"),
    "vcpus_used": lambda hosts: hosts.capacity_of("vcpus") - hosts.free_room("vcpus"),
}


class JsonFilter(Filter):
    """Compares numbers with numbers and texts with texts. Other comparisons, and missing attributes, are false.

    Of the attributes that drivers report, only those in ``json_filter_attributes`` may be queried. Whether a host is up cannot be.
    """

    reason = "not what the hint query asks for"
    on_demand = True
    hint_names = (hints.QUERY,)
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        scheduler_hints = request.spec.scheduler_hints
        if hints.QUERY not in scheduler_hints:
            return None
        try:
            condition = request.remember_result(self.name, lambda: hints.query_condition(scheduler_hints))
        except errors.Invalid:  # the API refuses these
            return np.zeros(len(hosts), dtype=np.bool_)
        return None if condition is None else self._condition_mask(condition, hosts)

    def _condition_mask(self, condition: Condition, hosts: Hosts) -> Mask:
        if isinstance(condition, Comparison):
            first, *others = condition.operands
            masks = [self._compare_operands(condition.operator, first, other, hosts) for other in others]
        else:
            masks = [self._condition_mask(part, hosts) for part in condition.parts]
            if condition.operator == "not":
                return ~masks[0]
        any_will_do = condition.operator in ("or", "in")
        return reduce(np.logical_or if any_will_do else np.logical_and, masks)

    def _compare_operands(self, sign: str, one: Operand, other: Operand, hosts: Hosts) -> Mask:
        holds = _RELATIONS[sign]
        if isinstance(one, str) or isinstance(other, str) or _is_text(one) or _is_text(other):
            return self._texts_compared(sign, one, other, hosts)
        compared: Mask = holds(self._operand_numbers(one, hosts), self._operand_numbers(other, hosts))
        return compared

    def _texts_compared(self, sign: str, one: Operand, other: Operand, hosts: Hosts) -> Mask:
        holds = _RELATIONS[sign]
        if isinstance(one, str) and isinstance(other, str):
            return np.full(len(hosts), holds(one, other), dtype=np.bool_)
        if isinstance(one, Attribute) and isinstance(other, str) and self._may_ask(one):
            return hosts.attribute_passes(
                one.name, (self.name, sign, other), lambda value: isinstance(value, str) and holds(value, other)
            )
        if isinstance(one, str) and isinstance(other, Attribute) and self._may_ask(other):
            return hosts.attribute_passes(
                other.name, (self.name, "turned", sign, one), lambda value: isinstance(value, str) and holds(one, value)
            )
        return np.zeros(len(hosts), dtype=np.bool_)

    def _operand_numbers(self, operand: Operand, hosts: Hosts) -> Floats:
        """The operand as a column. NaN stands for a missing number, because comparisons with it are false."""
        if isinstance(operand, float):
            return np.full(len(hosts), operand)
        if not isinstance(operand, Attribute) or not self._may_ask(operand):
            return np.full(len(hosts), np.nan)
        if operand.reported:
            return hosts.attribute_numbers(operand.name)
        column: Floats = _NUMBERS[operand.name](hosts).astype(np.float64)
        return column

    def _may_ask(self, attribute: Attribute) -> bool:
        return not attribute.reported or attribute.name in self.settings.json_filter_attributes


def _is_text(operand: Operand) -> bool:
    return isinstance(operand, Attribute) and not operand.reported and operand.name in query.TEXTS
