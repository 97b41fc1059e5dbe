"""Where a database and a bus meet: the registry of cells, fan-out, discovery, feed readers, and the administration of cells.

Whoever holds a ``Cell`` is targeted at it. Queries belong in ``db``, and loops that run by themselves in ``conductor``.
"""
