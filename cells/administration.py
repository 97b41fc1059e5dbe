"""What an operator does to cells: create, change, delete. Works on the API database alone, beside a running deployment."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import msgspec

from cells import template
from cells.template import NOTHING, Local
from cells.urls import NO_TRANSPORT, database_place, transport_place
from db.api.deployment import cell_mappings, host_mappings
from db.api.deployment.cell_mappings import HasHosts
from db.api.reconcile import cell_removal
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.servers import mappings
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.base import Object
from objects.cell import CELL0_UUID, CellMapping, CellState

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


class NewCell(Object, frozen=True, kw_only=True):
    """What a cell is created from. cell0 has a fixed uuid and no transport."""

    name: str
    database_url: str
    transport_url: str = ""
    cell0: bool = False
    state: CellState = CellState.ENABLED

    def __repr__(self) -> str:
        return f"NewCell({self.name!r})"  # the URLs may hold passwords


class CellChange(Object, frozen=True, kw_only=True):
    """What is to be different; None stays as it is."""

    name: str | None = None
    database_url: str | None = None
    transport_url: str | None = None
    state: CellState | None = None

    def __repr__(self) -> str:
        return f"CellChange({self.name!r}, {self.state!r})"  # the URLs may hold passwords


Prepare = Callable[[CellMapping], object]
"""Called with the mapping, its templates expanded, after all checks and before it is saved: to apply the schema, or to try it."""


def create_cell(api_database: ApiDatabase, new: NewCell, prepare: Prepare | None = None, *, local: Local = NOTHING) -> CellMapping:
    """Register a cell. Every process that follows the cells' epoch uses it within seconds.

    What ``prepare`` raises is raised here, and then nothing was saved. Raises Invalid or Misconfigured for a malformed name or URL,
    or a template that ``local`` cannot fill in, and Conflict where the name or a place that the URLs mean belongs to another cell.
    """
    mapping = _mapping_of(new)
    expanded = _checked_mapping(mapping, local)
    api_database.read(_refuse_duplicates, expanded, local)
    if prepare is not None:
        prepare(expanded)
    return api_database.write(_create, mapping, local)


def change_cell(
    api_database: ApiDatabase, name_or_uuid: str, change: CellChange, prepare: Prepare | None = None, *, local: Local = NOTHING
) -> CellMapping:
    """Change a cell under running processes, which follow within seconds; what is not given stays.

    ``prepare`` is called as by ``create_cell``. Raises NotFound, Invalid or Misconfigured for what is malformed, and Conflict where
    a name or place belongs to another cell, or somebody else has changed the cell meanwhile.
    """
    before = find_cell(api_database, name_or_uuid)
    after = _changed_mapping(before, change)
    if after == before:
        return before
    moved = (after.name, after.database_url, after.transport_url) != (before.name, before.database_url, before.transport_url)
    if not moved:
        return api_database.write(cell_mappings.update_mapping, after)
    expanded = _checked_mapping(after, local)
    api_database.read(_refuse_duplicates, expanded, local)
    if prepare is not None:
        prepare(expanded)
    return api_database.write(_move_mapping, after, local)


def delete_cell(api_database: ApiDatabase, name_or_uuid: str, *, with_hosts: bool = False) -> CellMapping:
    """Forget a cell that holds no servers; its databases are left alone. Returns what was forgotten.

    ``with_hosts``: also forget which hosts belong to it. Raises NotFound, Invalid for cell0, and Conflict while there are servers,
    deletes that the cell has not confirmed, claims or, unless they are to be forgotten, hosts.
    """
    mapping = find_deletable(api_database, name_or_uuid)
    api_database.write(_delete, mapping, with_hosts)
    return mapping


def find_deletable(api_database: ApiDatabase, name_or_uuid: str) -> CellMapping:
    """The cell. Raises NotFound, and Invalid for cell0."""
    mapping = find_cell(api_database, name_or_uuid)
    if mapping.is_cell0:
        raise errors.Invalid("cell0 cannot be deleted: it holds servers that never got a host.")
    return mapping


def list_cells(api_database: ApiDatabase) -> list[CellMapping]:
    """All cells by name, cell0 first."""
    return sorted(api_database.read(cell_mappings.list_all), key=lambda m: (not m.is_cell0, m.name))


def find_cell(api_database: ApiDatabase, name_or_uuid: str) -> CellMapping:
    """Raises NoSuchCell, naming the cells there are."""
    mappings = list_cells(api_database)
    for mapping in mappings:
        if name_or_uuid in (mapping.name, mapping.uuid):
            return mapping
    known = f"there are: {', '.join(m.name for m in mappings)}" if mappings else "there is none yet"
    raise errors.NoSuchCell(f"No cell is called {name_or_uuid!r}; {known}.")


def _mapping_of(new: NewCell) -> CellMapping:
    _check_name(new.name)
    if new.cell0 and new.transport_url not in ("", NO_TRANSPORT):
        raise errors.Invalid(f"cell0 has no bus: leave its transport URL out, or give {NO_TRANSPORT}")
    if new.cell0 and new.state is not CellState.ENABLED:
        raise errors.Invalid(f"cell0 cannot be {new.state}.")
    if not new.cell0 and not new.transport_url:
        raise errors.Invalid(f"Cell {new.name!r} needs a transport URL, as rabbit://user:password@host:5672/vhost")
    return CellMapping(
        uuid=CELL0_UUID if new.cell0 else str(uuid.uuid4()),
        name=new.name,
        database_url=new.database_url,
        transport_url=NO_TRANSPORT if new.cell0 else new.transport_url,
        state=new.state,
    )


def _checked_mapping(mapping: CellMapping, local: Local) -> CellMapping:
    """The mapping with its templates expanded. Raises where a URL, or a template, cannot be right."""
    expanded = template.expand_mapping(mapping, local)
    database_place(expanded.database_url)
    if not mapping.is_cell0:
        transport_place(expanded.transport_url)
    return expanded


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise errors.Invalid(f"Cell name {name!r} must be letters, digits, '.', '_' and '-', and begin with a letter or digit.")
    if _UUID.fullmatch(name):
        raise errors.Invalid(f"Cell name {name!r} looks like a UUID: commands would not know which cell is meant")


def _changed_mapping(before: CellMapping, change: CellChange) -> CellMapping:
    if change.name is not None:
        _check_name(change.name)
    if before.is_cell0 and change.transport_url is not None:
        raise errors.Invalid("cell0 has no bus.")
    if before.is_cell0 and change.state not in (None, CellState.ENABLED):
        raise errors.Invalid(f"cell0 cannot be {change.state}.")
    values = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
    return msgspec.structs.replace(before, **values)


def _move_mapping(tx: ApiTransaction, mapping: CellMapping, local: Local) -> CellMapping:
    epochs.bump_epoch(tx, Epoch.CELLS)  # first: its lock keeps what is looked at true, here and below
    _refuse_duplicates(tx, template.expand_mapping(mapping, local), local)
    return cell_mappings.update_mapping(tx, mapping)


def _delete(tx: ApiTransaction, mapping: CellMapping, with_hosts: bool) -> None:
    if not with_hosts and (count := sum(home == mapping.uuid for home in host_mappings.cell_uuid_by_host(tx).values())):
        raise HasHosts(f"Cell '{mapping.name}' still has {count} hosts: delete them, or give --with-hosts")
    cell_removal.forget_cell(tx, mapping.uuid)


def _create(tx: ApiTransaction, mapping: CellMapping, local: Local) -> CellMapping:
    epochs.bump_epoch(tx, Epoch.CELLS)
    if mapping.is_cell0 and (other := next((m for m in cell_mappings.list_all(tx) if m.is_cell0), None)) is not None:
        raise errors.Conflict(f"Cell {other.name!r} exists already: it is cell0 already.")
    _refuse_duplicates(tx, template.expand_mapping(mapping, local), local)
    cell_mappings.create(tx, mapping)
    return mapping


def _refuse_duplicates(tx: ApiTransaction, mapping: CellMapping, local: Local) -> None:
    """``mapping`` is an expanded one. Raises Conflict."""
    database, transport = database_place(mapping.database_url), None
    if mapping.transport_url != NO_TRANSPORT:
        transport = transport_place(mapping.transport_url)
    others = [other for other in cell_mappings.list_all(tx) if other.uuid != mapping.uuid]
    for other in others:
        if other.name == mapping.name:
            raise errors.Conflict(f"Cell {other.name!r} exists already: it has the uuid {other.uuid}.")
    for other in others:
        if _place_of(database_place, template.expand_database, other.database_url, local) == database:
            raise _duplicate_error("database", other)
        if transport is not None and _place_of(transport_place, template.expand_transport, other.transport_url, local) == transport:
            raise _duplicate_error("transport", other)


def _duplicate_error(kind: str, other: CellMapping) -> errors.Conflict:
    return errors.Conflict(f"Cell {other.name!r} ({other.uuid}) uses this {kind} already: each cell needs one of its own.")


def _place_of(of: Callable[[str], str], expand: Callable[[str, Local], str], url: str, local: Local) -> str | None:
    """None for a URL that was not saved by us, or cannot be expanded here, and for ``none:///``: equal to no other."""
    try:
        return of(expand(url, local))
    except (errors.Invalid, errors.Misconfigured):
        return None


def used_cells(api_database: ApiDatabase) -> set[str]:
    """The uuids of cells that hosts are mapped to, or servers that are not deleted."""
    hosts = {mapping.cell_uuid for mapping in api_database.read(host_mappings.list_all)}
    return hosts | {count.cell_uuid for count in api_database.read(mappings.count_by_state) if count.cell_uuid is not None}
