"""Schema changes, applied by ``db/sync.py`` with Alembic: one history for the API database, one for cell databases."""
