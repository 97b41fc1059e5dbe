"""Releases side by side: what the peers of a process know, by their service records, and which of them are too old for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from db import processes
from db.api.rows import finalized
from db.cell import services
from db.processes import Level
from db.sql.connection import CellTransaction, Connection
from objects import errors
from objects.messages_version import SPAN, MessagesVersion, Span, span_of, version_for
from objects.process import AGENT_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, Process
from rpc import cell_conductor, compute, scheduler, super_conductor
from rpc.transport import Peers
from service.release import installed_release
from service.upgrade_levels import COMPUTE, CONDUCTOR, SCHEDULER, Pinned

LOG = logging.getLogger(__name__)

LIVE_S = 60.0
"""Seconds after its last heartbeat in which a process counts as alive."""
REFRESH_S = 10.0
"""Seconds for which what was read of peers is used again. A process that starts is heard of about as late."""
NAMES_SHOWN_LIMIT = 5

Known = Mapping[tuple[str, str | None], MessagesVersion]
"""By topic, and for one server of it by its name."""

_TOPICS = {CONDUCTOR_BINARY: super_conductor.TOPIC, SCHEDULER_BINARY: scheduler.TOPIC}
_ROLES = {
    compute.TOPIC: COMPUTE,
    super_conductor.TOPIC: CONDUCTOR,
    cell_conductor.TOPIC: CONDUCTOR,
    scheduler.TOPIC: SCHEDULER,
}


def level_peers(read: Callable[[Callable[[Connection], Known]], Known], pinned: Pinned) -> Peers:
    """Those on the API level's bus. ``read``: a transaction of the API database."""
    return _Peers(lambda: read(_of_api_level), pinned)


def cell_peers(read: Callable[[Callable[[CellTransaction], Known]], Known], pinned: Pinned) -> Peers:
    """Those on a cell's bus. ``read``: a transaction of the cell's database."""
    return _Peers(lambda: read(_of_cell), pinned)


class _Peers:
    """Read again after ``REFRESH_S``; what was known before serves while the database does not answer.

    Peers that are not among what is read are of this release. Raises errors.Transient if nothing was ever read.
    """

    def __init__(self, read: Callable[[], Known], pinned: Pinned) -> None:
        self._read = read
        self._pinned = pinned
        self._known: Known | None = None
        self._due = 0.0
        self._lock = threading.Lock()

    def __call__(self, topic: str, server: str | None) -> MessagesVersion:
        if (version := self._pinned.get(_ROLES.get(topic, topic))) is not None:
            return version
        known = self._known
        if known is None or time.monotonic() >= self._due:
            known = self._refreshed_peers()
        return known.get((topic, server), known.get((topic, None), SPAN.newest))

    def _refreshed_peers(self) -> Known:
        with self._lock:
            if self._known is None or time.monotonic() >= self._due:
                try:
                    self._known = self._read()
                except errors.Transient as error:
                    if self._known is None:
                        raise
                    LOG.debug("going on with what was known of the releases of peers: %s", error)
                self._due = time.monotonic() + REFRESH_S
            return self._known


def _of_api_level(tx: Connection) -> Known:
    known: dict[tuple[str, str | None], MessagesVersion] = {}
    for binary, messages in processes.list_older(tx, "api", LIVE_S):
        if (topic := _TOPICS.get(binary)) is not None:
            known[topic, None] = min(known.get((topic, None), SPAN.newest), version_for(span_of(messages)))
    return known


def _of_cell(tx: CellTransaction) -> Known:
    older = services.list_older(tx, AGENT_BINARY)
    return {(compute.TOPIC, host): version_for(span_of(messages)) for host, messages in older.items()}


# -- start-up ------------------------------------------------------------------------------------------------------------------


def check_api_level(tx: Connection) -> None:
    """Raise errors.Misconfigured if this process cannot work beside those of the API level, naming the ones that are too old."""
    final = finalized.read(tx)
    if final > SPAN.newest:
        raise errors.Misconfigured(
            f"This is release {installed_release()} (messages {SPAN}), and the upgrade to {final} was finalized: upgrade it"
        )
    _check_peers((f"{process.binary} on {process.host}", process.about.messages) for process in _list_live(tx, "api"))


def check_cell(tx: CellTransaction) -> None:
    """The same beside the conductors and agents of a cell."""
    _check_peers((f"{process.binary} on {process.host}", process.about.messages) for process in _list_live(tx, "cell"))
    agents = [seen.service for seen in services.list_seen(tx, AGENT_BINARY) if seen.age <= LIVE_S and not seen.service.forced_down]
    _check_peers((f"{agent.binary} on {agent.host}", agent.messages) for agent in agents)


def check_agent(host: str, messages: str) -> None:
    """Raise errors.Misconfigured if a conductor of this release cannot work with this agent."""
    _check_peers([(f"{AGENT_BINARY} on {host}", messages)])


def _list_live(tx: Connection, level: Level) -> list[Process]:
    return [process for process in processes.list_all(tx, level) if process.age <= LIVE_S]


def _check_peers(others: Iterable[tuple[str, str | None]]) -> None:
    apart = {name: span for name, messages in others if not SPAN.is_compatible_with(span := span_of(messages))}
    if not apart:
        return
    ours = f"This process is of release {installed_release()} and knows messages {SPAN}"
    for too_old, theirs in ((True, _describe_peers(apart, older=True)), (False, _describe_peers(apart, older=False))):
        if theirs:
            advice = "they are too old: upgrade them first" if too_old else "this process is too old: upgrade it"
            raise errors.Misconfigured(f"{ours}. Others are alive that know none of these: {theirs}; {advice}")


def _describe_peers(apart: Mapping[str, Span], *, older: bool) -> str:
    peers = sorted(f"{name} ({span})" for name, span in apart.items() if (span.newest < SPAN.oldest) is older)
    more = f" and {len(peers) - NAMES_SHOWN_LIMIT} more" if len(peers) > NAMES_SHOWN_LIMIT else ""
    return ", ".join(peers[:NAMES_SHOWN_LIMIT]) + more
