"""The type of what a transaction is run on, for rooms that pass functions to ``Database.read`` and ``write`` but do no SQL."""

from sqlalchemy import Connection

__all__ = ["Connection"]
