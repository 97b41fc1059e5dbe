"""Compares what the databases say of servers, claims and hosts, and repairs what does not agree.

Each file compares one kind of row. Repairs that need a guard are written by ``db``.
"""
