"""The check: its stages, and what they need of the machine.

``make`` and tox call ``stages.py``. Servers of a region belong in ``deploy``.
"""
