"""MariaDB as a node of a Galera cluster, on which other nodes may write at the same time.

A node compares a commit with what other nodes wrote, not with what they locked. Two rules make row locks mean what they mean on a
single server (``docs/decisions/0039-galera-compares-writes-only.md``):

- Each transaction that writes changes one row of ``certification`` last. A commit of another node that is not applied here yet
  changed it, too: the transaction is refused as a deadlock, and runs again.
- A guard whose two sides lock the same row and may both leave it unchanged calls ``compare_locks`` for it.

What a commit of another node needs is taken from transactions here that hold it, which run again.
The first statement of a transaction waits for what other nodes committed before it (``wsrep_sync_wait``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

_NODE = "galera node"
"""In the ``info`` of a connection to a node of a cluster: True."""
_ALL_STATEMENTS = 7
"""Of wsrep_sync_wait: reads, UPDATE and DELETE, INSERT and REPLACE."""
_CLUSTER = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_cluster_state_uuid'"
IDENTITY = "@superconductor_server"
"""User variable of a session: the identity of the cluster, which is the same on all of its nodes."""
_CERTIFY = "UPDATE certification SET number = number + 1 WHERE id = 1"
_COMPARE = "INSERT INTO certification (id, number) VALUES (%s, 1) ON DUPLICATE KEY UPDATE number = number + 1"
LOCK_ROWS = 65_536
"""Rows of ``certification`` that stand for locked rows. Two locks that share one cost a retry now and then, and nothing else."""


def settle_connection(connection: Any, info: dict[Any, Any]) -> None:
    """Find out whether a new connection of MariaDB's driver leads to a node of a cluster, and tell it what it has to know then."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES LIKE 'wsrep_on'")  # a server without replication has no such variable
        wsrep_row = cursor.fetchone()
        if wsrep_row is None or wsrep_row[1] != "ON":
            return
        cursor.execute(f"SET SESSION wsrep_sync_wait = {_ALL_STATEMENTS}, {IDENTITY} = ({_CLUSTER})")
    connection.commit()
    info[_NODE] = True


def compare_locks(tx: sa.Connection, kind: str, keys: Iterable[str]) -> None:
    """Have other nodes see these locks, just taken, of rows that the transaction may leave unchanged. Elsewhere this does nothing.

    ``kind`` and ``keys`` say which rows, in the same way at both sides of the guard. Call it before what the locks guard is read.
    """
    if tx.info.get(_NODE):
        numbers = sorted({2 + zlib.crc32(f"{kind} {key}".encode()) % LOCK_ROWS for key in keys})
        for number in numbers:
            tx.exec_driver_sql(_COMPARE, (number,))


class Certified:
    """Watches one transaction, and has it certified if it wrote. Costs nothing elsewhere than on a node of a cluster."""

    def __init__(self, tx: sa.Connection) -> None:
        self._tx = tx
        self._wrote = False
        self._watching = bool(tx.info.get(_NODE))
        if self._watching:
            sa.event.listen(tx, "after_cursor_execute", self._note_write)

    def certify_writes(self) -> None:
        """Call this before the commit, after everything else."""
        if self._watching and self._wrote:
            self._tx.exec_driver_sql(_CERTIFY)

    def _note_write(
        self, tx: sa.Connection, cursor: Any, statement: str, parameters: object, context: object, executemany: bool
    ) -> None:
        if not self._wrote:
            self._wrote = cursor.rowcount != 0 and not statement.lstrip("( \n").upper().startswith(("SELECT", "SHOW", "SET"))


# -- what does not fit ------------------------------------------------------------------------------------------------------------

MEMBERS_NEEDED = 3
"""Nodes, or arbitrators, of which one may be lost."""
_SHOW = "SHOW {} WHERE Variable_name IN ({})"
_WANTED: Mapping[str, tuple[str, str]] = {
    "binlog_format": ("ROW", "other nodes would not get all changes"),
    "innodb_autoinc_lock_mode": ("2", "Galera needs it"),
    "wsrep_dirty_reads": ("OFF", "a node without quorum would answer with old rows"),
    "wsrep_osu_method": ("TOI", "'superconductor db sync' would change the schema of one node only"),
}
"""Variables of a node: the value that is needed, and why."""


class Misfit(NamedTuple):
    """Something about a node that does not fit. ``lasting``: it breaks what is promised; else it is a risk."""

    text: str
    lasting: bool


def list_misfits(tx: sa.Connection) -> list[Misfit] | None:
    """What does not fit in the cluster that this connection leads to; None: it leads to no node of one."""
    if not tx.info.get(_NODE):
        return None
    have = _read(tx, "VARIABLES", _WANTED)
    problems = [
        Misfit(f"{name} = {have[name]}, and not {value}: {why}", lasting=True)
        for name, (value, why) in _WANTED.items()
        if have.get(name, value) != value
    ]
    size = int(_read(tx, "STATUS", ["wsrep_cluster_size"]).get("wsrep_cluster_size", 0))
    if size < MEMBERS_NEEDED:
        text = f"the cluster has {size} of at least {MEMBERS_NEEDED} members: if one more is lost, it may take no writes"
        problems.append(Misfit(text, lasting=False))
    return problems


def _read(tx: sa.Connection, kind: str, names: Iterable[str]) -> dict[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    return {str(row[0]).lower(): str(row[1]) for row in tx.exec_driver_sql(_SHOW.format(kind, listed))}
