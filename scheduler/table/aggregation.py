"""What the aggregates of a host say of it together."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from objects.aggregate import Aggregate
from objects.stats import MAX_EXACT_FLOAT
from scheduler.table.arrays import Floats

RATIOS = {"vcpus": "cpu_allocation_ratio", "memory_mb": "ram_allocation_ratio", "disk_gb": "disk_allocation_ratio"}
"""Keys that lower what the hosts of an aggregate may hold."""

LOG = logging.getLogger(__name__)


class Aggregation:
    """The metadata of one combination of aggregates. Hosts share these: a fleet has few combinations.

    ``values`` are the texts by key, one from each aggregate that has the key; ``words`` their parts between commas.
    """

    def __init__(self, aggregates: Iterable[Aggregate] = ()) -> None:
        values: defaultdict[str, set[str]] = defaultdict(set)
        for aggregate in aggregates:
            for key, value in aggregate.metadata.items():
                values[key].add(value)
        self.values = {key: frozenset(texts) for key, texts in values.items()}
        self.words = {key: frozenset(word.strip() for text in texts for word in text.split(",")) for key, texts in values.items()}

    def lists(self, prefix: str, word: str) -> bool:
        """Whether a key that begins with ``prefix`` has the word among its parts."""
        return any(word in words for key, words in self.words.items() if key.startswith(prefix))

    def least(self, key: str) -> float:
        """The smallest of the values that are numbers; not-a-number where there is none."""
        numbers: list[float] = []
        for text in self.values.get(key, ()):
            number = _number(text)
            if abs(number) <= MAX_EXACT_FLOAT:
                numbers.append(number)
            else:
                LOG.warning("aggregates: %s = %r is not a number: the configured value holds", key, text[:80])
        return min(numbers, default=math.nan)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class Aggregates:
    """All combinations of aggregates that hosts are in, numbered; the first of them is none at all.

    ``single``: each aggregate by itself, those without hosts too. ``keys``: of all metadata that hosts have. ``lowering``: whether
    some lower what hosts may hold.
    """

    def __init__(self, aggregates: Iterable[Aggregate] = ()) -> None:
        of_host: defaultdict[str, list[int]] = defaultdict(list)
        known = list(aggregates)
        self.single = [Aggregation([one]) for one in known]
        for number, aggregate in enumerate(known):
            for host in aggregate.hosts:
                of_host[host].append(number)
        places: dict[tuple[int, ...], int] = {(): 0}
        self._of = {host: places.setdefault(tuple(numbers), len(places)) for host, numbers in of_host.items()}
        self.combinations = [Aggregation(known[number] for number in numbers) for numbers in places]
        self.keys = frozenset(key for one in self.combinations for key in one.values)
        self.lowering = not self.keys.isdisjoint(RATIOS.values())
        self._least: dict[str, Floats] = {}

    def of(self, host: str) -> int:
        """The number of the combination that the host is in."""
        return self._of.get(host, 0)

    def least(self, key: str, default: float) -> Floats:
        """For each combination the smallest of its values for ``key``, ``default`` where it has none."""
        if key not in self._least:
            self._least[key] = np.array([one.least(key) for one in self.combinations])
        least = self._least[key]
        found: Floats = np.where(np.isnan(least), default, least)
        return found
