"""Flavors in the API database."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from db.api import epochs
from db.api.epochs import Epoch
from db.api.tables import flavors
from db.sql import named
from db.sql.connection import ApiTransaction
from objects import errors, stored
from objects.flavor import Flavor


def create(tx: ApiTransaction, flavor: Flavor) -> None:
    """Add a flavor. Raises Conflict if its id or name is taken."""
    named.insert(tx, flavors, _values(flavor), _what(flavor))
    epochs.bump(tx, Epoch.FLAVORS)


def get(tx: ApiTransaction, flavor_id: str) -> Flavor:
    """Return the flavor with this id. Raises NotFound."""
    return _flavor(
        named.found(tx.execute(sa.select(flavors).where(flavors.c.flavor_id == flavor_id)).first(), f"Flavor '{flavor_id}'")
    )


def find(tx: ApiTransaction, reference: str) -> Flavor:
    """The flavor with this id or, if there is none, with this name. Raises NotFound."""
    rows = tx.execute(sa.select(flavors).where((flavors.c.flavor_id == reference) | (flavors.c.name == reference))).all()
    if not rows:
        raise errors.NotFound(f"Flavor '{reference}' not found")
    return _flavor(max(rows, key=lambda row: bool(row.flavor_id == reference)))


def list_all(tx: ApiTransaction) -> list[Flavor]:
    """All flavors by id."""
    return [_flavor(row) for row in tx.execute(sa.select(flavors).order_by(flavors.c.flavor_id))]


def update(tx: ApiTransaction, flavor: Flavor) -> None:
    """Replace all but the id; servers keep their copy of the old flavor. Raises NotFound, and Conflict if the name is taken."""
    named.update(tx, sa.update(flavors).where(flavors.c.flavor_id == flavor.flavor_id), _values(flavor), _what(flavor))
    epochs.bump(tx, Epoch.FLAVORS)


def delete(tx: ApiTransaction, flavor_id: str) -> None:
    """Delete the flavor; its servers keep their copies. Raises NotFound."""
    named.delete(tx, sa.delete(flavors).where(flavors.c.flavor_id == flavor_id), f"Flavor '{flavor_id}'")
    epochs.bump(tx, Epoch.FLAVORS)


def _what(flavor: Flavor) -> str:
    return f"Flavor '{flavor.name}'" if flavor.name == flavor.flavor_id else f"Flavor '{flavor.name}' ({flavor.flavor_id})"


def _values(flavor: Flavor) -> dict[str, Any]:
    return msgspec.structs.asdict(flavor) | {"extra_specs": stored.dump(flavor.extra_specs)}


def _flavor(row: sa.Row[Any]) -> Flavor:
    return Flavor(**{**row._mapping, "extra_specs": stored.load(row.extra_specs, dict[str, str])})
