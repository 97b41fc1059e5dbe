"""``superconductor db purge`` and ``db archive``: forget servers that were deleted long ago, or put them aside."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cli.shared.archive_file import ArchiveFile
from cli.shared.base import ActionLister, Table, at_least
from cli.shared.databases import OnDatabases, Result, Target
from db.api.reconcile import purge as api_purge
from db.cell import purge as cell_purge
from db.sql.engine import Database
from objects import errors

DAY_S = 86400.0
MIN_AGE_DAYS = 1
"""Days: a tombstone is kept for longer than any process may pause."""


class _Forgetting(OnDatabases, ActionLister):
    """Walks the cells, then the API database, in which servers of those cells are forgotten of which nothing is left."""

    figures = ("Servers",)
    api_first = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        age = parser.add_mutually_exclusive_group()
        age.add_argument(
            "--days", metavar="N", type=partial(at_least, MIN_AGE_DAYS), default=30, help="days since the delete (default: 30)"
        )
        age.add_argument(
            "--before",
            metavar="DATE",
            type=parse_moment,
            help="deleted before that moment instead: 2026-03-31, or 2026-03-31T12:00:00+02:00; UTC where it names no zone",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        self._moment: float | None = parsed_args.before
        self._age: float = parsed_args.days * DAY_S
        self._done: set[str] = set()
        return self.on_each(parsed_args)

    @contextlib.contextmanager
    def _open_target(self, target: Target) -> Iterator[Database]:
        database = Database(target.url, name=target.name)
        try:
            yield database
        finally:
            database.dispose_connections()

    def _list_forgettable(self, database: Database, target: Target, most: int) -> list[str]:
        """A page of servers to forget in this database."""
        most = min(most, cell_purge.SERVERS_PER_TRANSACTION)
        before = self._moment or database.current_time() - self._age
        if target.cell:
            return list(database.read(cell_purge.old_rows, before, most))
        return list(database.read(api_purge.old_servers, before, self._done, most))


class DbPurge(_Forgetting):
    """Forget servers that were deleted some days ago: in every cell, in cell0, then in the API database.

    Until then the API lists them (deleted=true), and a message that comes late finds that they are gone. Where a cell cannot be
    reached its servers are kept, and the exit status is 1. Harmless to repeat, and to interrupt.

    Example: superconductor db purge --days 90
    """

    def work_on(self, target: Target) -> Result:
        count = 0
        forget = cell_purge.forget_rows if target.cell else api_purge.forget_servers
        with self._open_target(target) as database:
            while uuids := self._list_forgettable(database, target, cell_purge.SERVERS_PER_TRANSACTION):
                count += database.write(forget, uuids)
        self._done.add(target.cell)
        return Result("done", (count,))


class DbArchive(_Forgetting):
    """Move servers that were deleted some days ago out of the databases, into files: a line of JSON for each row.

    The files are DIR/api.jsonl and DIR/cells/NAME.jsonl, and only you may read them. Rows are deleted when they are on the disk, a
    batch at a time, beside a running deployment. A run that was interrupted is taken up by the next one; a row may be in the file
    twice then.

    Exit status 0: nothing is left to archive. 1: --max-rows was reached, run it again. 2: a database could not be done.

    Example: superconductor db archive --days 90 --until-complete --to /var/lib/superconductor/archive
    """

    failure = 2

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--to", metavar="DIR", help="folder of the files (default: 'archive' in the folder of --state)")
        parser.add_argument(
            "--max-rows",
            metavar="N",
            type=partial(at_least, 1),
            default=1000,
            help="servers of each database (default: 1000)",
        )
        parser.add_argument("--until-complete", action="store_true", help="all of them, in batches of --max-rows")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        self._folder = self._folder_of(parsed_args)
        self._most, self._complete = parsed_args.max_rows, parsed_args.until_complete
        return super().take_action(parsed_args)

    def work_on(self, target: Target) -> Result:
        with self._open_target(target) as database, contextlib.ExitStack() as stack:
            count = 0
            file: ArchiveFile | None = None
            while self._complete or count < self._most:
                uuids = self._list_forgettable(database, target, self._most if self._complete else self._most - count)
                if not uuids:
                    break
                file = file or stack.enter_context(ArchiveFile(self._folder / file_of(target)))
                count += self._move_rows(database, target, uuids, file)
            if self._list_forgettable(database, target, 1):
                self.status = self.status or 1
                return Result("more is left: run it again", (count,))
        self._done.add(target.cell)
        return Result("done", (count,))

    def _move_rows(self, database: Database, target: Target, uuids: list[str], file: ArchiveFile) -> int:
        copy, forget = (
            (cell_purge.lines_of_rows, cell_purge.forget_rows)
            if target.cell
            else (api_purge.lines_of_servers, api_purge.forget_servers)
        )
        file.append_lines(database.read(copy, uuids))
        return database.write(forget, uuids)

    def _folder_of(self, args: argparse.Namespace) -> Path:
        if args.to:
            return Path(args.to)
        if self.deployment.state_folder is None:
            raise errors.Invalid("no folder for the archive is given: give --to DIR")
        return self.deployment.state_folder / "archive"


def file_of(target: Target) -> str:
    """Where in the folder a database is archived to. A cell may be called 'api' too."""
    return f"cells/{target.name}.jsonl" if target.cell else "api.jsonl"


def parse_moment(text: str) -> float:
    """The same as ``date_of``; a day ago at least."""
    seconds = date_of(text)
    if seconds > time.time() - MIN_AGE_DAYS * DAY_S:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a day ago: rows of recent deletes must be kept")
    return seconds


def date_of(text: str) -> float:
    """An ISO date or time, UTC where it says no zone, as seconds since the epoch."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2026-03-31 or 2026-03-31T12:00:00+02:00") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
