"""PostgreSQL with two synchronous standbys of our own. A commit waits for one of them, so that a fail-over loses none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy import packages, ports, processes
from deploy.cluster import NODES, Cluster
from deploy.haproxy import Backend
from deploy.postgresql import ADMINISTRATOR, PostgreSQL
from deploy.unavailable import Unavailable

CATCH_UP_TIMEOUT_S = 30.0
"""Seconds that a standby may take for what its primary has written."""
CHECK_TIMEOUT_S = 30.0
"""Seconds after which HAProxy is to know which node is the primary."""


class PostgreSQLNode(PostgreSQL):
    NAME = "PostgreSQL, replicated"

    def join_cluster(self, *, number: int, password: str, synchronous: bool) -> None:
        """Which node this is, before its first start."""
        self._number = number
        self._password = password
        self._synchronous = synchronous

    @property
    def admin_password(self) -> str:
        """The administrator's."""
        return self._password

    def follow_primary(self, primary: PostgreSQLNode) -> None:
        """Copy the primary, which runs, and be its standby from the next start on."""
        self.stop()
        self.folder.mkdir(exist_ok=True)
        shutil.rmtree(self._data_folder(), ignore_errors=True)
        self._open_folder()
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(0o700)
        if (user := self._run_user()) is not None:
            shutil.chown(new, user, user)
        self._run(
            self._find_program("pg_basebackup"),
            "-D",
            str(new),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "-d",
            self._source_settings(primary),
        )
        new.rename(self._data_folder())

    def turn_to(self, primary: PostgreSQLNode) -> None:
        """Follow another primary from now on: this standby runs, and has nothing that the primary lacks."""
        self._run_sql(f"ALTER SYSTEM SET primary_conninfo = '{self._source_settings(primary)}';", "SELECT pg_reload_conf();")

    def catch_up(self, written: int) -> None:
        """Return when it has received so much of the log."""
        processes.wait_until(lambda: self.received_position() >= written, CATCH_UP_TIMEOUT_S)

    def turn_away(self) -> None:
        """Follow nobody from now on."""
        self._run_sql("ALTER SYSTEM SET primary_conninfo = '';", "SELECT pg_reload_conf();")
        processes.wait_until(lambda: not self._run_sql("SELECT pid FROM pg_stat_wal_receiver;").strip(), CATCH_UP_TIMEOUT_S)

    def promote_standby(self) -> None:
        """Make it the primary; return when it takes writes."""
        self._run_sql("SELECT pg_promote(true, 60);")

    def received_position(self) -> int:
        """How much of the log it has received."""
        text = self._run_sql("SELECT pg_last_wal_receive_lsn() - '0/0';").strip()
        return int(text or 0)

    def written_position(self) -> int:
        """How much of the log it has written, as a primary."""
        return int(self._run_sql("SELECT pg_current_wal_lsn() - '0/0';"))

    def is_primary(self) -> bool:
        return self.leads_to_primary(self.port)

    def leads_to_primary(self, port: int) -> bool:
        """Whether a connection to this port reaches a primary."""
        try:
            return self._run_sql("SELECT pg_is_in_recovery();", port=port).strip() == "f"
        except Unavailable:
            return False

    def _source_settings(self, primary: PostgreSQLNode) -> str:
        login = f"user={ADMINISTRATOR} password={self._password} application_name=node{self._number}"
        return f"host={ports.HOST} port={primary.port} {login}"

    def _server_command(self) -> list[str]:
        standbys = ", ".join(f"node{n}" for n in range(NODES))
        settings = [f"synchronous_standby_names=ANY 1 ({standbys})"] if self._synchronous else []
        settings += ["wal_keep_size=256MB", "hot_standby=on"]
        return [*super()._server_command(), *(part for setting in settings for part in ("-c", setting))]

    def _finish_start(self) -> None:
        """What a server does once it answers waits for a standby here: ``PostgreSQLReplicated.start`` does it."""


