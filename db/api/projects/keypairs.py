"""Key pairs in the API database."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.rows.tables import keypairs
from db.sql import by_name
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable, read_one
from objects import errors
from objects.keypair import KeyPair, KeyType
from objects.quota import UNLIMITED

_ONE = sa.select(keypairs).where(keypairs.c.user_id == sa.bindparam("user"), keypairs.c.name == sa.bindparam("name"))
_COUNT = sa.select(sa.func.count()).select_from(keypairs).where(keypairs.c.user_id == sa.bindparam("user"))


def create(tx: ApiTransaction, pair: KeyPair, limit: int = UNLIMITED) -> None:
    """Add a key pair; ``limit``: the most that its user may have. Creates at the same moment may exceed it by their number.

    Raises Conflict if the user has a key pair of this name, and OverQuota.
    """
    if limit != UNLIMITED and tx.execute(_COUNT, {"user": pair.user_id}).scalar_one() >= limit:
        raise errors.OverQuota("Quota exceeded, too many key pairs.")
    values = msgspec.structs.asdict(pair) | {"key_type": str(pair.key_type)}
    del values["id"]
    by_name.insert_row(tx, keypairs, values, f"Key pair '{pair.name}'")


def get(tx: ApiTransaction, user_id: str, name: str) -> KeyPair:
    """Raises NotFound."""
    row = tx.execute(_ONE, {"user": user_id, "name": name}).one_or_none()
    return read_one(by_name.require_row(row, _describe_keypair(user_id, name)), _keypair_from_row, keypairs)


def public_key(tx: ApiTransaction, user_id: str, name: str) -> str | None:
    """The text of this key; None if the user has none of this name."""
    row = tx.execute(_ONE, {"user": user_id, "name": name}).one_or_none()
    return None if row is None else read_one(row, lambda key_row: str(key_row.public_key), keypairs)


def list_page(tx: ApiTransaction, user_id: str, limit: int | None = None, marker: str | None = None) -> list[KeyPair]:
    """The key pairs of a user by name: at most ``limit``, after the one named ``marker``. Raises NotFound for the marker."""
    query = sa.select(keypairs).where(keypairs.c.user_id == user_id).order_by(keypairs.c.name).limit(limit)
    if marker is not None:
        query = query.where(keypairs.c.name > get(tx, user_id, marker).name)
    return convert_readable(tx.execute(query), _keypair_from_row, keypairs)


def delete(tx: ApiTransaction, user_id: str, name: str) -> None:
    """Delete a key pair; servers keep the key that they were booted with. Raises NotFound."""
    statement = sa.delete(keypairs).where(keypairs.c.user_id == user_id, keypairs.c.name == name)
    by_name.delete(tx, statement, _describe_keypair(user_id, name))


def _describe_keypair(user_id: str, name: str) -> str:
    return f"Keypair {name[:255]!r} of user {user_id!r}"


def _keypair_from_row(row: sa.Row[Any]) -> KeyPair:
    return KeyPair(**{**row._mapping, "key_type": KeyType(row.key_type)})
