"""The schema that the first cell databases were created with. It has the number of the last one of the development before 0.1.0.

A new database gets the tables as they are now instead (``db/sql/sync.py``), so there is nothing to do here.

Revision ID: 0019
"""

from __future__ import annotations

revision = "0019"
down_revision = None


def upgrade() -> None:
    """No database is without a revision here."""
