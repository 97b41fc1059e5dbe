"""One look at a deployment, and the picture that ``top`` makes of it and the look before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cli.shared.console import table_of
from cli.shared.scrape import Key, Scrape
from cli.watch import overview
from objects.base import Object
from service.metrics import STAGES

STATES = ("building", "active", "error")


class Look(Object, frozen=True, kw_only=True):
    """What the API and the processes told at ``at`` (monotonic seconds). ``trouble``: why ``status`` is not of now, or missing.

    ``items``: the servers or the hosts of the list, as the API has them.
    """

    at: float
    status: dict[str, Any] | None
    trouble: str
    counts: Scrape
    items: tuple[dict[str, Any], ...] = ()


def draw_frame(endpoint: str, now: Look, before: Look | None, chosen: RenderableType | None = None) -> RenderableType:
    """The whole picture. ``before`` None: what is counted is told from the beginning of the processes, and no rate.

    ``chosen``: the list that a user chooses from, if there is one.
    """
    return Group(*_frame_parts(endpoint, now, before, chosen))


def _frame_parts(endpoint: str, now: Look, before: Look | None, chosen: RenderableType | None) -> Iterator[RenderableType]:
    yield Text(f"superconductor  {endpoint}  {time.strftime('%H:%M:%S')}", style="bold")
    if now.trouble:
        yield Text(now.trouble + ("" if now.status is None else " What it said last is shown."), style="bold red")
    for address, why in now.counts.silent.items():
        yield Text(f"{address} {why}: what it counts is missing.", style="red")
    if now.status is not None:
        yield from _deployment_parts(now, before)
    if chosen is not None:
        yield chosen
    if now.counts.told:
        yield from _work_parts(now, before)


def _deployment_parts(now: Look, before: Look | None) -> Iterator[RenderableType]:
    status = now.status or {}
    columns = ("Cell", "State", "View", "Hosts up", "Down", *STATES, "Net active/s", "Feed")
    yield table_of("Cells", columns, [_cell_row(cell, now, before) for cell in status["cells"]])
    for cell in status["cells"]:
        for trouble in overview.trouble_sentences(cell):
            yield Text(trouble, style="red")
    for cell in status["broken_cells"]:
        yield Text(f"Cell {cell['uuid']} cannot be used: {cell['view']}", style="red")
    queue = status["queue"]
    oldest = "" if queue["oldest_seconds"] is None else f", the oldest for {queue['oldest_seconds']:.1f} s"
    yield Text(
        f"Waiting for a host: {queue['depth']}{oldest}. In ERROR without ever having had one: {sum(status['buried'].values())}."
    )
    for operations in overview.operation_sentences(status):
        yield Text(operations)


def _cell_row(cell: dict[str, Any], now: Look, before: Look | None) -> tuple[Any, ...]:
    states = [cell["servers"].get(state, 0) for state in STATES]
    net, lag = _net_rate(cell, now, before), overview.lag_text(cell["feed"])
    return (cell["name"], cell["state"], overview.view_word(cell), *overview.host_counts(cell), *states, net, lag)


def _net_rate(cell: dict[str, Any], now: Look, before: Look | None) -> str | None:
    """Servers that became ACTIVE, less those that were deleted, for each second."""
    earlier = () if before is None or before.status is None or now.trouble or before.trouble else before.status["cells"]
    for other in earlier:
        if before is not None and other["uuid"] == cell["uuid"]:
            change = cell["servers"].get("active", 0) - other["servers"].get("active", 0)
            return f"{change / max(0.001, now.at - before.at):+.1f}"
    return None


def _work_parts(now: Look, before: Look | None) -> Iterator[RenderableType]:
    if before is None:
        yield Text("\nSince the processes began:")
        counted, seconds = now.counts.total_counts(), None
    else:
        counted, seconds = now.counts.counts_since(before.counts), max(0.001, now.at - before.at)
    if not counted.get(("decision_seconds_count", "")) and not any(name == "builds_ended_total" for name, _ in counted):
        yield Text("Counted by the process of the API that answered; --metrics names those of the other roles.")
    yield Text(
        f"accepted {_format_amount(counted.get(('servers_accepted_total', ''), 0.0), seconds)}, "
        f"ACTIVE {_format_amount(counted.get(('builds_ended_total', 'active'), 0.0), seconds)}, "
        f"failed {_format_amount(_count_failed(counted), seconds)}, "
        f"tried again {_format_amount(sum(n for (name, _), n in counted.items() if name == 'build_retries_total'), seconds)}"
    )
    yield Text(_decisions_and_messages(counted, seconds))
    means = {stage: mean for stage in STAGES if (mean := _mean_seconds(counted, stage)) is not None}
    slowest = max(means, key=means.__getitem__, default=None)
    rows = [
        (
            stage,
            _format_amount(counted["stage_seconds_count", stage], seconds),
            f"{mean * 1000:.1f}",
            "slowest" if stage == slowest else "",
        )
        for stage, mean in means.items()
    ]
    yield table_of("Stages", ("Stage", "Count", "Mean ms", ""), rows) if rows else Text("No boot was under way.")


def _count_failed(counted: dict[Key, float]) -> float:
    return sum(number for (name, result), number in counted.items() if name == "builds_ended_total" and result != "active")


def _decisions_and_messages(counted: dict[Key, float], seconds: float | None) -> str:
    decisions, mean = counted.get(("decision_seconds_count", ""), 0.0), _mean_seconds(counted, "", "decision_seconds")
    mean_text = "" if mean is None else f" of {mean * 1000:.1f} ms"
    messages = counted.get(("messages_sent_total", ""), 0.0)
    return f"decisions {_format_amount(decisions, seconds)}{mean_text}, messages {_format_amount(messages, seconds)}"


def _mean_seconds(counted: dict[Key, float], label: str, name: str = "stage_seconds") -> float | None:
    count = counted.get((f"{name}_count", label), 0.0)
    return counted.get((f"{name}_sum", label), 0.0) / count if count else None


def _format_amount(number: float, seconds: float | None) -> str:
    return f"{number:.0f}" if seconds is None else f"{number / seconds:.1f}/s"
