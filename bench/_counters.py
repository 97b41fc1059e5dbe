"""What the servers and the kernel have counted of a region: statements, messages, CPU time, memory. Its code is asked nothing."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
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

    def subtract_counts(self, other: Counts) -> Counts:
        return Counts(
            statements=subtract_values(self.statements, other.statements),
            ends=subtract_values(self.ends, other.ends),
            messages=subtract_values(self.messages, other.messages),
        )

    def scale_counts(self, factor: float) -> Counts:
        return Counts(
            statements={key: n * factor for key, n in self.statements.items()},
            ends={key: n * factor for key, n in self.ends.items()},
            messages={key: n * factor for key, n in self.messages.items()},
        )


class Memory(Object, frozen=True, kw_only=True):
    """Of all processes of one role: how many there are, and MiB. ``pss``: shared pages are divided among those who share them."""

    processes: int
    resident: float
    pss: float


def subtract_values(one: Mapping[K, float], other: Mapping[K, float]) -> dict[K, float]:
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
        self.query_rows("SET GLOBAL userstat = 1")
        if messages:
            # per queue, in channels opened from now on
            self._eval_on_broker("application:set_env(rabbit, collect_statistics, fine).")

    def close(self) -> None:
        self._connection.close()

    def query_rows(self, query: str, *values: Any) -> tuple[tuple[Any, ...], ...]:
        """Rows of a statement run as the server's administrator, who is not counted."""
        cursor: Cursor
        with self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return tuple(cursor.fetchall())

    def count_statements(self) -> dict[str, float]:
        """Those of ``Counts``, since the processes were started."""
        users = self.query_rows(f"SELECT user, {' + '.join(SQL)} FROM information_schema.user_statistics WHERE user <> 'root'")
        return {str(user): float(n) for user, n in users}

    def read_counts(self) -> Counts:
        """Everything since the processes were started."""
        ends = self.query_rows("SHOW GLOBAL STATUS LIKE 'Com\\_%%'")
        seen = {str(name).removeprefix("Com_").lower(): float(n) for name, n in ends}
        return Counts(
            statements=self.count_statements(),
            ends={name: seen[name] for name in (*ENDS, PING)},
            messages=self._count_messages(),
        )

    def wait_settled(self, name: str, count: int, *, pause: float = 0.2, timeout_s: float = 180.0) -> Counter[str]:
        """The states of the servers whose name begins so, once there are ``count`` and none of them is being built."""
        query = "SELECT state, COUNT(*) FROM api.instance_mappings WHERE name LIKE %s AND NOT deleted GROUP BY state"
        give_up = time.monotonic() + timeout_s
        while True:
            states: Counter[str] = Counter({str(state): int(n) for state, n in self.query_rows(query, f"{name}%")})
            if not states["building"] and states.total() >= count:
                return states
            assert time.monotonic() < give_up, f"{name}: {dict(states)} after {timeout_s:g} s"
            time.sleep(pause)

    def wait_active(self, name: str, count: int, *, pause: float = 0.2, timeout_s: float = 180.0) -> None:
        """Return when all of these are ACTIVE. Raises AssertionError if one is not."""
        states = self.wait_settled(name, count, pause=pause, timeout_s=timeout_s)
        assert states.total() == states["active"], f"{name}: {dict(states)}"

    def cpu_by_role(self) -> dict[str, float]:
        """CPU seconds of user and kernel by role, of processes that live and of children of theirs that have ended."""
        used: defaultdict[str, float] = defaultdict(float)
        for role, process in self._list_processes():
            times = process.cpu_times()
            used[role] += times.user + times.system + times.children_user + times.children_system
        return dict(used)

    def role_by_pid(self) -> dict[int, str]:
        """The role of each process, by its process id."""
        return {process.pid: role for role, process in self._list_processes()}

    def memory_by_role(self) -> dict[str, Memory]:
        infos_by_role: dict[str, list[Any]] = {}
        for role, process in self._list_processes():
            infos_by_role.setdefault(role, []).append(process.memory_full_info())
        return {
            role: Memory(processes=len(infos), resident=sum(m.rss for m in infos) / MIB, pss=sum(m.pss for m in infos) / MIB)
            for role, infos in infos_by_role.items()
        }

    def _list_processes(self) -> Iterator[tuple[str, psutil.Process]]:
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

    def _count_messages(self) -> dict[str, float]:
        message_counts: Counter[str] = Counter()
        published = "".join(re.findall(r'"([^"]*)"', self._eval_on_broker(PUBLISHED)))
        for vhost, queue, number in (entry.split(" ") for entry in published.split(";") if entry):
            message_counts[f"{vhost}: {message_kind(queue)}"] += int(number)
        return dict(message_counts)

    def _eval_on_broker(self, expression: str) -> str:
        return self._broker.run_ctl("eval", expression)


def message_kind(queue: str) -> str:
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
