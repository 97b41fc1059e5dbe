"""Real processes under load and faults, and the verdict on every accepted request (docs/chaos.md).

``load.py`` asks, ``faults.py`` breaks, and ``judge.py`` decides. Faults of single functions belong in ``tests/faults``.
"""
