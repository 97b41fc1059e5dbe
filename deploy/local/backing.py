"""The servers that a region stands on: one broker with a virtual host, and one database server with a database, for each level."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from cli.fleet import agent_files
from deploy import ports
from deploy.cluster import Cluster
from deploy.galera import Galera, GaleraTwoWriters
from deploy.local.folder import BROKER, DATABASE, Folder, Notes
from deploy.postgresql_replicated import PostgreSQLReplicated
from deploy.rabbitmq_cluster import RabbitCluster
from deploy.servers import MariaDB, PostgreSQL, RabbitMQ, Server

DATABASES: dict[str, type[MariaDB | PostgreSQL | Galera | PostgreSQLReplicated]] = {
    "mariadb": MariaDB,
    "postgresql": PostgreSQL,
    "galera": Galera,
    "galera-two-writers": GaleraTwoWriters,
    "postgresql-replicated": PostgreSQLReplicated,
}
BROKERS: dict[str, type[RabbitMQ | RabbitCluster]] = {"rabbitmq": RabbitMQ, "rabbitmq-cluster": RabbitCluster}

FEWER_HEARTBEATS = "heartbeat_timeout_threshold=60&conn_pool_ttl=60&conn_pool_min_size=1"
"""Query of a bus URL for a region with many cells, which has thousands of connections: a connection that is not needed is closed
after a minute, and heartbeats are four times as rare as by default. A broker that hangs is found later in return."""

CONNECTIONS_PER_CELL = 40
"""Of the database server: what a cell's conductor, and the API level's processes, may open for a cell."""

TABLES_PER_CELL = 200


class Backing:
    """Both servers of a region, their data in its folder. ``deploy.servers.Unavailable`` says why one cannot be had."""

    def __init__(self, folder: Folder, notes: Notes) -> None:
        # Their ports are given: another one than at the first start is in no configuration file.
        self._bus_query = FEWER_HEARTBEATS if notes.shape.is_crowded else ""
        self._rabbit = BROKERS[notes.shape.broker](folder.path / BROKER, notes.broker_port)
        self._database = DATABASES[notes.shape.database](folder.path / DATABASE, notes.database_port)
        if isinstance(self._database, MariaDB):
            self._database.connections = max(self._database.connections, CONNECTIONS_PER_CELL * notes.shape.cells)
            self._database.tables = max(self._database.tables, TABLES_PER_CELL * notes.shape.cells)
        self.servers: tuple[Server | Cluster, ...] = (self._rabbit, self._database)

    def start(self, say: Callable[[str], None]) -> None:
        """Start what does not run, side by side."""
        for server in self.servers:
            server.install_missing()
        with ThreadPoolExecutor(len(self.servers)) as pool:
            for server in pool.map(_start, self.servers):
                say(f"{server.NAME} answers on {ports.HOST} port {server.port}")

    def make_hosts(self, names: Iterable[str]) -> Mapping[str, str]:
        """A virtual host for each name, with a user and a password of its own; their URLs by name."""
        logins = [(name, name, secrets.token_hex(16)) for name in names]
        urls = [_with_query(url, self._bus_query) for url in self._rabbit.create_vhosts(logins)]
        return dict(zip((name for name, _, _ in logins), urls, strict=True))

    def make_agents(self, bus: str, hosts: Sequence[str]) -> Mapping[str, str]:
        """A broker user for each host, with what its agent may do on the cell's bus and no more; the agents' URLs by host."""
        if not hosts:
            return {}
        logins = [agent_files.new_login(bus, host) for host in hosts]
        self._rabbit.import_definitions([agent_files.user_definitions(login) for login in logins])
        return {login.host: login.bus for login in logins}

    def make_databases(self, names: Iterable[str]) -> Mapping[str, str]:
        """A database for each name, with a user and a password of its own; their URLs by name."""
        return {name: self._database.create_database(name, name, secrets.token_hex(16)) for name in names}

    def stop(self) -> None:
        """End both; harmless where they do not run."""
        for server in self.servers:
            server.stop()

    def list_leftovers(self) -> list[str]:
        """What still runs, or listens where a server did."""
        return [
            f"{server.NAME} (port {server.port})"
            for server in self.servers
            if any(server.leftover_processes()) or not ports.is_free(server.port)
        ]


def is_running(server: Server | Cluster) -> bool:
    """Whether it was started, by whomever, and can be connected to; all nodes of a cluster."""
    if isinstance(server, Cluster):
        return all(is_running(node) for node in (*server.cluster_nodes, server.front))
    if not any(server.leftover_processes()):
        return False
    try:
        socket.create_connection((ports.HOST, server.port), timeout=1).close()
    except OSError:
        return False
    return True


def _with_query(url: str, query: str) -> str:
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{query}"


def _start(server: Server | Cluster) -> Server | Cluster:
    if not is_running(server):
        server.start()
    return server
