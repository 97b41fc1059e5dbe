"""TraitsFilter: passes hosts with all required traits and none of the forbidden ones."""

from __future__ import annotations

from typing import Any

from objects.extra_specs import FORBIDDEN, REQUIRED, TRAIT, Specs
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class TraitsFilter(Filter):
    """The flavor's extra specs give ``trait:NAME`` = ``required`` or ``forbidden``, the image's properties only ``required``. A
    host's traits are in its attribute ``traits``, a list of names."""

    reason = "without a trait that is required, or with one that is forbidden"
    on_demand = True
    applies_when = ("flavor.extra_specs", "image")
    reads = ("extra_specs", "image")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        image = request.spec.image.properties if request.spec.image else {}
        if not image and not request.spec.flavor.extra_specs:
            return None
        extra = request.spec.flavor.extra_specs
        required = _traits_required_as(extra, REQUIRED) | _traits_required_as(image, REQUIRED)
        forbidden = _traits_required_as(extra, FORBIDDEN)
        if not required and not forbidden:
            return None

        def traits_suit(traits: Any) -> bool:
            have = {name for name in traits if isinstance(name, str)} if isinstance(traits, list) else set()
            return required <= have and not forbidden & have

        return hosts.attribute_passes("traits", self.name, traits_suit)


def _traits_required_as(specs: Specs, how: str) -> set[str]:
    return {key.removeprefix(TRAIT) for key, value in specs.items() if key.startswith(TRAIT) and value == how}
