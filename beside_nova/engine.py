"""What this room uses of the scheduler: the one module that names its parts."""

from __future__ import annotations

from db.api.claims.displaced import ClaimedBody, DisplacedServers
from db.api.operations.movable import MovableServers
from scheduler.engine import capacity
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.engine import narrow_hosts
from scheduler.engine.job import Job, PlanContext, Remedies, checked_job
from scheduler.engine.survey import Survey
from scheduler.engine.surveying import survey
from scheduler.explain.largest_flavor import by_size
from scheduler.explain.remedies import find_remedies
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import Members
from scheduler.framework.settings import SchedulerSettings
from scheduler.plugins import load_driver
from scheduler.table.host_table import HostTable, ServiceReports
from scheduler.what_if import failure_simulation, rebalance

__all__ = [
    "ClaimedBody",
    "DisplacedServers",
    "Filter",
    "HostTable",
    "Hosts",
    "Job",
    "Mask",
    "Members",
    "MovableServers",
    "PlanContext",
    "Remedies",
    "Request",
    "SchedulerDriver",
    "SchedulerSettings",
    "ServiceReports",
    "Survey",
    "by_size",
    "capacity",
    "checked_job",
    "failure_simulation",
    "find_remedies",
    "load_driver",
    "narrow_hosts",
    "rebalance",
    "survey",
]
