"""Restore request specs that the API database lost from the copies in the cells."""

from __future__ import annotations

from collections.abc import Mapping

from db.api import spec_fields
from db.api.tables import request_specs
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects import stored
from objects.spec import RequestSpec


def put_back(tx: ApiTransaction, specs: Mapping[str, str], now: float) -> int:
    """Insert the missing ones of these specs (stored texts by batch id); return how many."""
    decoded = {batch: stored.load_or_none(text, RequestSpec) for batch, text in sorted(specs.items())}
    rows = [
        {"batch_id": batch, "spec": specs[batch], "created_at": now, **spec_fields.columns(spec)} for batch, spec in decoded.items()
    ]
    written = dialect.insert_new(tx, request_specs, rows)
    spec_fields.label(tx, decoded)
    return written
