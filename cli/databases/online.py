"""``superconductor db online-migrations``: bring rows of an older release up to date."""

from __future__ import annotations

import argparse
from functools import partial

from cli.shared.base import ActionLister, Table, at_least
from cli.shared.databases import OnDatabases, Result, Target
from db import online
from db.sql import ready
from db.sql.engine import Database
from objects import errors


class DbOnlineMigrations(OnDatabases, ActionLister):
    """Update rows that an older release has written, in small batches, while the deployment runs.

    Run it after an upgrade, once the last process of the older release has ended; 'upgrade check' shows whether rows are left. It
    can be repeated and interrupted.

    Exit status 0: nothing is left. 1: --max-count was reached, run it again. 2: a migration failed, or a database cannot be used.

    Examples:
      superconductor db online-migrations
      superconductor db online-migrations --max-count 1000
    """

    figures = ("Migrated", "Left")
    failure = 2

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--max-count", metavar="N", type=partial(at_least, 1), help="maximum rows in this run (default: all)")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        self._rest: int | None = parsed_args.max_count
        return self.on_each(parsed_args)

    def work_on(self, target: Target) -> Result:
        database = Database(target.url, name=target.name)
        try:
            return self._migrate_database(database, target)
        finally:
            database.dispose_connections()

    def _migrate_database(self, database: Database, target: Target) -> Result:
        """Every migration gets its turn. Raises what the first that failed has raised."""
        done = remaining = 0
        failed: list[str] = []
        waiting: list[str] = []
        ready.check_schema(database, target.kind)
        for migration in online.migrations_of(target.kind):
            try:
                count = online.run(database, migration, self._rest)
                rest = database.read(migration.count_left)
            except Exception as error:  # noqa: BLE001 - whatever it was, the migrations after this one get their turn
                failed.append(f"{migration.name}: {error}")
                continue
            self._rest = None if self._rest is None else self._rest - count
            done, remaining = done + count, remaining + rest
            waiting += [migration.name] if rest else []
        if failed:
            raise errors.SuperconductorError("; ".join(failed))
        self.status = self.status or int(bool(remaining))
        return Result(f"run it again for {', '.join(waiting)}" if waiting else "done", (done, remaining))
