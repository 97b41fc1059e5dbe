"""The API database: its tables, their migrations and all queries on them. Never imports ``db.cell``."""
