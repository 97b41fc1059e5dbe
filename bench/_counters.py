"""What the servers and the kernel have counted of a region: statements, messages, CPU time, memory. Its code is asked nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import psutil
import pymysql
import sqlalchemy as sa
from pymysql.cursors import Cursor

from deploy.local.region import Region
from deploy.servers import MariaDB, RabbitMQ
from objects import errors
from objects.base import Object

K = TypeVar("K")
MIB = 1 << 20
PUBLISHED = """
iolist_to_binary(maps:fold(fun({V, Q}, N, Said) -> [V, $\\s, Q, $\\s, integer_to_binary(N), $; | Said] end, [],
  ets:foldl(fun({{_, {{resource, V, queue, Q}, _}}, N, _}, Seen) -> maps:update_with({V, Q}, fun(M) -> M + N end, N, Seen);
               (_, Seen) -> Seen end, #{}, channel_queue_exchange_metrics))).
"""
"""Asks the broker what was put into each queue since its publishers' channels were opened."""
ENDS = ("begin", "commit", "rollback", "set_option")
PING = "admin_commands"
SQL = ("SELECT_COMMANDS", "UPDATE_COMMANDS")


class Counts(Object, frozen=True, kw_only=True):
    """Statements by database user, as the server saw them (an executemany that arrives as several counts as several), without what
    only begins, ends or sets something; these, with the drivers' pings, by what they are; messages by (virtual host, kind)."""

    statements: Mapping[str, float]
    ends: Mapping[str, float]
    messages: Mapping[str, float]

    def minus(self, other: Counts) -> Counts:
        return Counts(
            statements=less(self.statements, other.statements),
            ends=less(self.ends, other.ends),
            messages=less(self.messages, other.messages),
        )

    def times(self, factor: float) -> Counts:
        return Counts(
            statements={key: n * factor for key, n in self.statements.items()},
            ends={key: n * factor for key, n in self.ends.items()},
            messages={key: n * factor for key, n in self.messages.items()},
        )


class Memory(Object, frozen=True, kw_only=True):
    """Of all processes of one role: how many there are, and MiB. ``own``: shared pages are divided among those who share them."""

    processes: int
    resident: float
    own: float


def less(one: Mapping[K, float], other: Mapping[K, float]) -> dict[K, float]:
    return {key: n - other.get(key, 0.0) for key, n in one.items()}


class Meter:
    """Reads the counters of one region. Made before its processes start: what they open then is counted from the beginning."""

    def __init__(self, region: Region, *, messages: bool = True) -> None:
        """``messages``: whether they will be counted, which costs the broker something."""
        self._region = region
        broker, database = region.backing.servers
        if not (isinstance(broker, RabbitMQ) and isinstance(database, MariaDB)):
            raise errors.Misconfigured("What is counted is known of one RabbitMQ and one MariaDB only")
        self._broker = broker
        url = sa.make_url(database.admin_url)
        self._connection = pymysql.connect(
            host=url.host, port=url.port or 0, user=url.username, password=str(url.password), autocommit=True
        )
        self._roles: dict[int, str] = {}
        self.ask("SET GLOBAL userstat = 1")
        if messages:
            self._eval("application:set_env(rabbit, collect_statistics, fine).")  # per queue, in channels opened from now on

    def close(self) -> None:
        self._connection.close()

    def ask(self, query: str, *values: Any) -> tuple[tuple[Any, ...], ...]:
        """Rows of a statement run as the server's administrator, who is not counted."""
        cursor: Cursor
        with self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return tuple(cursor.fetchall())

    def statements(self) -> dict[str, float]:
        """Those of ``Counts``, since the processes were started."""
        users = self.ask(f"SELECT user, {' + '.join(SQL)} FROM information_schema.user_statistics WHERE user <> 'root'")
        return {str(user): float(n) for user, n in users}

    def counts(self) -> Counts:
        """Everything since the processes were started."""
        ends = self.ask("SHOW GLOBAL STATUS LIKE 'Com\\_%%'")
        seen = {str(name).removeprefix("Com_").lower(): float(n) for name, n in ends}
        return Counts(
            statements=self.statements(),
            ends={name: seen[name] for name in (*ENDS, PING)},
            messages=self._messages(),
        )

    def cpu(self) -> dict[str, float]:
        """CPU seconds of user and kernel by role, of processes that live and of children of theirs that have ended."""
        used: Counter[str] = Counter()
        for role, process in self._processes():
            times = process.cpu_times()
            used[role] += times.user + times.system + times.children_user + times.children_system  # type: ignore[assignment]  # typed as a count
        return dict(used)

    def roles(self) -> dict[int, str]:
        """The role of each process, by its process id."""
        return {process.pid: role for role, process in self._processes()}

    def memory(self) -> dict[str, Memory]:
        found: dict[str, list[Any]] = {}
        for role, process in self._processes():
            found.setdefault(role, []).append(process.memory_full_info())
        return {
            role: Memory(processes=len(some), resident=sum(m.rss for m in some) / MIB, own=sum(m.pss for m in some) / MIB)
            for role, some in found.items()
        }

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        members = {member.name: str(member.role) for member in self._region.notes.shape.list_members()}
        groups: list[tuple[str, Iterable[int]]] = [
            (server.NAME, server.leftover_processes()) for server in self._region.backing.servers
        ]
        groups += [(members[name], pids) for name, pids in self._region.table.pids_by_member().items()]
        for role, pids in groups:
            for pid in pids:
                try:
                    process = psutil.Process(pid)
                    process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                yield role, process

    def _messages(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        said = "".join(re.findall(r'"([^"]*)"', self._eval(PUBLISHED)))
        for vhost, queue, number in (entry.split(" ") for entry in said.split(";") if entry):
            found[f"{vhost}: {kind(queue)}"] += int(number)
        return dict(found)

    def _eval(self, expression: str) -> str:
        return self._broker.run_ctl("eval", expression)


def kind(queue: str) -> str:
    """What the messages of a queue are, by its name; the API level and the cells call things by few names."""
    if queue.startswith("reply_"):
        return "answers"
    if "_fanout_" in queue:
        return "to all"
    topic = queue.split(".")[0]
    return {
        "super-conductor": "doorbells (casts)",
        "scheduler": "select_destinations (calls)",
        "compute": "orders to agents (casts)",
        "cell-conductor": "from agents (calls, casts)",
    }.get(topic, topic)
