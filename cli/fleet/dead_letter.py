"""``superconductor dead-letter``: what a step could not process."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from cells import administration
from cli.shared.base import Admin, AdminLister, Row, Table
from db import dead_letters
from db.dead_letters import DeadLetter, Level
from db.sql.connection import Connection
from objects import errors

P = ParamSpec("P")
T = TypeVar("T")

API_LEVEL = "api"
"""What the API level is called where a cell is named."""


class _Place(NamedTuple):
    """A database with dead letters. ``write`` and ``read`` take a function as ``Database`` does."""

    name: str
    level: Level
    read: Callable[..., list[DeadLetter]]
    write: Callable[..., int]


class _OfPlaces(Admin):
    """A command on the API database and the databases of cells."""

    def list_places(self, cell_name: str | None) -> Iterator[_Place]:
        """All of them, or the one of the cell that is wanted. A cell that cannot be used is told of, and the exit status is 1."""
        database, registry = self.deployment.api_database, self.deployment.cell_registry
        if cell_name in (None, API_LEVEL):
            yield _Place(API_LEVEL, "api", database.read, database.write)
        if cell_name == API_LEVEL:
            return
        uuid = administration.find_cell(database, cell_name).uuid if cell_name is not None else None
        for mapping in administration.list_cells(database):
            if uuid in (None, mapping.uuid):
                try:
                    cell = registry.get(mapping.uuid)
                except errors.SuperconductorError as error:
                    self.warn_refused(error)
                else:
                    yield _Place(cell.name, "cell", cell.read, cell.write)

    def warn_refused(self, error: errors.SuperconductorError) -> None:
        """A cell could not be asked: the others are."""
        self.status = 1
        self.warn_user(str(error))

    def add_cell(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--cell", metavar="CELL", help=f"only those of this cell (name or UUID); '{API_LEVEL}': only those of the API level"
        )


class DeadLetterList(_OfPlaces, AdminLister):
    """List dead letters: items that a step could not process and has set aside, with the reason. Other items are not delayed.

    A dead letter is retried at "Next Try", with growing intervals, and removed once that succeeds. A skipped one is not retried.
    If a cell cannot be reached, it is named on standard error, and the exit status is 1.

    Example: superconductor dead-letter list --cell east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self.add_cell(parser)
        parser.add_argument("--step", metavar="STEP", help="only those of this step")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        columns = ("Place", "Step", "Key", "Since", "Tries", "Last Try", "Next Try", "Reason")
        return columns, list(self._letter_rows(parsed_args.cell, parsed_args.step))

    def _letter_rows(self, cell: str | None, step: str | None) -> Iterator[Row]:
        for place in self.list_places(cell):
            try:
                letters = place.read(dead_letters.list_all, place.level)
            except errors.CellUnavailable as error:
                self.warn_refused(error)
                continue
            for letter in letters:
                if step in (None, letter.step):
                    due = "skipped" if letter.skipped else _format_iso(letter.due)
                    yield (
                        place.name,
                        letter.step,
                        letter.key,
                        _format_iso(letter.first_at),
                        letter.tries,
                        _format_iso(letter.last_at),
                        due,
                        letter.reason,
                    )


class _Decide(_OfPlaces):
    """A command that changes when dead letters are tried again."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("keys", metavar="KEY", nargs="*", help="key as 'dead-letter list' shows it")
        parser.add_argument("--all", action="store_true", help="all dead letters that --cell and --step select, instead of keys")
        self.add_cell(parser)
        parser.add_argument("--step", metavar="STEP", help="only those of this step")

    def decide_letters(
        self, parsed_args: argparse.Namespace, change: Callable[Concatenate[Connection, Level, str, ...], int]
    ) -> None:
        if bool(parsed_args.keys) == parsed_args.all:
            raise errors.Invalid("name the keys, or give --all; 'superconductor dead-letter list' shows them")
        missing = set(parsed_args.keys)
        for place in self.list_places(parsed_args.cell):
            try:
                letters = place.read(dead_letters.list_all, place.level)
                for step in sorted({letter.step for letter in letters if parsed_args.step in (None, letter.step)}):
                    keys = [
                        letter.key
                        for letter in letters
                        if letter.step == step and (parsed_args.all or letter.key in parsed_args.keys)
                    ]
                    place.write(change, place.level, step, keys)
                    missing.difference_update(keys)
            except errors.CellUnavailable as error:
                self.warn_refused(error)
        self.do_each(sorted(missing), _refuse_unknown)


class DeadLetterRetry(_Decide):
    """Have dead letters tried again now, also those that were skipped: within a minute, as conductors read the letters again.

    Example: superconductor dead-letter retry 7c7f2c52-5b0e-4b8e-9d5b-7a5f7e3c5b1a
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.decide_letters(parsed_args, dead_letters.retry_letters)


class DeadLetterSkip(_Decide):
    """Have dead letters not tried again, until 'dead-letter retry'. A build still ends in ERROR at its deadline.

    Example: superconductor dead-letter skip --step feed 7c7f2c52-5b0e-4b8e-9d5b-7a5f7e3c5b1a
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.decide_letters(parsed_args, dead_letters.skip_letters)


def _refuse_unknown(key: str) -> Iterable[object]:
    raise errors.NotFound(f"There is no dead letter of {key!r}")


def _format_iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
