"""Unique names of servers: in which scope, and the key that no two servers of a scope share."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from objects import errors


class NameScope(StrEnum):
    """Where the name of a server must be unique, without regard to case."""

    OFF = ""
    PROJECT = "project"
    GLOBAL = "global"


def name_key(scope: NameScope, project_id: str, name: str) -> str | None:
    """The key of a name, at most 72 characters; None if names need not be unique.

    A digest, because a project ID and a name together exceed what MariaDB indexes. Keys of different scopes differ.
    """
    if scope is NameScope.OFF:
        return None
    owner = project_id if scope is NameScope.PROJECT else ""
    digest = hashlib.sha256(f"{owner}\0{name.casefold()}".encode()).hexdigest()
    return f"{scope}.{digest}"


def is_same(one: str, other: str) -> bool:
    """Whether two names differ at most in case."""
    return one.casefold() == other.casefold()


def name_conflict(name: str) -> errors.Conflict:
    """The refusal of a name that another server has."""
    return errors.Conflict(f"Instance {name} already exists.")
