"""The one error of this room."""

from __future__ import annotations


class Unavailable(Exception):
    """Why a server cannot be had, in one line that says what to do."""
