"""The cells a deployment is to have, written in a file: read it, and say what it would change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from cells.administration import CellChange, NewCell
from objects import errors, typed
from objects.base import Object
from objects.cell import CellMapping, CellState
from objects.text import is_safe

KEYS = ("name", "database_connection", "transport_url", "state", "cell0")
"""What may be said of a cell."""


class DeclaredCell(Object, frozen=True, kw_only=True):
    """One cell of the file, as it is to be. What the file leaves out is None, and stays as it is where the cell exists."""

    name: str
    database_url: str | None = None
    transport_url: str | None = None
    state: CellState | None = None
    cell0: bool = False

    def __repr__(self) -> str:
        return f"DeclaredCell({self.name!r})"  # the URLs may hold passwords


class CellStep(Object, frozen=True, kw_only=True):
    """What is to be done with one cell: at most one of ``new`` and ``change`` is there; neither where nothing is to be done.

    ``before`` is the cell as it is; None for one that is new. ``declared`` is False for a cell that the file does not name.
    """

    name: str
    new: NewCell | None = None
    change: CellChange | None = None
    before: CellMapping | None = None
    declared: bool = True

    def __repr__(self) -> str:
        return f"Step({self.name!r})"


def read(path: Path) -> list[DeclaredCell]:
    """The cells of a YAML file. Raises Invalid, with the line, for a file that is none or says what cannot be understood."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise errors.Invalid(f"{path}{line}: {error.problem or 'this is not YAML'}") from None
    except yaml.YAMLError:
        raise errors.Invalid(f"{path}: this is not YAML") from None
    return _DeclarationFile(path).parse_cells(root)


def plan_steps(declared: Sequence[DeclaredCell], existing: Iterable[CellMapping]) -> list[CellStep]:
    """A step per cell, those of the file first and in its order. Raises Invalid where a cell that is new lacks something."""
    there = {mapping.name: mapping for mapping in existing}
    steps = [_plan_step(cell, there.pop(cell.name, None)) for cell in declared]
    return steps + [CellStep(name=name, before=there[name], declared=False) for name in sorted(there)]


def _plan_step(cell: DeclaredCell, before: CellMapping | None) -> CellStep:
    if before is None:
        if cell.database_url is None:
            raise errors.Invalid(f"Cell {cell.name!r} is new and needs a database_connection")
        new = NewCell(
            name=cell.name,
            database_url=cell.database_url,
            transport_url=cell.transport_url or "",
            cell0=cell.cell0,
            state=cell.state or CellState.ENABLED,
        )
        return CellStep(name=cell.name, new=new)
    if cell.cell0 != before.is_cell0:
        raise errors.Invalid(f"Cell {cell.name!r} {'is' if before.is_cell0 else 'is not'} cell0, and cannot become otherwise")
    declared_values = {name: getattr(cell, name) for name in ("database_url", "transport_url", "state")}
    changed = {name: value for name, value in declared_values.items() if value not in (None, getattr(before, name))}
    if not changed:
        return CellStep(name=cell.name, before=before)
    return CellStep(name=cell.name, change=typed.convert_data(changed, CellChange), before=before)


class _DeclarationFile:
    """Reads the nodes of one file, and complains with their lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def parse_cells(self, root: yaml.Node | None) -> list[DeclaredCell]:
        if not isinstance(root, yaml.MappingNode):
            raise errors.Invalid(f"{self._path}:1: a list 'cells:' is expected")
        cells_by_name: dict[str, DeclaredCell] = {}
        for key, value in self._parse_pairs(root, ("cells",)):
            if not isinstance(value, yaml.SequenceNode):
                raise self._invalid_error(value, f"{key} must be a list")
            for node in value.value:
                cell = self._parse_cell(node)
                if cell.name in cells_by_name:
                    raise self._invalid_error(node, f"cell {cell.name!r} is in the list twice")
                cells_by_name[cell.name] = cell
        return list(cells_by_name.values())

    def _parse_cell(self, node: yaml.Node) -> DeclaredCell:
        if not isinstance(node, yaml.MappingNode):
            raise self._invalid_error(node, "a cell is expected: name, database_connection, transport_url")
        values = dict(self._parse_pairs(node, KEYS))
        if "name" not in values:
            raise self._invalid_error(node, "a cell without a name")
        state = self._text_value(values, "state")
        if state is not None and state not in tuple(CellState):
            raise self._invalid_error(values["state"], f"state must be one of {', '.join(CellState)}, not {state[:40]!r}")
        return DeclaredCell(
            name=self._text_value(values, "name") or "",
            database_url=self._text_value(values, "database_connection"),
            transport_url=self._text_value(values, "transport_url"),
            state=None if state is None else CellState(state),
            cell0=self._flag_value(values, "cell0"),
        )

    def _parse_pairs(self, node: yaml.MappingNode, known: Sequence[str]) -> Iterator[tuple[str, yaml.Node]]:
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                raise self._invalid_error(key, f"{name[:40]!r} is not known here; there are: {', '.join(known)}")
            if name in seen:
                raise self._invalid_error(key, f"{name!r} is given twice")
            seen.add(name)
            yield name, value

    def _text_value(self, values: dict[str, yaml.Node], key: str) -> str | None:
        node = values.get(key)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self._invalid_error(node, f"{key} must be a text")
        if not is_safe(node.value):
            raise self._invalid_error(node, f"{key} has control characters")
        return str(node.value)

    def _flag_value(self, values: dict[str, yaml.Node], key: str) -> bool:
        node = values.get(key)
        if node is None:
            return False
        if not isinstance(node, yaml.ScalarNode) or node.value not in ("true", "false"):
            raise self._invalid_error(node, f"{key} must be true or false")
        return bool(node.value == "true")

    def _invalid_error(self, node: yaml.Node, text: str) -> errors.Invalid:
        return errors.Invalid(f"{self._path}:{node.start_mark.line + 1}: {text}")
