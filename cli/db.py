"""``superconductor db``: the schemas of the API database, of cell0 and of every cell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from cli.base import ActionLister, Admin, AdminLister, Row, Table
from db import sync
from objects import errors
from objects.mask import mask_url


class Target(NamedTuple):
    """One database to work on."""

    name: str
    kind: sync.Kind
    url: str
    used: bool = False  # a cell that hosts or servers are mapped to


class Result(NamedTuple):
    """The version a database has now, None for none, and what there is to say about it."""

    version: str | None
    text: str


class OnDatabases(Admin):
    """Which databases, and one result for each, whatever becomes of the others."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--api", action="store_true", help="the API database")
        parser.add_argument("--cell0", action="store_true", help="the database of cell0")
        parser.add_argument(
            "--cell", dest="cells", metavar="CELL", action="append", default=[], help="that of a cell; may be repeated"
        )
        parser.add_argument("--all", action="store_true", help="all of them (default)")

    def on(self, target: Target) -> Result:
        """What the command does with one database."""
        raise NotImplementedError

    def on_each(self, args: argparse.Namespace) -> Table:
        """A row for each database. Errors are told on standard error too, and make the exit status 1."""
        rows: list[Row] = []
        try:
            rows += (self._row(target) for target in self._targets(args))
        except errors.SuperconductorError as error:  # of finding out which databases there are
            if not rows:
                raise
            self._failed("cells", error)
        return ("Database", "Kind", "Version", "Result"), rows

    def _targets(self, args: argparse.Namespace) -> Iterator[Target]:
        """The API database comes first: on a new deployment the table of cells is made by that."""
        from cells import administration

        everything = args.all or not (args.api or args.cell0 or args.cells)
        if args.api or everything:
            yield Target("api", "api", self.deployment.api_url)
        if args.cell0 or args.cells or everything:
            wanted = [*(["cell0"] if args.cell0 else []), *args.cells]
            mappings = administration.list_cells(self.deployment.api_database)
            if not everything:
                found = {administration.find_cell(self.deployment.api_database, name).uuid for name in wanted}
                mappings = [mapping for mapping in mappings if mapping.uuid in found]
            used = administration.used_cells(self.deployment.api_database)
            for mapping in mappings:
                yield Target(mapping.name, "cell", mapping.database_url, mapping.uuid in used)

    def _row(self, target: Target) -> Row:
        try:
            result = self.on(target if target.kind == "api" else target._replace(url=self._expanded(target.url)))
        except errors.SuperconductorError as error:
            result = Result(None, self._failed(target.name, error))
        except Exception as error:  # noqa: BLE001 - whatever it was, the databases after this one get their turn
            result = Result(None, self._failed(target.name, errors.SuperconductorError(f"{type(error).__name__}: {error}")))
        return target.name, target.kind, result.version, result.text

    def _expanded(self, url: str) -> str:
        from cells import template

        return template.expand_database(url, self.deployment.local)

    def _failed(self, name: str, error: errors.SuperconductorError) -> str:
        self.status = 1
        self.warn(f"{name}: {error}")
        return mask_url(f"failed: {error}")


class DbSync(OnDatabases, ActionLister):
    """Bring the schemas of the databases up to date: the API database, then cell0 and every cell.

    A database that fails does not keep the others from being done; the exit status is 1 then. Harmless to repeat.

    Examples:
      superconductor db sync
      superconductor db sync --cell east --cell west
    """

    def on(self, target: Target) -> Result:
        if target.used and sync.is_missing(target.url):
            # an empty database in its place would disown every guest of the cell
            raise errors.DatabaseUnavailable("its file is gone, but hosts or servers are mapped to this cell: put the file back")
        return Result(sync.sync(target.url, target.kind), "up to date")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return self.on_each(parsed_args)


class DbVersion(OnDatabases, AdminLister):
    """Show the schema version of each database, and whether it is the latest.

    Example: superconductor db version --all
    """

    def on(self, target: Target) -> Result:
        version, latest = sync.current(target.url, target.kind), sync.latest(target.kind)
        if version == latest:
            return Result(version, "up to date")
        return Result(version, f"run 'superconductor db sync': the latest is {latest}")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return self.on_each(parsed_args)
