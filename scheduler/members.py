"""Where the members of one server group are, or are about to be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from objects.inventory import Slot


class Members:
    """Counts of a group's members per host, those held for retries apart. Host names are compared without case.

    ``leaving``: members whose old places do not count, because they are being placed anew.
    """

    def __init__(self, slots: Iterable[Slot] = (), leaving: Collection[str] = ()) -> None:
        self.real: Counter[str] = Counter()
        self.held: defaultdict[str, list[Slot]] = defaultdict(list)
        for slot in slots:
            if slot.instance_uuid in leaving:
                continue
            if slot.held:
                self.held[slot.host.lower()].append(slot)
            else:
                self.real[slot.host.lower()] += 1

    def copy(self) -> Members:
        other = Members()
        other.real = self.real.copy()
        other.held = defaultdict(list, {host: list(slots) for host, slots in self.held.items()})
        return other

    def counts(self, *, with_held: bool) -> dict[str, int]:
        """Members per host (lower case), as far as there are any."""
        counts = dict(self.real)
        if with_held:
            for host, slots in self.held.items():
                counts[host] = counts.get(host, 0) + len(slots)
        return counts

    def add(self, host: str) -> None:
        self.real[host.lower()] += 1

    def restore(self, other: Members) -> None:
        """Be as ``other`` again, a copy made before."""
        self.real, self.held = other.real, other.held

    def hold(self, slot: Slot) -> None:
        self.held[slot.host.lower()].append(slot)

    def evict(self, host: str, most: int) -> tuple[Slot, ...]:
        """Give up held slots on ``host`` until no more than ``most`` places are taken there; return them."""
        held = self.held.get(host.lower(), [])
        surplus = max(0, self.real[host.lower()] + len(held) - most)
        evicted, self.held[host.lower()] = held[:surplus], held[surplus:]
        return tuple(evicted)

    @property
    def any_held(self) -> bool:
        return any(self.held.values())
