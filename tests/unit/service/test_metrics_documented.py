"""Each metric follows the conventions, is documented with its labels and unit, and the dashboard names no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.metrics import MetricWrapperBase

from service import metrics

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "monitoring.md"
DASHBOARD = ROOT / "etc" / "grafana" / "superconductor.json"

_ROW = re.compile(r"^\| `(superconductor_\w+)` \|([^|]*)\|([^|]+)\|([^|]+)\|([^|]+)\|$", re.MULTILINE)
_NAME = re.compile(r"\bsuperconductor_[a-z_]+")
_SUFFIXES = ("_bucket", "_count", "_sum")


Metric = MetricWrapperBase | metrics.ReadGauge


def collectors() -> dict[str, Metric]:
    """Our metrics by name."""
    found = [thing for thing in vars(metrics).values() if isinstance(thing, Metric)]
    return {name_of(collector): collector for collector in found}


def name_of(collector: Metric) -> str:
    (family,) = collector.describe()
    suffix = "_total" if isinstance(collector, prometheus_client.Counter) else ""
    return f"{family.name}{suffix}"


def labels_of(collector: Metric) -> tuple[str, ...]:
    if isinstance(collector, metrics.ReadGauge):
        return collector.labels
    return tuple(collector._labelnames)


@pytest.mark.parametrize("name", sorted(collectors()))
def test_names_follow_the_conventions(name: str) -> None:
    collector = collectors()[name]
    assert re.fullmatch(r"superconductor(_[a-z]+)+", name)
    assert name.endswith("_total") == isinstance(collector, prometheus_client.Counter)
    if isinstance(collector, prometheus_client.Histogram):
        assert name.endswith("_seconds")
    assert not re.search(r"_(ms|mb|gb|minutes|percent)(_|$)", name)


def test_the_document_lists_metrics_with_labels_and_units() -> None:
    rows = {row[1]: row for row in _ROW.finditer(DOCUMENT.read_text())}
    found = collectors()
    assert sorted(rows) == sorted(found)
    for name, row in rows.items():
        assert tuple(re.findall(r"`(\w+)`", row[2])) == labels_of(found[name]), name
        assert row[3].strip().startswith("seconds") == name.endswith("_seconds"), name
        assert ("histogram" in row[3]) == isinstance(found[name], prometheus_client.Histogram), name


def test_the_document_lists_each_stage() -> None:
    assert (
        tuple(re.findall(r"^\| `(?!stage` \| From)([a-z_]+)` \|[^|]*\|[^|]+\|[^|]+\|$", DOCUMENT.read_text(), re.MULTILINE))
        == metrics.STAGES
    )


def test_metrics_in_the_document_and_dashboard_exist() -> None:
    known = set(collectors())
    known |= {
        f"{name}{suffix}"
        for name, one in collectors().items()
        if isinstance(one, prometheus_client.Histogram)
        for suffix in _SUFFIXES
    }
    for path in (DOCUMENT, DASHBOARD):
        assert set(_NAME.findall(path.read_text())) <= known, path


def test_the_dashboard_panels_use_existing_sources_and_labels() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert panels
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    known = {"le", "instance", "job", "role", "stage"} | {label for one in collectors().values() for label in labels_of(one)}
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            labels = {label.strip() for group in grouped for label in group.split(",")} - {""}
            labels |= set(re.findall(r"(\w+)(?:=~?|!=|!~)\"", target["expr"]))
            assert labels <= known, target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))) <= labels, target["expr"]
