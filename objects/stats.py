"""Validate a host's stats before they are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from objects import errors, extra_specs, numa, text, typed
from objects.base import INT32_MAX
from objects.compute_node import ComputeNode

MAX_EXACT_FLOAT = 2**53
"""Above this, a float is not an exact whole number."""
ATTRIBUTES_SIZE = 65536
"""Maximum characters of all texts and keys in the attributes of one node."""
MAX_REPORT_DELAY_S = 600.0
"""Maximum seconds that a report may be delayed, in a queue or behind a call that was given up. If a report's time is further
back, its host's clock was set back."""

Name = str | tuple[str, str]
"""A host, or ``(host, node)``."""


_NUMBERS: Callable[[ComputeNode], tuple[float, ...]] = attrgetter(
    *(field.name for field in msgspec.structs.fields(ComputeNode) if field.type in (int, float))
)


def of_name(name: Name, stats_or_fields: ComputeNode | Mapping[str, Any]) -> ComputeNode:
    """The stats of the host or node of this name, from an object or from its fields.

    A host given without a node is its own node. Raises Invalid, naming host and field, for fields that are missing, of another
    type, negative, not finite or too large, and for stats of another host.
    """
    if isinstance(stats_or_fields, ComputeNode):
        stats = stats_or_fields
        if name not in (stats.host, (stats.host, stats.node)):
            raise errors.Invalid(f"The stats are those of {stats.host}, {stats.node}, not of {name}.")
    else:
        host, node = (name, name) if isinstance(name, str) else name
        try:
            stats = typed.convert_data({"host": host, "node": node} | dict(stats_or_fields), ComputeNode)
        except msgspec.ValidationError as error:
            raise errors.Invalid(f"stats of {host}, {node}: {error}") from None
        if (stats.host, stats.node) != (host, node):
            raise errors.Invalid(f"The stats are those of {stats.host}, {stats.node}, not of {name}.")
    check_stats(stats)
    return stats


def check_stats(stats: ComputeNode, *, decoded: bool = False) -> None:
    """Raise Invalid for values that no host can offer or use. ``decoded``: from JSON, so all attributes are plain data."""
    text.checked_name("stats: host", stats.host)
    text.checked_name("stats: node", stats.node)
    if (stats.attributes or stats.hypervisor_type) and not (decoded and _are_plain(stats)):
        _check_texts(stats)
    if stats.numa_nodes:
        _check_numa(stats)
    numbers = _NUMBERS(stats)
    plain = (
        min(numbers) >= 0 and max(numbers) <= MAX_EXACT_FLOAT and math.isfinite(sum(numbers))
    )  # the sum with NaN or infinity is not finite
    if stats.running_vms > INT32_MAX:  # it is stored in 32 bits, as claims are
        reason = f"running_vms is {stats.running_vms}: it must be a number from 0 to {INT32_MAX}"
        raise errors.Invalid(f"stats of {stats.host}, {stats.node}: {reason}")
    if plain and not stats.resources and not stats.resources_used:
        return  # the fast path for nearly every host: a start reads all of them
    for name, amount in _list_amounts(stats):
        if not math.isfinite(amount) or not 0 <= amount <= MAX_EXACT_FLOAT:
            raise errors.Invalid(f"stats of {stats.host}, {stats.node}: {name} is {amount}: it must be a number from 0 to 2**53")
    for name, resources in (("resources", stats.resources), ("resources_used", stats.resources_used)):
        try:
            extra_specs.check_offer(resources)
        except errors.Invalid as error:
            raise errors.Invalid(f"stats of {stats.host}, {stats.node}: {name}: {error}") from None


def clean_stats(stats: ComputeNode) -> ComputeNode:
    """The stats with the driver's texts cleaned, so that an invalid text does not block the host's stats.

    Raises Invalid for attributes that JSON cannot represent.
    """
    try:
        attributes = text.clean_json(stats.attributes, text.FAULT_SIZE)
        msgspec.json.encode(attributes)
    except (errors.Invalid, OverflowError, ValueError) as error:
        raise errors.Invalid(f"stats of {stats.host}, {stats.node}: attributes: {error}") from None
    kind = text.clean_text(stats.hypervisor_type, text.NAME_LENGTH)
    return msgspec.structs.replace(stats, attributes=attributes, hypervisor_type=kind)


def is_current(stats: ComputeNode, known: ComputeNode) -> bool:
    """Whether these stats are as new as those ``known`` of the node, or newer. Stats without a time always count as newer."""
    behind = known.reported_at - stats.reported_at
    return not stats.reported_at or not 0.0 < behind < MAX_REPORT_DELAY_S


def is_unchanged(stats: ComputeNode, known: ComputeNode) -> bool:
    """Whether the stats are equal apart from their time."""
    return stats == msgspec.structs.replace(known, reported_at=stats.reported_at)


def _check_numa(stats: ComputeNode) -> None:
    if len(stats.numa_nodes) > numa.HOST_NODES_LIMIT:
        reason = f"numa_nodes are {len(stats.numa_nodes)}: a host reports at most {numa.HOST_NODES_LIMIT}"
        raise errors.Invalid(f"stats of {stats.host}, {stats.node}: {reason}")
    for number, node in enumerate(stats.numa_nodes):
        for name, amount in (("vcpus", node.vcpus), ("memory_mb", node.memory_mb)):
            if not 0 <= amount <= INT32_MAX:
                reason = f"numa_nodes.{number}.{name} is {amount}: it must be a number from 0 to {INT32_MAX}"
                raise errors.Invalid(f"stats of {stats.host}, {stats.node}: {reason}")


def _check_texts(stats: ComputeNode) -> None:
    try:
        texts = [stats.hypervisor_type, *text.texts_of(stats.attributes)]
    except errors.Invalid as error:
        raise errors.Invalid(f"stats of {stats.host}, {stats.node}: attributes: {error}") from None
    for checked_text in texts:
        if not text.is_safe(checked_text):
            raise errors.Invalid(f"stats of {stats.host}, {stats.node}: {checked_text[:80]!r} has control characters or surrogates")
    if sum(map(len, texts)) > ATTRIBUTES_SIZE:
        raise errors.Invalid(f"stats of {stats.host}, {stats.node}: attributes have more than {ATTRIBUTES_SIZE} characters")


def _are_plain(stats: ComputeNode) -> bool:
    """Whether it is seen at once that all texts are safe and short, as nearly every host's are: a start reads all of them.

    JSON escapes control characters, and has no fewer brackets than levels.
    """
    try:
        document = msgspec.json.encode(stats.attributes).decode() + stats.hypervisor_type
    except (ValueError, OverflowError, RecursionError):  # surrogates, large numbers, levels
        return False
    is_safe = document.isascii() and document.isprintable() and "\\" not in document
    levels = document.count("{") + document.count("[")
    return is_safe and levels <= text.NESTING_LIMIT and len(document) <= ATTRIBUTES_SIZE


def _list_amounts(stats: ComputeNode) -> Iterator[tuple[str, float]]:
    """Every number in the stats, with the name of its field."""
    for name, value in msgspec.structs.asdict(stats).items():
        if isinstance(value, (int, float)):
            yield name, value
        elif isinstance(value, dict) and name != "attributes":  # attributes are the driver's own and may hold anything
            yield from ((f"{name}.{key}", amount) for key, amount in value.items())
