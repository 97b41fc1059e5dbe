"""A cell's database: its tables, their migrations and all queries on them. Never imports ``db.api``."""
