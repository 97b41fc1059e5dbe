"""The only SQL: tables, migrations and queries of the API database and of the cell databases."""
