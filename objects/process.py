"""What processes say of themselves, and what a level's database knows of those that are no agents."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object


class About(Message, frozen=True, kw_only=True):
    """What a process says of itself. ``release``: of the software. ``messages``: the version of those that it answers, if any."""

    VERSION: ClassVar[str] = "1.0"

    release: str = ""
    messages: str = ""
    pid: int = 0


class Process(Object, frozen=True, kw_only=True):
    """One start of one process. ``age``: seconds since its last sign of life, times since the epoch; by the database's clock."""

    uuid: str
    binary: str
    host: str
    about: About
    started_at: float
    last_seen: float
    age: float
