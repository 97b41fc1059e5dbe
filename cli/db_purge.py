"""``superconductor db purge``: forget servers that were deleted long ago."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

from cells import administration
from cli.base import ActionLister, Row, Table, at_least
from db import purge
from objects import errors

DAY = 86400.0


class DbPurge(ActionLister):
    """Forget servers that were deleted some days ago: in every cell, in cell0, then in the API database.

    Until then the API lists them (deleted=true), and a message that comes late finds that they are gone. Where a cell cannot be
    reached its servers are kept, and the exit status is 1. Harmless to repeat, and to interrupt.

    Example: superconductor db purge --days 90
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--days", metavar="N", type=partial(at_least, 1), default=30, help="since the delete (default: 30)")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        api_database, before = self.deployment.api_database, time.time() - parsed_args.days * DAY
        results: list[Row] = []
        purged: set[str] = set()
        for mapping in administration.list_cells(api_database):
            try:
                count = _all_pages(self.deployment.registry.get(mapping.uuid).write, purge.rows, before)
            except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
                self.status = 1
                self.warn(f"{error}; its servers are kept")
                continue
            purged.add(mapping.uuid)
            results.append((mapping.name, count))
        count = _all_pages(api_database.write, purge.servers, before, purged)
        return ("Database", "Servers"), [("api", count), *results]


def _all_pages(write: Callable[..., int], page: Callable[..., int], *values: object) -> int:
    total = 0
    while count := write(page, *values):
        total += count
    return total
