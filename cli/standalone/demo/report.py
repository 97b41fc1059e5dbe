"""The demo's tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.standalone.demo.evidence import Evidence
from cli.standalone.demo.site import HostPlan
from objects.instance import State


def show_report(console: Console, evidence: Evidence, hosts: Sequence[HostPlan]) -> None:
    """Servers per cell and state, utilisation, retries and why, and how long boots took."""
    console.print(_servers_table(evidence), _hosts_table(evidence, hosts), _retries_table(evidence), _latency_text(evidence))


def show_refusal(console: Console, name: str, explanation: Mapping[str, Any]) -> None:
    """One refused boot, filter by filter."""
    table = Table(
        title=f"Why {name!r} got no host", title_justify="left", caption=explanation.get("message"), caption_justify="left"
    )
    table.add_column("filter")
    table.add_column("hosts before", justify="right")
    table.add_column("hosts left", justify="right")
    table.add_column("reason")
    decisions = explanation.get("decisions") or [{}]
    for count in decisions[-1].get("filters", ()):
        table.add_row(count["name"], str(count["before"]), str(count["after"]), count.get("reason", ""))
    console.print(table)


def _servers_table(evidence: Evidence) -> Table:
    states = (State.ACTIVE, State.ERROR, State.DELETED)
    counts: dict[str, Counter[State]] = defaultdict(Counter)
    for row in evidence.rows:
        counts[row.cell][row.instance.state] += 1
    in_cells = {row.instance.uuid for row in evidence.rows}
    counts["(never in a cell)"][State.DELETED] = sum(1 for s in evidence.servers if s.deleted and s.uuid not in in_cells)
    table = Table(title="Servers", title_justify="left")
    table.add_column("cell")
    for state in states:
        table.add_column(state.upper(), justify="right")
    for cell in sorted(counts):
        table.add_row(cell, *(str(counts[cell][state]) for state in states))
    return table


def _hosts_table(evidence: Evidence, hosts: Sequence[HostPlan]) -> Table:
    table = Table(title="Hosts", title_justify="left")
    for heading in ("host", "guests", "vCPUs used / real", "memory", ""):
        table.add_column(heading, justify="left" if heading in ("host", "") else "right")
    for host in hosts:
        guests = len(evidence.guests[host.name])
        used = evidence.charged.get(host.name, 0)
        share = evidence.memory_used.get(host.name, 0) / host.memory_mb
        flaky = f"flaky: {host.failure_rate:.0%} of builds fail" if host.failure_rate else ""
        table.add_row(host.name, str(guests), f"{used} / {host.vcpus}", f"{share:.0%}", flaky)
    return table


def _retries_table(evidence: Evidence) -> Table:
    reasons: Counter[tuple[str, str]] = Counter()
    for row in evidence.rows:
        for attempt in row.instance.history:
            reasons[attempt.failure.kind, attempt.failure.error] += 1
    table = Table(title="Failed attempts", title_justify="left")
    table.add_column("whose fault")
    table.add_column("error")
    table.add_column("attempts", justify="right")
    for (kind, error), count in reasons.most_common():
        table.add_row(kind, error, str(count))
    return table


def _latency_text(evidence: Evidence) -> str:
    taken = sorted(s.launched_at - s.created_at for s in evidence.servers if s.launched_at is not None)
    if not taken:
        return "No server became ACTIVE."
    p50, p99 = (taken[min(len(taken) - 1, int(len(taken) * share))] for share in (0.50, 0.99))
    return f"Accept to ACTIVE: p50 {p50:.2f} s, p99 {p99:.2f} s over {len(taken)} servers."
