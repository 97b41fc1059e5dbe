"""One order that cannot be carried out costs no other one of its message."""

from __future__ import annotations

from compute import failures
from compute.builds import Builds
from compute.tracker import ResourceTracker
from compute.work_table import Entries
from objects.build import BuildOrder, ReportKind
from objects.compute_node import ComputeNode

NODE = ComputeNode(host="h1", node="h1", vcpus=4, memory_mb=4096, disk_gb=100)


def builds() -> Builds:
    return Builds(Entries("h1", "h1:a", ResourceTracker([NODE]), lambda: 1.0))


def test_an_impossible_order_is_reported_failed_once() -> None:
    made = builds()
    order = BuildOrder(instance_uuid="u1", name="u1", host="h1", node="h1", fence=1, attempt=1)
    failure = failures.classify_error(TypeError("odd limits"), 1.0)
    build = made.refuse_order(order, failure)
    assert build is not None
    report = made.report_of(build)
    assert report is not None
    assert (report.kind, report.instance_uuid, report.attempt, report.failure) == (ReportKind.FAILED, "u1", 1, failure)
    assert made.refuse_order(order, failure) is None, "it has an entry until the cell has answered"
