"""Whether this machine may run as the host, and whether the host takes orders."""

from __future__ import annotations

import threading

from rpc.server import TopicServer


class AgentAdmission:
    """What the cell has said of this agent, and what the agent made of it.

    ``takes_orders`` and ``server`` change only inside ``with admission:``, which holds a lock.
    """

    def __init__(self) -> None:
        self.refusal = ""
        """Why no conductor of the cell can work with this release; empty if one can."""
        self.exclusion = ""
        """Which other machine runs as the host; empty if none does."""
        self.stopping = False
        """Whether the agent was told to stop."""
        self.decided = threading.Event()
        """Whether the cell has said if this agent may run as the host."""
        self.takes_orders = False
        """Whether the agent takes orders, or did until it was told to stop."""
        self.server: TopicServer | None = None
        """Serves the host's topic; None if somebody else does, or nobody."""
        self._lock = threading.Lock()

    def __enter__(self) -> AgentAdmission:
        self._lock.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def stop_orders(self) -> None:
        """Take no more orders, and wait for those under way."""
        with self:
            self.takes_orders, server, self.server = False, self.server, None
        if server is not None:
            server.stop()
