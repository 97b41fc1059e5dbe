"""The tables of the API database, and what all queries share: epochs, caches, ledger stamps, incarnations, metering.

A new table goes into ``tables.py``, with a migration. Queries on one subject belong in its folder.
"""
