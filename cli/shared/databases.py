"""What commands of ``superconductor db`` have in common: which databases, and a result for each whatever becomes of the others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from cli.shared.base import Admin, Row, Table
from db.sql.sync import Kind
from objects import errors
from objects.mask import mask_url


class Target(NamedTuple):
    """One database to work on. ``cell``: the uuid of its cell, "" for the API database."""

    name: str
    kind: Kind
    url: str
    cell: str = ""


class Result(NamedTuple):
    """What there is to say about a database, and before that the figures that the command's columns show."""

    text: str
    figures: tuple[object, ...] = ()


class OnDatabases(Admin):
    """A command for one, some or all databases.

    Errors are told on standard error too, and make the exit status ``failure``.
    """

    figures: tuple[str, ...] = ()
    """Columns between the name and the result."""
    failure = 1
    api_first = True
    """Else it comes last, after what cells and cell0 do."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--api", action="store_true", help="the API database")
        parser.add_argument("--cell0", action="store_true", help="the database of cell0")
        parser.add_argument(
            "--cell", dest="cells", metavar="CELL", action="append", default=[], help="that of a cell; may be repeated"
        )
        parser.add_argument("--all-cells", action="store_true", help="cell0 and every cell")
        parser.add_argument("--all", action="store_true", help="all of them (default)")

    def work_on(self, target: Target) -> Result:
        """What the command does with one database."""
        raise NotImplementedError

    def on_each(self, args: argparse.Namespace) -> Table:
        """A row for each database."""
        rows: list[Row] = []
        try:
            rows += (self._result_row(target) for target in self.list_targets(args))
        except errors.SuperconductorError as error:  # of finding out which databases there are
            if not rows:
                raise
            self._failed_result("cells", error)
        return ("Database", "Kind", *self.figures, "Result"), rows

    def list_targets(self, args: argparse.Namespace) -> Iterator[Target]:
        """Those that were asked for. Cells are looked for late: on a new deployment, their table is made by what is done first."""
        everything = self.wants_everything(args)
        api = Target("api", "api", self.deployment.api_url)
        if self.api_first and (args.api or everything):
            yield api
        if everything or args.all_cells or args.cell0 or args.cells:
            yield from self._cell_targets(args, everything or args.all_cells)
        if not self.api_first and (args.api or everything):
            yield api

    def wants_everything(self, args: argparse.Namespace) -> bool:
        """Whether all databases are asked for."""
        return bool(args.all or not (args.api or args.cell0 or args.cells or args.all_cells))

    def _cell_targets(self, args: argparse.Namespace, every: bool) -> Iterator[Target]:
        from cells import administration

        mappings = administration.list_cells(self.deployment.api_database)
        if not every:
            names = [*(["cell0"] if args.cell0 else []), *args.cells]
            uuids = {administration.find_cell(self.deployment.api_database, name).uuid for name in names}
            mappings = [mapping for mapping in mappings if mapping.uuid in uuids]
        for mapping in mappings:
            yield Target(mapping.name, "cell", mapping.database_url, mapping.uuid)

    def _result_row(self, target: Target) -> Row:
        try:
            result = self.work_on(target if target.kind == "api" else target._replace(url=self._expand_url(target.url)))
        except errors.SuperconductorError as error:
            result = self._failed_result(target.name, error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the databases after this one get their turn
            result = self._failed_result(target.name, errors.SuperconductorError(f"{type(error).__name__}: {error}"))
        return target.name, target.kind, *result.figures, result.text

    def _expand_url(self, url: str) -> str:
        from cells import template

        return template.expand_database(url, self.deployment.local_values)

    def _failed_result(self, name: str, error: errors.SuperconductorError) -> Result:
        self.status = self.failure
        self.warn_user(f"{name}: {error}")
        return Result(mask_url(f"failed: {error}"), (None,) * len(self.figures))
