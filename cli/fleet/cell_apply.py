"""``superconductor cell apply``: make the cells what a file says."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from cells import administration, declaration
from cells.administration import CellChange, NewCell
from cells.declaration import CellStep
from cli.fleet.cell import prepare_new, trial_of
from cli.shared.base import Admin
from objects import errors
from objects.cell import CellMapping
from objects.mask import mask_url


class CellApply(Admin):
    """Create and change cells as a YAML file says. Applying the same file again changes nothing.

    Values that the file does not give do not change. Cells that are not in the file are named and not changed. New cells get their
    schema, and changed URLs are tried first. If a cell is refused, the others are applied and the exit status is 1: correct
    the file and apply it again. Each step is printed: + for a new cell, ~ for a changed one; with -v also unchanged cells.

    The file:
      cells:
        - name: cell0
          cell0: true
          database_connection: mysql://sc:PASSWORD@db-api/sc_cell0
        - name: east
          database_connection: mysql://sc:PASSWORD@db-east/sc
          transport_url: rabbit://sc:PASSWORD@mq-east/sc
          state: enabled

    Example: superconductor cell apply -f cells.yaml --dry-run
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-f", "--file", metavar="FILE", type=Path, required=True, help="the YAML file")
        parser.add_argument("--dry-run", action="store_true", help="only print what would change")
        parser.add_argument(
            "--check", action=argparse.BooleanOptionalAction, default=True, help="try new URLs before they are saved (default: yes)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        declared = declaration.read(parsed_args.file)
        steps = declaration.plan_steps(declared, administration.list_cells(self.deployment.api_database))

        def take_step(step: CellStep) -> None:
            if not parsed_args.dry_run:
                self._apply_step(step, check=parsed_args.check)
            if not self.is_quiet and (self.is_verbose or step.new or step.change):
                print(_step_line(step), file=self.app.stdout)

        self.do_each(steps, take_step)

    def _apply_step(self, step: CellStep, *, check: bool) -> None:
        database, local = self.deployment.api_database, self.deployment.local_values
        try:
            if step.new is not None:
                administration.create_cell(database, step.new, prepare_new if check else None, local=local)
            elif step.change is not None:
                prepare = trial_of(step.change) if check else None
                administration.change_cell(database, step.name, step.change, prepare, local=local)
        except errors.DatabaseUnavailable as error:  # of the cell, or of all: then the next step says so too
            raise errors.Invalid(f"cell {step.name!r}: {error}") from None


def _step_line(step: CellStep) -> str:
    if step.new is not None:
        return f"+ {step.name}: {', '.join(_describe_new(step.new))}"
    if step.change is not None and step.before is not None:
        return f"~ {step.name}: {', '.join(_list_differences(step.before, step.change))}"
    return f"  {step.name}: {'stays' if step.declared else 'not in the file, stays'}"


def _describe_new(new: NewCell) -> Iterator[str]:
    yield f"database_connection {mask_url(new.database_url)}"
    if new.transport_url:
        yield f"transport_url {mask_url(new.transport_url)}"
    yield f"state {new.state}"


def _list_differences(before: CellMapping, change: CellChange) -> Iterator[str]:
    """What will be different, with passwords masked."""
    for key, name in (("database_url", "database_connection"), ("transport_url", "transport_url"), ("state", "state")):
        after = getattr(change, key)
        if after is not None:
            old, new = mask_url(getattr(before, key)), mask_url(after)
            yield f"{name} {old} -> {new}" if old != new else f"{name}: another password in {new}"
