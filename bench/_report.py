"""The measurements as tables, with the peer's figures beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench._counters import PING, Counts, Memory
from bench._load import Idle, Measured, Paced, Took

PEER = "Nova 34 with Placement*"
NOTE = (
    "* Nova 34.0 with Placement 16.0, measured on a machine of this kind: two cores, MariaDB 10.11, RabbitMQ 3.10, 2 cells with 10 "
    "simulated hosts each. Its statements are those its processes execute; an executemany counts as one there."
)
EVERY = "all"


def report(classic: Measured, quorum: Measured, console: Console) -> None:
    """Print everything."""
    _show(
        console, "Boots per second, from the first accept to the last ACTIVE", ("classic", "quorum", PEER), _rates(classic, quorum)
    )
    _show(console, "Accept to ACTIVE, ms: p50 / p99", ("classic", "quorum", PEER), _waits(classic, quorum))
    _show(
        console,
        "CPU ms per boot, all processes and both servers, classic queues",
        ("one at a time", "8 clients", "8 that poll", "half of it", "batch of 50", "of 1,000", PEER),
        _cpu(classic),
    )
    _show(
        console,
        "The same, quorum queues",
        ("one at a time", "8 clients", "8 that poll", "half of it", "batch of 50", "of 1,000"),
        [_cpu(quorum)[0][:-1]],
    )
    _show(
        console,
        "SQL statements per boot, as MariaDB counts them",
        ("one at a time", "8 clients", "in a batch of 50", PEER, "idle, per s"),
        _sql(classic),
    )
    _show(
        console,
        "Messages per boot, as RabbitMQ counts them",
        ("one at a time", "8 clients", "in a batch of 50", PEER, "idle, per s"),
        _messages(classic),
    )
    _show(console, "Memory, MiB", ("processes", "RSS of each", "PSS of each", "PSS of all", PEER), _memory(classic.memory))
    _show(console, "Idle: CPU ms per second", ("classic", "quorum"), _idle(classic.idle, quorum.idle))
    console.print(NOTE, markup=False, highlight=False)


def _show(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == EVERY else None)
    console.print(table)


def _best(crowds: Sequence[Took]) -> Took:
    """The one in the middle."""
    return sorted(crowds, key=lambda took: took.rate)[len(crowds) // 2]


def _rates(classic: Measured, quorum: Measured) -> list[tuple[str, ...]]:
    def rate(took: Took) -> str:
        return f"{took.rate:.1f} (load {took.load:.1f})"

    def batches(measured: Measured) -> str:
        rates = [took.rate for took in measured.crowds]
        return f"{_best(measured.crowds).rate:.1f} ({min(rates):.1f} to {max(rates):.1f})"

    return [
        ("single boots from 8 clients that do not wait", rate(classic.opened), rate(quorum.opened), "2.8 to 4.4"),
        ("single boots from 8 clients that poll until ACTIVE", rate(classic.closed), rate(quorum.closed), "2.8 to 4.4"),
        ("multi-create of 50: median (of several)", batches(classic), batches(quorum), "5.2"),
        (f"multi-create of {classic.large.boots}", rate(classic.large), rate(quorum.large), "-"),
    ]


def _waits(classic: Measured, quorum: Measured) -> list[tuple[str, ...]]:
    def wait(took: Took) -> str:
        return f"{took.p50:.0f} / {took.p99:.0f}"

    def post(paced: Paced) -> str:
        return f"{paced.post_p50:.0f} / {paced.post_p99:.0f}"

    return [
        ("one boot at a time", wait(classic.alone), wait(quorum.alone), "360"),
        ("single boots from 8 clients that poll", wait(classic.closed), wait(quorum.closed), "-"),
        ("single boots from 8 clients that do not wait", wait(classic.opened), wait(quorum.opened), "-"),
        ("single boots at half the rate of the line above", wait(classic.half.took), wait(quorum.half.took), "-"),
        ("the POST of these", post(classic.half), post(quorum.half), "-"),
        ("multi-create of 50", wait(_best(classic.crowds)), wait(_best(quorum.crowds)), "-"),
        (f"multi-create of {classic.large.boots}", wait(classic.large), wait(quorum.large), "-"),
    ]


def _cpu(measured: Measured) -> list[tuple[str, ...]]:
    tooks = (measured.alone, measured.opened, measured.closed, measured.half.took, _best(measured.crowds), measured.large)
    rows = [(EVERY, *(f"{took.cpu_all:.0f}" for took in tooks), "440 to 560")]
    for role in sorted({role for took in tooks for role in took.cpu}, key=lambda role: -measured.opened.cpu.get(role, 0.0)):
        rows.append((role, *(f"{took.cpu.get(role, 0.0):.1f}" for took in tooks), ""))  # noqa: PERF401 - one of several kinds of rows
    rows.append(("clients, not counted above", *(f"{took.clients:.1f}" for took in tooks), ""))
    rows.append(("others on this machine meanwhile", *(f"{took.others:.0f}" for took in tooks), ""))
    return rows


def _sql(measured: Measured) -> list[tuple[str, ...]]:
    peers = {"api": "23", "cell0": "10", "cells": "91", EVERY: "160, 105 to 123 (with Placement's 36)"}
    rows = _rows([_together(c.statements) for c in _counts(measured)], peers)
    single, opened, batch, idle = (c.ends for c in _counts(measured))
    for name in ("begin", "commit", "rollback", "set_option", PING):
        what = "pings of drivers" if name == PING else "SET" if name == "set_option" else name.upper()
        figures = (f"{single[name]:.1f}", f"{opened[name]:.2f}", f"{batch[name]:.2f}", "", f"{idle[name]:.1f}")
        rows.append((f"besides: {what}", *figures))
    return rows


def _messages(measured: Measured) -> list[tuple[str, ...]]:
    return _rows([_together(c.messages) for c in _counts(measured)], {EVERY: "13 calls and 2 casts: 28; 12 calls each: 24+"})


def _counts(measured: Measured) -> tuple[Counts, ...]:
    """Per boot one at a time, from clients that do not wait, in a batch of 50; of an idle region."""
    return measured.each, measured.opened_each, measured.crowd_each, measured.idle.counts


def _together(counts: Mapping[str, float]) -> dict[str, float]:
    """All cells as one."""
    found: dict[str, float] = defaultdict(float)
    for name, number in counts.items():
        level, _, rest = name.partition(": ")
        found[(level if level in ("api", "cell0") else "cells") + (f": {rest}" if rest else "")] += number
    return dict(found)


def _rows(counts: Sequence[Mapping[str, float]], peers: Mapping[str, str]) -> list[tuple[str, ...]]:
    def row(name: str, numbers: Iterable[float]) -> tuple[str, ...]:
        single, opened, batch, idle = numbers
        return name, f"{single:.1f}", f"{opened:.2f}", f"{batch:.2f}", peers.get(name, ""), f"{idle:.1f}"

    names = sorted({name for some in counts for name in some})
    return [row(EVERY, (sum(some.values()) for some in counts)), *(row(name, (c.get(name, 0.0) for c in counts)) for name in names)]


def _memory(found: Mapping[str, Memory]) -> list[tuple[str, ...]]:
    rows = []
    for role, memory in found.items():
        each = memory.resident / memory.processes, memory.own / memory.processes
        peer = "124 to 178 RSS per worker" if role == "scheduler" else ""
        rows.append((role, str(memory.processes), f"{each[0]:.0f}", f"{each[1]:.0f}", f"{memory.own:.0f}", peer))
    total = sum(memory.own for memory in found.values())
    return [(EVERY, str(sum(memory.processes for memory in found.values())), "", "", f"{total:.0f}", ""), *rows]


def _idle(classic: Idle, quorum: Idle) -> list[tuple[str, ...]]:
    roles = sorted(classic.cpu, key=lambda role: -classic.cpu[role])
    rows = [(role, f"{classic.cpu[role]:.0f}", f"{quorum.cpu.get(role, 0.0):.0f}") for role in roles]
    return [(EVERY, f"{sum(classic.cpu.values()):.0f}", f"{sum(quorum.cpu.values()):.0f}"), *rows]
