"""IsolatedHostsFilter: reserves certain hosts for certain images."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class IsolatedHostsFilter(Filter):
    """If no isolated hosts are configured, all hosts pass. A comment in Nova says so too, but its code refuses isolated images.
    A server without an image is not isolated. Host names are case-insensitive."""

    reason = "kept for other images"
    on_demand = True
    reads = ("image",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        s = self.settings
        if not s.isolated_hosts:
            return None
        isolated = request.spec.image is not None and request.spec.image.id in s.isolated_images
        if not isolated and not s.restrict_isolated_hosts_to_isolated_images:
            return None
        is_isolated_host = hosts.bear_name(s.isolated_hosts)
        return is_isolated_host if isolated else ~is_isolated_host
