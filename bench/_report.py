"""The measurements as tables, with the peer's figures beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from bench._counters import PING, Counts, Memory
from bench._load import Idle, Measured, Took
from bench._script import EVERY, print_table

PEER = "Nova 34 with Placement*"
NOTE = (
    "* Nova 34.0 with Placement 16.0, measured on a machine of this kind: two cores, MariaDB 10.11, RabbitMQ 3.10, 2 cells with 10 "
    "simulated hosts each. Its statements are those its processes execute; an executemany counts as one there."
)


def print_report(classic: Measured, quorum: Measured, console: Console) -> None:
    """Print everything."""
    queues = ("", "classic", "quorum", PEER)
    loads = ("", "one at a time", "8 clients", "8 that poll", "batch of 50", "of 1,000", PEER)
    counted = ("", "one at a time", "8 clients", "in a batch of 50", PEER, "idle, per s")
    print_table(console, "Boots per second, from the first accept to the last ACTIVE", queues, _rate_rows(classic, quorum))
    print_table(console, "Accept to ACTIVE, ms: p50 / p99", queues, _wait_rows(classic, quorum))
    print_table(console, "CPU ms per boot, all processes and both servers, classic queues", loads, _cpu_rows(classic))
    print_table(console, "The same, quorum queues", loads[:-1], [_cpu_rows(quorum)[0][:-1]])
    print_table(console, "SQL statements per boot, as MariaDB counts them", counted, _sql_rows(classic))
    print_table(console, "Messages per boot, as RabbitMQ counts them", counted, _message_rows(classic))
    memory = ("", "processes", "RSS of each", "PSS of each", "PSS of all", PEER)
    print_table(console, "Memory, MiB", memory, _memory_rows(classic.memory))
    print_table(console, "Idle: CPU ms per second", queues[:-1], _idle_rows(classic.idle, quorum.idle))
    console.print(NOTE, markup=False, highlight=False)


def _median_load(crowds: Sequence[Took]) -> Took:
    """The one in the middle."""
    return sorted(crowds, key=lambda took: took.boots_per_second)[len(crowds) // 2]


def _rate_rows(classic: Measured, quorum: Measured) -> list[tuple[str, ...]]:
    def describe_rate(took: Took) -> str:
        return f"{took.boots_per_second:.1f} (load {took.load:.1f})"

    def describe_batches(measured: Measured) -> str:
        rates = [took.boots_per_second for took in measured.crowds]
        return f"{_median_load(measured.crowds).boots_per_second:.1f} ({min(rates):.1f} to {max(rates):.1f})"

    names = ("single boots from 8 clients that do not wait", "single boots from 8 clients that poll until ACTIVE")
    return [
        (names[0], describe_rate(classic.opened), describe_rate(quorum.opened), "2.8 to 4.4"),
        (names[1], describe_rate(classic.closed), describe_rate(quorum.closed), "2.8 to 4.4"),
        ("multi-create of 50: median (of several)", describe_batches(classic), describe_batches(quorum), "5.2"),
        (f"multi-create of {classic.large.boots}", describe_rate(classic.large), describe_rate(quorum.large), "-"),
    ]


def _wait_rows(classic: Measured, quorum: Measured) -> list[tuple[str, ...]]:
    def wait(took: Took) -> str:
        return f"{took.p50:.0f} / {took.p99:.0f}"

    return [
        ("one boot at a time", wait(classic.alone), wait(quorum.alone), "360"),
        ("single boots from 8 clients that poll", wait(classic.closed), wait(quorum.closed), "-"),
        ("single boots from 8 clients that do not wait", wait(classic.opened), wait(quorum.opened), "-"),
        ("multi-create of 50", wait(_median_load(classic.crowds)), wait(_median_load(quorum.crowds)), "-"),
        (f"multi-create of {classic.large.boots}", wait(classic.large), wait(quorum.large), "-"),
    ]


def _cpu_rows(measured: Measured) -> list[tuple[str, ...]]:
    tooks = (measured.alone, measured.opened, measured.closed, _median_load(measured.crowds), measured.large)
    rows = [(EVERY, *(f"{took.cpu_all:.0f}" for took in tooks), "440 to 560")]
    for role in sorted({role for took in tooks for role in took.cpu}, key=lambda role: -measured.opened.cpu.get(role, 0.0)):
        rows.append((role, *(f"{took.cpu.get(role, 0.0):.1f}" for took in tooks), ""))  # noqa: PERF401 - one of several kinds of rows
    rows.append(("clients, not counted above", *(f"{took.clients:.1f}" for took in tooks), ""))
    rows.append(("others on this machine meanwhile", *(f"{took.others:.0f}" for took in tooks), ""))
    return rows


def _sql_rows(measured: Measured) -> list[tuple[str, ...]]:
    peers = {"api": "23", "cell0": "10", "cells": "91", EVERY: "160, 105 to 123 (with Placement's 36)"}
    rows = _count_rows([_merge_cells(c.statements) for c in _counts_by_load(measured)], peers)
    single, opened, batch, idle = (c.ends for c in _counts_by_load(measured))
    for name in ("begin", "commit", "rollback", "set_option", PING):
        label = "pings of drivers" if name == PING else "SET" if name == "set_option" else name.upper()
        figures = (f"{single[name]:.1f}", f"{opened[name]:.2f}", f"{batch[name]:.2f}", "", f"{idle[name]:.1f}")
        rows.append((f"besides: {label}", *figures))
    return rows


def _message_rows(measured: Measured) -> list[tuple[str, ...]]:
    return _count_rows(
        [_merge_cells(c.messages) for c in _counts_by_load(measured)], {EVERY: "13 calls and 2 casts: 28; 12 calls each: 24+"}
    )


def _counts_by_load(measured: Measured) -> tuple[Counts, ...]:
    """Per boot one at a time, from clients that do not wait, in a batch of 50; of an idle region."""
    return measured.alone_each, measured.opened_each, measured.crowd_each, measured.idle.counts


def _merge_cells(counts: Mapping[str, float]) -> dict[str, float]:
    """All cells as one."""
    merged: dict[str, float] = defaultdict(float)
    for name, number in counts.items():
        level, _, rest = name.partition(": ")
        merged[(level if level in ("api", "cell0") else "cells") + (f": {rest}" if rest else "")] += number
    return dict(merged)


def _count_rows(counts: Sequence[Mapping[str, float]], peers: Mapping[str, str]) -> list[tuple[str, ...]]:
    def render_row(name: str, numbers: Iterable[float]) -> tuple[str, ...]:
        single, opened, batch, idle = numbers
        return name, f"{single:.1f}", f"{opened:.2f}", f"{batch:.2f}", peers.get(name, ""), f"{idle:.1f}"

    names = sorted({name for row_counts in counts for name in row_counts})
    return [
        render_row(EVERY, (sum(row_counts.values()) for row_counts in counts)),
        *(render_row(name, (c.get(name, 0.0) for c in counts)) for name in names),
    ]


def _memory_rows(memory_by_role: Mapping[str, Memory]) -> list[tuple[str, ...]]:
    rows = []
    for role, memory in memory_by_role.items():
        per_process = memory.resident / memory.processes, memory.pss / memory.processes
        peer = "124 to 178 RSS per worker" if role == "scheduler" else ""
        rows.append((role, str(memory.processes), f"{per_process[0]:.0f}", f"{per_process[1]:.0f}", f"{memory.pss:.0f}", peer))
    total = sum(memory.pss for memory in memory_by_role.values())
    return [(EVERY, str(sum(memory.processes for memory in memory_by_role.values())), "", "", f"{total:.0f}", ""), *rows]


def _idle_rows(classic: Idle, quorum: Idle) -> list[tuple[str, ...]]:
    roles = sorted(classic.cpu, key=lambda role: -classic.cpu[role])
    rows = [(role, f"{classic.cpu[role]:.0f}", f"{quorum.cpu.get(role, 0.0):.0f}") for role in roles]
    return [(EVERY, f"{sum(classic.cpu.values()):.0f}", f"{sum(quorum.cpu.values()):.0f}"), *rows]
