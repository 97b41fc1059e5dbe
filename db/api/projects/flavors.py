"""Flavors in the API database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import flavor_access, flavors
from db.sql import by_name
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.readable import convert_readable
from objects import errors, stored
from objects.flavor import Flavor


def create(tx: ApiTransaction, flavor: Flavor) -> None:
    """Add a flavor. Raises Conflict if its id or name is taken."""
    by_name.insert_row(tx, flavors, _column_values(flavor), _describe_flavor(flavor))
    epochs.bump_epoch(tx, Epoch.FLAVORS)


def get(tx: ApiTransaction, flavor_id: str) -> Flavor:
    """Return the flavor with this id. Raises NotFound."""
    return _read(
        by_name.require_row(tx.execute(sa.select(flavors).where(flavors.c.flavor_id == flavor_id)).first(), f"Flavor '{flavor_id}'")
    )


def find_flavor(tx: ApiTransaction, reference: str) -> Flavor:
    """The flavor with this id or, if there is none, with this name. Raises NotFound."""
    rows = tx.execute(sa.select(flavors).where((flavors.c.flavor_id == reference) | (flavors.c.name == reference))).all()
    if not rows:
        raise errors.NotFound(f"Flavor '{reference}' not found")
    return _read(max(rows, key=lambda row: bool(row.flavor_id == reference)))


def list_all(tx: ApiTransaction) -> list[Flavor]:
    """All flavors by id."""
    return convert_readable(tx.execute(sa.select(flavors).order_by(flavors.c.flavor_id)), _flavor_from_row, flavors)


def change_flavor(tx: ApiTransaction, flavor_id: str, edit: Callable[[Flavor], Flavor]) -> Flavor:
    """Replace the flavor with this id by what ``edit`` makes of it, and return that; servers keep their copy of the old one.

    Of two changes at once the second begins with the result of the first. Raises NotFound, and Conflict if a new name is taken.
    """
    epochs.bump_epoch(tx, Epoch.FLAVORS)  # first: it locks the epoch's row until the commit
    changed = edit(get(tx, flavor_id))
    by_name.update_row(
        tx, sa.update(flavors).where(flavors.c.flavor_id == changed.flavor_id), _column_values(changed), _describe_flavor(changed)
    )
    return changed


def list_projects(tx: ApiTransaction, flavor_id: str) -> list[str]:
    """The projects that were given access to a flavor, in order."""
    query = sa.select(flavor_access.c.project_id).where(flavor_access.c.flavor_id == flavor_id)
    return list(tx.execute(query.order_by(flavor_access.c.project_id)).scalars())


def projects_of_all(tx: ApiTransaction) -> dict[str, frozenset[str]]:
    """The same for every flavor that a project was given access to."""
    projects_by_flavor: dict[str, set[str]] = {}
    for row in tx.execute(sa.select(flavor_access.c.flavor_id, flavor_access.c.project_id)):
        projects_by_flavor.setdefault(row.flavor_id, set()).add(row.project_id)
    return {flavor_id: frozenset(project_ids) for flavor_id, project_ids in projects_by_flavor.items()}


def grant_access(tx: ApiTransaction, flavor_id: str, project_id: str) -> None:
    """Give a project access to a flavor. Raises NotFound, and Conflict if it has access."""
    epochs.bump_epoch(tx, Epoch.FLAVORS)  # first: a delete of the flavor waits, or has been seen by the next line
    get(tx, flavor_id)
    try:
        tx.execute(sa.insert(flavor_access), {"flavor_id": flavor_id, "project_id": project_id})
    except DuplicateEntry:
        text = f"Flavor access already exists for flavor {flavor_id} and project {project_id} combination."
        raise errors.Conflict(text) from None


def revoke_access(tx: ApiTransaction, flavor_id: str, project_id: str) -> None:
    """Take a project's access to a flavor away; its servers stay. Raises NotFound."""
    epochs.bump_epoch(tx, Epoch.FLAVORS)
    get(tx, flavor_id)
    mine = (flavor_access.c.flavor_id == flavor_id, flavor_access.c.project_id == project_id)
    if tx.execute(sa.delete(flavor_access).where(*mine)).rowcount == 0:
        raise errors.NotFound(f"Flavor access not found for {flavor_id} / {project_id} combination.")


def delete(tx: ApiTransaction, flavor_id: str) -> None:
    """Delete the flavor; its servers keep their copies. Raises NotFound."""
    epochs.bump_epoch(tx, Epoch.FLAVORS)
    tx.execute(sa.delete(flavor_access).where(flavor_access.c.flavor_id == flavor_id))
    by_name.delete(tx, sa.delete(flavors).where(flavors.c.flavor_id == flavor_id), f"Flavor '{flavor_id}'")


def _describe_flavor(flavor: Flavor) -> str:
    return f"Flavor '{flavor.name}'" if flavor.name == flavor.flavor_id else f"Flavor '{flavor.name}' ({flavor.flavor_id})"


def _column_values(flavor: Flavor) -> dict[str, Any]:
    return msgspec.structs.asdict(flavor) | {"extra_specs": stored.dump_value(flavor.extra_specs)}


def _read(row: sa.Row[Any]) -> Flavor:
    """Raises NotFound for one that cannot be read."""
    flavors_read = convert_readable([row], _flavor_from_row, flavors)
    if not flavors_read:
        raise errors.NotFound(f"Flavor {row.flavor_id} cannot be read: its row is damaged; delete it, and make it again")
    return flavors_read[0]


def _flavor_from_row(row: sa.Row[Any]) -> Flavor:
    flavor = Flavor(**{**row._mapping, "extra_specs": stored.load_text(row.extra_specs, dict[str, str])})
    return stored.load_text(stored.dump_value(flavor), Flavor)  # compares the types, which SQLite does not