class PostgreSQLReplicated(Cluster):
    NAME = "PostgreSQL, replicated"
    SYNCHRONOUS = True

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port)
        notes = self._known_notes(NODES)
        self._nodes = [PostgreSQLNode(self.folder / f"node{n}", notes.ports[n]) for n in range(NODES)]
        for number, node in enumerate(self._nodes):
            node.join_cluster(number=number, password=notes.password, synchronous=self.SYNCHRONOUS)

    @property
    def cluster_nodes(self) -> Sequence[PostgreSQLNode]:
        return self._nodes

    def _start(self) -> None:
        missing = [node for node in self._nodes if not any(node.leftover_processes())]
        new = not (self._nodes[0].folder / "data").exists()
        if new:
            self._nodes[0].start()
            for node in self._nodes[1:]:
                node.follow_primary(self._nodes[0])
            missing = self._nodes[1:]
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(PostgreSQLNode.start, missing))
        if not any(self.front.leftover_processes()):
            backends = [Backend(name=f"node{n}", port=node.port) for n, node in enumerate(self._nodes)]
            self.front.lead_to(backends, check=self._write_check())
            self.front.start()
            if not processes.wait_until(self._is_checked, CHECK_TIMEOUT_S):
                raise Unavailable(f"HAProxy does not lead to the primary of PostgreSQL alone after {CHECK_TIMEOUT_S:.0f} s")

    def _is_checked(self) -> bool:
        """Whether the front leads nobody to a standby. It does until it has checked them, to one node after the other."""
        return all(self._nodes[0].leads_to_primary(self.port) for _ in self._nodes)

    def primary_number(self) -> int:
        """The number of the node that takes writes. Raises Unavailable."""
        for number, node in enumerate(self._nodes):
            if any(node.leftover_processes()) and node.is_primary():
                return number
        raise Unavailable("No node of PostgreSQL takes writes")

    def fail_over(self) -> int:
        """Kill the primary, and promote the standby that has received most. Returns the number of the killed one."""
        dead = self.primary_number()
        self.end_node(dead, kill=True)
        standbys = [node for node in self._nodes if node is not self._nodes[dead] and any(node.leftover_processes())]
        chosen = max(standbys, key=PostgreSQLNode.received_position)
        chosen.promote_standby()
        for node in standbys:
            if node is not chosen:
                node.turn_to(chosen)
        return dead

    def revive_node(self, number: int) -> None:
        """Start it as a standby with a new copy: what it had that no standby has, no client was told of."""
        node = self._nodes[number]
        primary = self._nodes[self.primary_number()]
        node.follow_primary(primary)
        node.start()

    def create_database(self, name: str, user: str, password: str) -> str:
        """As of a server: the URL leads through HAProxy."""
        node = self._nodes[self.primary_number()]
        return re.sub(rf":{node.port}/", f":{self.port}/", node.create_database(name, user, password))

    def _write_check(self) -> Path:
        """A program that asks a node whether it is the primary."""
        client = packages.find_program("psql", PostgreSQL.PLACES)
        login = f"host={ports.HOST} user={ADMINISTRATOR} dbname=postgres connect_timeout=2"
        secret = self._write("pgpass", f"{ports.HOST}:*:*:{ADMINISTRATOR}:{self._nodes[0].admin_password}\n", 0o600)
        return self._write_program(
            "check",
            "#!/bin/sh\n# Whether a node takes writes\n"
            f'found=$(PGPASSFILE={secret} timeout 5 {client} -X -A -t -d "{login} port=$HAPROXY_SERVER_PORT" '
            "-c 'SELECT pg_is_in_recovery()')\n"
            '[ "$found" = "f" ]\n',
        )


class PostgreSQLAsynchronous(PostgreSQLReplicated):
    """The same with standbys that no commit waits for: a fail-over loses what they had not received."""

    SYNCHRONOUS = False

    def leave_standbys_behind(self) -> None:
        """What is committed from now on gets to no standby."""
        primary = self.primary_number()
        written = self._nodes[primary].written_position()
        for number, node in enumerate(self._nodes):
            if number != primary:
                node.catch_up(written)
                node.turn_away()
