"""Searching the selections that are stored with builds and claims, of both levels."""

from __future__ import annotations

import sqlalchemy as sa

from objects import stored


def on_host(selections: sa.Column[str], host: str) -> sa.ColumnElement[bool]:
    """Stored Selections one of which is on this host."""
    return selections.contains(f'"host":{stored.dump_value(host)}', autoescape=True)
