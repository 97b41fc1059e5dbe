"""``status``: the deployment at a glance."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from cliff.show import ShowOne

from cli.shared.base import ASTRAY, TWIN
from cli.shared.console import console_on, table_of
from cli.shared.http import HttpCommand
from cli.watch import overview
from objects.machine import two_machines_text
from objects.process import CONDUCTOR_BINARY

STATES = ("building", "active", "error")
NAMED_HOSTS = 5
"""Hosts that are named in one line."""


class ShowStatus(HttpCommand, ShowOne):
    """Show processes, cells with their databases, brokers, conductors, hosts and servers, the queue and open operations.

    A database or broker that does not answer is shown with the time at which the API noticed. "Feed" is how many changes of the
    cell the API level has not read yet, and how long the first of them has waited. The command takes a few seconds at most,
    whatever is down. The other formats show all fields.

    Example: superconductor status
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        status = self.api_client(parsed_args).get("superconductor/status")["status"]
        return tuple(status), tuple(status.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Tables for people; the other formats are for programs."""
        if parsed_args.formatter != "table":
            return super().produce_output(parsed_args, column_names, data)
        status = dict(zip(column_names, data, strict=True))
        console = console_on(self.app.stdout)
        for binary, tally in status["processes"].items():
            console.print(f"{binary}: {_tally_text(tally)}", markup=False)
        columns = ("Cell", "State", "Database", "Broker", "Conductors", "Hosts up", "Down", "Disabled", "Unmapped", *STATES, "Feed")
        console.print(table_of("Cells", columns, [_cell_row(cell) for cell in status["cells"]]))
        for cell in status["cells"]:
            for trouble in overview.trouble_sentences(cell):
                console.print(trouble, markup=False)
            for note in _cell_notes(cell):
                console.print(note, markup=False)
        for cell in status["broken_cells"]:
            console.print(f"Cell {cell['uuid']} cannot be used: {cell['view']}", markup=False)
        for twin in status["hosts_in_two_cells"]:
            console.print(TWIN.format(host=twin["host"], cells=" and ".join(twin["cells"])), markup=False)
        for astray in status["hosts_elsewhere"]:
            console.print(ASTRAY.format(host=astray["host"], cell=astray["cell"], home=astray["mapped_to"]), markup=False)
        for place, letters in _dead_letters(status):
            steps = ", ".join(f"{number} of {step}" for step, number in sorted(letters.items()))
            console.print(f"Dead letters of {place}: {steps}; see 'superconductor dead-letter list'", markup=False)
        leasing = status.get("leasing", {"allowed": True})
        if not leasing["allowed"]:
            console.print(f"Nothing is leased: {leasing['reason']}", markup=False)
        buried = sum(status["buried"].values())
        console.print(f"In ERROR without ever having had a host: {buried}", markup=False)
        queue = status["queue"]
        oldest = "" if queue["oldest_seconds"] is None else f", the oldest for {queue['oldest_seconds']:.1f} s"
        console.print(f"Waiting for a host: {queue['depth']}{oldest}", markup=False)
        for operations in overview.operation_sentences(status):
            console.print(operations, markup=False)
        return 0


def _dead_letters(status: dict[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
    """What steps could not process, by step, where there is any. An API of an older release tells none."""
    if status.get("dead_letters"):
        yield "the API level", status["dead_letters"]
    for cell in status["cells"]:
        if cell.get("dead_letters"):
            yield f"cell {cell['name']}", cell["dead_letters"]


def _cell_notes(cell: dict[str, Any]) -> Iterator[str]:
    """What an operator should see to at hosts of a cell."""
    if shared := cell["shared_user_hosts"]:
        text = "hosts cannot be distinguished, because their agents share a broker user: see 'superconductor host user --help'"
        yield f"Cell {cell['name']}: {shared} {text}"
    for each in cell.get("refused_machines") or ():  # an API of an older release tells none
        yield f"Cell {cell['name']}: {two_machines_text(each['host'], each['machine'], each['refused'])}"
    if waiting := cell.get("waiting_sizes"):  # an API of an older release tells none
        text = f"hosts report sizes that wait for 'superconductor host accept': {', '.join(waiting[:NAMED_HOSTS])}"
        yield f"Cell {cell['name']}: {len(waiting)} {text}"


def _cell_row(cell: dict[str, Any]) -> tuple[Any, ...]:
    numbers = (*overview.host_counts(cell), *(overview.of_hosts(cell, field) for field in ("disabled_hosts", "unmapped_hosts")))
    servers = (cell["servers"].get(state, 0) for state in STATES)
    conductors = overview.UNKNOWN if cell["processes"] is None else _tally_text(cell["processes"][CONDUCTOR_BINARY])
    reachability = (overview.reached_word(cell["database"]), overview.reached_word(cell["bus"]))
    return (cell["name"], cell["state"], *reachability, conductors, *numbers, *servers, overview.lag_text(cell["feed"]))


def _tally_text(tally: dict[str, int]) -> str:
    return f"{tally['up']} up" + (f", {tally['down']} down" if tally["down"] else "")
