"""All metrics of this process; other modules import those that they count. ``docs/monitoring.md`` explains each.

Events are counted where they happen, in memory. A state (a queue, a breaker) is read when the metrics are collected
(``ReadGauge``). There is one registry per process, as there is one log: the services of an all-in-one share its counters.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

STAGES = ("accept", "queue", "plan", "stage", "hand_over", "order", "grant", "build")
"""The stages of a boot, in order."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Bucket limits in seconds, from a transaction to the deadline of a build."""

Values = Iterable[tuple[tuple[str, ...], float]]
"""Pairs of label values, in the order of the labels, and the current value."""


class ReadGauge(Collector):
    """A gauge whose readers are called when the metrics are collected.

    A reader is a bound method and must not block. It is forgotten when its object no longer exists. If it fails, only its own
    values are missing.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self.name, self.documentation, self.labels = name, documentation, tuple(labels)
        self._lock = threading.Lock()
        self._readers: list[weakref.WeakMethod[Callable[[], Values]]] = []
        self._complaints = RateLimitedLog(LOG)
        REGISTRY.register(self)

    def follow_reader(self, read: Callable[[], Values]) -> None:
        """Call ``read`` on each collection, for as long as its object lives."""
        with self._lock:
            self._readers = [*(reader for reader in self._readers if reader() is not None), weakref.WeakMethod(read)]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self.name, self.documentation, labels=self.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        values: dict[tuple[str, ...], float] = {}
        with self._lock:
            readers = [read for reader in self._readers if (read := reader()) is not None]
        for read in readers:
            try:
                values.update(read())
            except Exception as error:  # noqa: BLE001 - the other metrics are still valid; the error is logged
                text = f"{type(error).__name__}: {error}"  # the error itself would keep the reader's object alive
                self._complaints(self.name, logging.WARNING, "metric %s cannot be read: %s", self.name, text)
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        yield family


def _make_counter(name: str, documentation: str, *labels: str) -> Counter:
    return Counter(f"superconductor_{name}", documentation, labels, registry=REGISTRY)


def _make_histogram(name: str, documentation: str, *labels: str) -> Histogram:
    return Histogram(f"superconductor_{name}", documentation, labels, registry=REGISTRY, buckets=BUCKETS)


def _make_gauge(name: str, documentation: str, *labels: str) -> ReadGauge:
    return ReadGauge(f"superconductor_{name}", documentation, labels)


# -- the path of a boot --------------------------------------------------------------------------------------------------------

_STAGE = _make_histogram("stage_seconds", "Duration of each stage of a boot.", "stage")
STAGE = {stage: _STAGE.labels(stage) for stage in STAGES}
BOOT = _make_histogram("boot_seconds", "From the acceptance of a server to ACTIVE.")
ACCEPTED = _make_counter("servers_accepted_total", "Servers accepted by the API.")
ENDED = _make_counter("builds_ended_total", "Builds that ended in a cell.", "result")
RETRIES = _make_counter("build_retries_total", "Builds that went on to another attempt, by the class of the failure.", "failure")

# -- deciding ------------------------------------------------------------------------------------------------------------------

DECISIONS = _make_counter("decisions_total", "Decisions of the scheduler.", "result")
DECISION = _make_histogram("decision_seconds", "Duration of a decision, with its claims.")
CLAIMS = _make_counter("claims_total", "Claims made for servers.")
CONFLICTS = _make_counter("claim_conflicts_total", "Chosen hosts that another scheduler had claimed first.")

# -- after the boot ------------------------------------------------------------------------------------------------------------

OPERATIONS_ENDED = _make_counter("operations_ended_total", "Operations on servers that ended.", "kind", "outcome")

# -- requests, messages and transactions, and their errors ------------------------------------------------------------------------

API_REQUEST = _make_histogram("api_request_seconds", "Duration of API requests.", "method", "status")
SENT = _make_counter("messages_sent_total", "Messages sent on a bus; a call counts once.", "topic", "method", "kind")
sent = functools.cache(SENT.labels)
"""The counter of a topic, method and kind. Cached because it is needed for every message: ten times as fast."""
RPC_ERRORS = _make_counter(
    "rpc_errors_total", "Messages that could not be sent, and calls that ended with an error.", "topic", "error"
)
REFUSED = _make_counter(
    "messages_refused_total", "Messages that could not be decoded, or named an unknown method.", "topic", "reason"
)
HANDLED = _make_histogram("rpc_handled_seconds", "Duration of handling a message.", "topic", "method")
TRANSACTION = _make_histogram("transaction_seconds", "Duration of a transaction, with waiting and retries.", "database")
DATABASE_ERRORS = _make_counter("database_errors_total", "Transactions that the database failed at first.", "database", "trouble")
AGENTS_REFUSED = _make_counter("agent_messages_refused_total", "Messages of agents that named another host.", "method", "reason")
FEED_REFUSED = _make_counter("feed_events_refused_total", "Events of a cell's feed that named another cell's host.", "cell")
SWEEP_ERRORS = _make_counter("sweep_errors_total", "Rounds of a sweep that failed.", "sweep")
SET_ASIDE = _make_counter("set_aside_total", "Failed tries of items that a step set aside as dead letters.", "step")

# -- states, read on collection -----------------------------------------------------------------------------------------------

QUEUE_DEPTH = _make_gauge("queue_depth", "Build requests that wait for a host.", "project")
QUEUE_AGE = _make_gauge("queue_oldest_seconds", "Age of the oldest build request that waits for a host.", "project")
OPERATIONS = _make_gauge("open_operations", "Operations on servers that have not ended.", "state")
OPERATION_AGE = _make_gauge("open_operations_oldest_seconds", "Age of the oldest of them.", "state")
CELL_DEPTH = _make_gauge("cell_queue_depth", "Servers of a cell that wait, are built or are deleted.", "cell", "state")
CELL_AGE = _make_gauge("cell_queue_oldest_seconds", "How long one of them has been in its state at most.", "cell", "state")
FEED_LAG = _make_gauge("feed_lag_seconds", "Time since the API level had applied all events of a cell.", "cell")
FEED_BEHIND = _make_gauge(
    "feed_lag_events", "Events of a cell's feed that the API level had not applied when it last read the feed.", "cell"
)
BREAKER = _make_gauge("breaker_open", "1 where calls to a cell are refused because it does not answer, else 0.", "cell", "resource")
VIEW_AGE = _make_gauge("view_age_seconds", "Age of a scheduler's view of a cell.", "cell")
CAPACITY = _make_gauge("cell_capacity", "What the hosts of a cell offer, overcommitment included.", "cell", "resource")
CLAIMED = _make_gauge("cell_claimed", "What is claimed on the hosts of a cell.", "cell", "resource")
HOSTS = _make_gauge("cell_hosts", "Hosts of a cell that a scheduler may choose, and others it knows.", "cell", "eligible")
SLOTS = _make_gauge("agent_build_slots", "Builds that an agent carries out at once at most.", "host")
BUILDS = _make_gauge("agent_builds", "Builds of an agent: those that wait for a slot, and those under way.", "host", "state")
HYPERVISOR = _make_gauge("agent_hypervisor_up", "1 if an agent can use its hypervisor, else 0.", "host")
CONSOLES = _make_gauge("console_sessions", "Consoles that users have open through a console proxy.", "type")
DEAD_LETTERS = _make_gauge("dead_letters", "Items that a step could not process and has set aside.", "place", "step")
SWEEP_AGE = _make_gauge("sweep_age_seconds", "Time since a sweep last came to the end of a round.", "sweep")


_OVERVIEW = (_STAGE, ACCEPTED, ENDED, RETRIES, DECISION, SENT)
_KEPT = ("_total", "_sum", "_count")


def read_overview() -> dict[str, dict[str, float]]:
    """What this process has counted of boots, decisions and messages, by the name of a metric without its prefix.

    Each has its numbers by the value of its only label. Without a label, or summed over several, there is one, under "".
    """
    values_by_metric: dict[str, dict[str, float]] = {}
    for metric in _OVERVIEW:
        for family in metric.collect():
            for sample in family.samples:
                if sample.name.endswith(_KEPT):
                    numbers = values_by_metric.setdefault(sample.name.removeprefix("superconductor_"), {})
                    label = next(iter(sample.labels.values())) if len(sample.labels) == 1 else ""
                    numbers[label] = numbers.get(label, 0.0) + sample.value
    return values_by_metric


def observe_since(histogram: Histogram, began: float) -> None:
    """Observe the time since ``began``, in seconds since the epoch. Never negative, even if another machine's clock set
    ``began``.
    """
    histogram.observe(max(0.0, time.time() - began))
