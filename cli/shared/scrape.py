"""Read the metrics of processes over HTTP, and tell what happened between two looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from cli.shared.connection import FAILURES, ApiConnection
from objects.base import Object

CONNECT_AND_READ_TIMEOUT_S = (1.0, 4.0)
"""Seconds to connect, and to wait for what is read."""
PREFIX = "superconductor_"
TOP_METRICS = (
    *("stage_seconds_sum", "stage_seconds_count", "builds_ended_total", "servers_accepted_total", "build_retries_total"),
    *("decision_seconds_sum", "decision_seconds_count", "messages_sent_total"),
)
"""Those that ``top`` shows, without the prefix."""

Key = tuple[str, str]
"""A name without the prefix, and the value of its only label, empty where it has none or several."""


class Scrape(Object, frozen=True, kw_only=True):
    """What each address told; ``silent``: why others told nothing. Counters rise for as long as a process lives."""

    told: dict[str, dict[Key, float]]
    silent: dict[str, str]

    def total_counts(self) -> dict[Key, float]:
        """Summed over the addresses."""
        sums: defaultdict[Key, float] = defaultdict(float)
        for counts in self.told.values():
            for key, count in counts.items():
                sums[key] += count
        return dict(sums)

    def counts_since(self, before: Scrape) -> dict[Key, float]:
        """What was counted between the two looks. A process that was replaced in between counts from its beginning."""
        sums: defaultdict[Key, float] = defaultdict(float)
        for address, counts in self.told.items():
            earlier: Mapping[Key, float] = before.told.get(address, counts)
            for key, count in counts.items():
                rise = count - earlier.get(key, 0.0)
                sums[key] += rise if rise >= 0 else count
        return dict(sums)


def scrape_metrics(addresses: Sequence[str]) -> Scrape:
    """Ask all of them at the same time."""
    if not addresses:
        return Scrape(told={}, silent={})
    counts: dict[str, dict[Key, float]] = {}
    silent: dict[str, str] = {}
    with ThreadPoolExecutor(len(addresses)) as pool:
        for address, answer in zip(addresses, pool.map(_scrape_address, addresses), strict=True):
            if isinstance(answer, str):
                silent[address] = answer
            else:
                counts[address] = answer
    return Scrape(told=counts, silent=silent)


def _scrape_address(address: str) -> dict[Key, float] | str:
    url = address if address.rstrip("/").endswith("/metrics") else f"{address.rstrip('/')}/metrics"
    try:
        split_url = urlsplit(url)
        connection = ApiConnection(split_url, CONNECT_AND_READ_TIMEOUT_S)
    except ValueError:
        return "is no URL"
    try:
        answer = connection.send_request("GET", split_url.path, {})
        return _parse_metrics(answer.body.decode()) if answer.status == HTTPStatus.OK else f"answers {answer.status}"
    except ValueError:
        return "does not answer with metrics"
    except FAILURES:
        return "does not answer"
    finally:
        connection.close()


def _parse_metrics(text: str) -> dict[Key, float]:
    values: dict[Key, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            if name in TOP_METRICS and name != sample.name:
                key = name, next(iter(sample.labels.values())) if len(sample.labels) == 1 else ""
                values[key] = values.get(key, 0.0) + sample.value
    return values


def of_process(status: dict[str, Any]) -> Scrape:
    """What the process of the API that answered has counted. An API of an older release tells nothing."""
    process = status.get("process")
    if process is None:
        return Scrape(told={}, silent={})
    counts = {(name, label): count for name, numbers in process["counters"].items() for label, count in numbers.items()}
    return Scrape(told={process["id"]: counts}, silent={})
