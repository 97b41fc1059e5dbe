"""Weighers by load: builds under way, instances, and recent failed builds of a host."""

from __future__ import annotations

import numpy as np

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Floats
from scheduler.framework.hosts import Hosts
from scheduler.framework.weigher import Weigher


class IoOpsWeigher(Weigher):
    """Counts the builds under way on a host. The default multiplier is negative and prefers fewer."""

    least = 0.0
    option = "io_ops_weight_multiplier"
    reads = ()

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.io_ops.astype(np.float64)


class NumInstancesWeigher(Weigher):
    """Counts the instances claimed on a host. A negative multiplier prefers fewer."""

    option = "num_instances_weight_multiplier"
    reads = ()

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.instance_counts.astype(np.float64)


class BuildFailureWeigher(Weigher):
    """Ranks hosts last on which builds have failed lately through the host's own fault.

    The agent reports the count as a whole number and lets it decay, so that a repaired host is used again.
    """

    least = 0.0
    option = "build_failure_weight_multiplier"
    reads = ()

    @property
    def weight_multiplier(self) -> float:
        return -self.settings.build_failure_weight_multiplier

    def host_multipliers(self, hosts: Hosts) -> Floats | float:
        return -hosts.least_of_aggregates(self.option, self.settings.build_failure_weight_multiplier)

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        failed = hosts.failed_builds
        return failed if hosts.table.failing and failed.size and failed[failed.argmax()] > 0.0 else None
