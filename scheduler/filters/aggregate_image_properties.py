"""AggregateImagePropertiesIsolation: reserves aggregates for images with certain properties."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class AggregateImagePropertiesIsolation(Filter):
    """If an aggregate and the image both have a property, the aggregate's comma-separated values must contain the image's."""

    reason = "kept for images with other properties"
    on_demand = True
    applies_when = ("image",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        properties = request.spec.image.properties if request.spec.image else {}
        namespace = self.settings.aggregate_image_properties_isolation_namespace
        prefix = f"{namespace}." if namespace else ""
        keys = hosts.table.aggregates.keys
        bearing = [key for key, value in properties.items() if value and key.startswith(prefix) and key in keys]
        if not bearing:
            return None
        return hosts.aggregated(
            self.name, lambda some: all(properties[key] in some.words.get(key, (properties[key],)) for key in bearing)
        )
