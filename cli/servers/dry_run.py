"""What ``server boot --dry-run`` shows: the hosts that servers would get, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cliff.columns import FormattableColumn
from rich.console import Console

from cli.servers.explain import describe_changes, describe_filters, describe_unread_hints

COLUMNS = ("Name", "Cell", "Host", "Node", "Zone", "Score", "Weighers", "Alternates")
NUMA = "NUMA nodes"
"""One column more if a server is tied to nodes."""

OUTCOMES = {
    "placed": "Dry run: nothing was booted. All servers would find hosts.",
    "partial": "Dry run: nothing was booted. Not all servers would find hosts.",
    "refused": "Dry run: nothing was booted. The request would be refused.",
}


class WeigherParts(FormattableColumn[Any]):
    """What each weigher adds: for people without those that add nothing, as they are for programs."""

    def human_readable(self) -> str:
        return ", ".join(f"{name} {part:.4g}" for name, part in self._value.items() if part)


class HostNames(FormattableColumn[Any]):
    def human_readable(self) -> str:
        return ", ".join(self._value)


def describe_dry_run(console: Console, result: dict[str, Any]) -> None:
    """The outcome and its reasons as text. The table of servers follows it."""
    outcome = "The request would wait." if result["waits"] else ""
    console.print(f"Dry run: nothing was booted. {outcome}" if outcome else OUTCOMES[result["outcome"]], style="bold", markup=False)
    for reason in result["refusals"]:
        console.print(reason, markup=False)
    if result["waits"]:
        console.print(f"{result['waits']}.", markup=False)
    describe_changes(console, result)
    describe_unread_hints(console, result)
    if result["one_of"] > 1:
        text = f"{result['one_of']} hosts are equally good for the first server: a boot draws one of them anew."
        console.print(text, markup=False)
    describe_filters(console, result["filters"])


def server_rows(result: dict[str, Any], *, placed_only: bool) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    """A row for each server. ``placed_only``: only for those that would find a host."""
    servers = [server for server in result["servers"] if server["host"] or not placed_only]
    if not any(server.get("numa_nodes") for server in servers):  # not there: the API is of an older release
        return COLUMNS, [_server_row(server) for server in servers]
    return (*COLUMNS, NUMA), [(*_server_row(server), ", ".join(map(str, server["numa_nodes"]))) for server in servers]


def _server_row(server: dict[str, Any]) -> Sequence[Any]:
    texts = [server[field] or "" for field in ("name", "cell", "host", "node", "availability_zone")]
    score = round(server["score"], 4) if server["host"] else ""
    return (*texts, score, WeigherParts(server["parts"]), HostNames(server["alternates"]))
