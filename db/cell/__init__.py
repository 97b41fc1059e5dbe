"""A cell's database: its tables, migrations and queries.

It never imports ``db.api``. What both kinds of databases have, such as outboxes, stands at the root of ``db``.
"""
