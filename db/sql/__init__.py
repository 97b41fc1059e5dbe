"""Databases by kind: engine, transactions, retries, dialects, drivers and schema changes. Nothing here knows a table of ours."""
