"""Beside an existing OpenStack Nova: its hosts, claims and requests read from its databases, for the scheduler's own table.

Only ``readers`` has SQL, for the tables that ``schema`` declares. Every connection refuses writes.
"""
