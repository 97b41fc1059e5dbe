"""Databases by kind: engine, transactions, retries, dialects, drivers and schema changes.

Nothing here knows a table. What depends on a private part of a library is in a file of its own.
"""
