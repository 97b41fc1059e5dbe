"""``status``: the deployment at a glance."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cliff.show import ShowOne

from cli.base import TWIN
from cli.explain import console_on, table_of
from cli.http import HttpCommand

STATES = ("building", "active", "error")


class Status(HttpCommand, ShowOne):
    """Show the cells and how fresh the view of each is, servers by state, hosts up and down, and the queue.

    Example: superconductor status
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        status = self.client(parsed_args).get("superconductor/status")["status"]
        return tuple(status), tuple(status.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Tables for people; the other formats are for programs."""
        if parsed_args.formatter != "table":
            return super().produce_output(parsed_args, column_names, data)
        status = dict(zip(column_names, data, strict=True))
        console = console_on(self.app.stdout)
        console.print(table_of("Cells", ("Cell", "State", "View", "Hosts up", "Down", *STATES), [_row(c) for c in status["cells"]]))
        for cell in status["broken_cells"]:
            console.print(f"Cell {cell['uuid']} cannot be used: {cell['view']}", markup=False)
        for twin in status["hosts_in_two_cells"]:
            console.print(TWIN.format(host=twin["host"], cells=" and ".join(twin["cells"])), markup=False)
        buried = sum(status["buried"].values())
        console.print(f"In ERROR without ever having had a host: {buried}", markup=False)
        queue = status["queue"]
        oldest = "" if queue["oldest_seconds"] is None else f", the oldest for {queue['oldest_seconds']:.1f} s"
        console.print(f"Waiting for a host: {queue['depth']}{oldest}", markup=False)
        return 0


def _row(cell: dict[str, Any]) -> tuple[Any, ...]:
    up = cell["hosts"].get("UP", 0)
    down = sum(cell["hosts"].values()) - up
    return (cell["name"], cell["state"], cell["view"], up, down, *(cell["servers"].get(state, 0) for state in STATES))
