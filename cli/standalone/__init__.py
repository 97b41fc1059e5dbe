"""``standalone`` and ``demo``: every role in one process, in one folder."""
