"""What ``host evacuate``, ``host drain`` and ``cell drain --wait`` have in common: options, progress, the table of what is left."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cells.cell import Cell
from cells.emptying import Emptier, Emptying, MoveOrder, Occupant
from cli.shared import liveness
from cli.shared.base import AdminLister, Row, at_least
from cli.shared.console import console_on
from db.api.claims.claims import Ledger

JOBS = 10
"""Servers moved at a time, unless told otherwise."""
COLUMNS = ("Server", "Name", "Host", "Reason")


class EmptyingCommand(AdminLister):
    """A command that moves servers off hosts, and ends with a table of those that are left. It keeps no state.

    The exit status is 1 if a server is left.
    """

    def add_moving(self, parser: argparse.ArgumentParser) -> None:
        """The options of all these commands."""
        positive = partial(at_least, 1)
        parser.add_argument("--jobs", metavar="N", type=positive, default=JOBS, help=f"servers moved at a time (default: {JOBS})")
        parser.add_argument("--timeout", metavar="SECONDS", type=positive, default=inf, help="stop waiting then (default: never)")
        parser.add_argument(
            "--down-after",
            metavar="SECONDS",
            type=positive,
            default=liveness.DOWN_AFTER_S,
            help=f"of silence of a host while others of its cell report (default: {liveness.DOWN_AFTER_S})",
        )

    def add_destination(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--to", metavar="HOST", help="move all to this host (default: the scheduler chooses for each)")
        parser.add_argument("--cross-cell", action="store_true", help="servers may move to other cells")
        parser.add_argument(
            "--wait",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="wait for the moves, and try again what is busy (default); --no-wait: only accept all moves, regardless of --jobs",
        )

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]) -> int:
        rows = list(data)
        return 0 if not rows and parsed_args.formatter == "table" else super().produce_output(parsed_args, column_names, rows)

    def empty_hosts(
        self,
        subject: str,
        cell: Cell,
        hosts: Sequence[str],
        order: MoveOrder,
        parsed_args: argparse.Namespace,
        *,
        whole_cell: bool = False,
    ) -> list[Row]:
        """Move all servers of these hosts; returns the rows of those that are left. ``subject``: what is emptied, for the summary.

        ``whole_cell``: the hosts are all of the cell, and its servers in ERROR are left, too.
        """
        emptier = Emptier(Ledger(self.deployment.api_database, "emptying"), cell, order)
        if parsed_args.wait:
            with self._show_progress(emptier, hosts) as progress:
                loop = Emptying(emptier, hosts, jobs=parsed_args.jobs, timeout=parsed_args.timeout, progress=progress)
                remaining, done = loop.run(), f"{loop.moved} servers were moved"
        else:
            count, remaining = Emptying(emptier, hosts, jobs=inf).accept_movable()
            done = f"{count} moves are under way: see 'operation list'"
        if whole_cell:
            remaining += emptier.failed_builds()
        if remaining:
            self.status = 1
        if not self.is_quiet:
            self.warn_user(f"{subject}: {done}, {len(remaining)} {'are left' if parsed_args.wait else 'were not accepted'}")
        return [_occupant_row(occupant) for occupant in remaining]

    @contextmanager
    def _show_progress(self, emptier: Emptier, hosts: Sequence[str]) -> Iterator[Any]:
        """A bar on standard error, if that is a terminal."""
        console = console_on(self.app.stderr)
        if self.is_quiet or not console.is_terminal:
            yield lambda moved: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            bar = shown.add_task("moved", total=emptier.count_bodies(hosts))
            yield lambda moved: shown.update(bar, completed=moved)


def _occupant_row(occupant: Occupant) -> Row:
    return occupant.server_uuid, occupant.name, occupant.host, occupant.reason
