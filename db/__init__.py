"""The only SQL. ``db.api`` is for the API database, ``db.cell`` for the cells' databases; a module at the root serves both."""
