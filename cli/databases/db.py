"""``superconductor db sync`` and ``db version``: the schemas of the API database, of cell0 and of every cell."""

from __future__ import annotations

import argparse
from functools import cached_property

from cli.shared.base import ActionLister, AdminLister, Table
from cli.shared.databases import OnDatabases, Result, Target
from db.sql import sync
from objects import errors


class DbSync(OnDatabases, ActionLister):
    """Bring the schemas of the databases up to date: the API database, then cell0 and every cell.

    A database that fails does not keep the others from being done; the exit status is 1 then. Harmless to repeat.

    Examples:
      superconductor db sync
      superconductor db sync --cell east --cell west
    """

    figures = ("Version",)

    def work_on(self, target: Target) -> Result:
        if target.cell and target.cell in self._used_cells and sync.is_missing(target.url):
            # an empty database in its place would disown every guest of the cell
            raise errors.DatabaseUnavailable("its file is gone, but hosts or servers are mapped to this cell: put the file back")
        return Result("up to date", (sync.sync_schema(target.url, target.kind),))

    @cached_property
    def _used_cells(self) -> set[str]:
        """The cells that hosts or servers are mapped to. The API database has its schema when this is asked."""
        from cells import administration

        return administration.used_cells(self.deployment.api_database)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return self.on_each(parsed_args)


class DbVersion(OnDatabases, AdminLister):
    """Show the schema version of each database, and whether it is the latest. Exit status 1 where one cannot be asked.

    Example: superconductor db version --all-cells
    """

    figures = ("Version",)

    def work_on(self, target: Target) -> Result:
        version, latest = sync.current_version(target.url, target.kind), sync.latest_version(target.kind)
        advice = "up to date" if version == latest else f"run 'superconductor db sync': the latest is {latest}"
        return Result(advice, (version,))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return self.on_each(parsed_args)
