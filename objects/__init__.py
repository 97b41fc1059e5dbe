"""Frozen records and errors that all packages share.

Nothing here does input or output. Rules about states, such as ``lifecycle.py`` and ``phase.py``, are here because every role
obeys them.
"""
