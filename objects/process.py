"""The processes of a level other than agents, as recorded in its database, and what each reports about itself."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object

API_BINARY = "superconductor-api"
CONDUCTOR_BINARY = "superconductor-conductor"
SCHEDULER_BINARY = "superconductor-scheduler"
AGENT_BINARY = "superconductor-compute"
CONSOLE_PROXY_BINARY = "superconductor-console-proxy"


class About(Message, frozen=True, kw_only=True):
    """A process's report about itself. ``release``: the software version. ``messages``: the versions of messages that it knows
    (``objects.messages_version``). ``version``: of an agent, its service version, as in its heartbeats. ``machine``: of an agent,
    what people call its machine.
    """

    VERSION: ClassVar[str] = "1.2"

    release: str = ""
    messages: str = ""
    pid: int = 0
    version: int = 1
    machine: str = ""


class Process(Object, frozen=True, kw_only=True):
    """One start of one process. ``age``: seconds since its last heartbeat. Times in seconds since the epoch, by the database's
    clock.
    """

    uuid: str
    binary: str
    host: str
    about: About
    started_at: float
    last_seen: float
    age: float
