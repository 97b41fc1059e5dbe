"""A RabbitMQ cluster of our own: three nodes, and an Erlang port mapper that outlives each of them."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from deploy import ports
from deploy.cluster import NODES, Cluster
from deploy.haproxy import Backend
from deploy.rabbitmq import GREETING, RabbitMQ
from deploy.server import Server
from deploy.unavailable import Unavailable

QUORUM = "rabbit_quorum_queue=true"
"""What a URL of a cluster's bus asks for: queues that outlive one node."""


class PortMapper(Server):
    """By it nodes find each other; without it a node that restarts is not found."""

    NAME = "Erlang's port mapper"
    PACKAGE = "rabbitmq-server"
    PROGRAM = "epmd"
    PLACES: ClassVar[Sequence[str]] = ("/usr/lib/erlang/erts-*/bin", "/usr/local/lib/erlang/erts-*/bin", *Server.PLACES)

    @property
    def admin_url(self) -> str:
        return f"tcp://{ports.HOST}:{self.port}"

    def _prepare_folder(self) -> None:
        self._data_folder().mkdir(exist_ok=True)

    def _server_command(self) -> list[str]:
        return [self._find_program(self.PROGRAM), "-port", str(self.port), "-address", ports.HOST, "-relaxed_command_check"]

    def _is_serving(self) -> bool:
        try:
            socket.create_connection((ports.HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True


class RabbitNode(RabbitMQ):
    NAME = "RabbitMQ cluster"

    def join_cluster(self, *, number: int, password: str, mapper: int) -> None:
        """Which node this is, before its first start."""
        self._number = number
        self._password = password
        self._mapper_port = mapper

    def _erlang_cookie(self) -> str:
        return hashlib.sha256(self._password.encode()).hexdigest()

    def _port_of_mapper(self) -> int:
        return self._mapper_port

    def _node_name(self) -> str:
        return _name_of_node(self._number)

    def _broker_settings(self) -> list[str]:
        return [
            *super()._broker_settings(),
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{n + 1} = {_name_of_node(n)}" for n in range(NODES)),
            "cluster_partition_handling = pause_minority",
            "queue_master_locator = client-local",
        ]

    def _server_environment(self) -> Mapping[str, str]:
        environment = dict(super()._server_environment())
        # a silent node counts as gone after 15 s, and not after a minute
        environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += " -kernel net_ticktime 15"
        return environment

    def is_running(self) -> bool:
        """Whether it serves, as a member with a majority."""
        try:
            self._run_ctl("await_startup", "--timeout", "20")
        except Unavailable:
            return False
        return True


class RabbitCluster(Cluster):
    NAME = "RabbitMQ cluster"

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port)
        notes = self._known_notes(NODES + 1)
        self._port_mapper = PortMapper(self.folder / "epmd", notes.ports[NODES])
        self._nodes = [RabbitNode(self.folder / f"node{n}", notes.ports[n]) for n in range(NODES)]
        for number, node in enumerate(self._nodes):
            node.join_cluster(number=number, password=notes.password, mapper=notes.ports[NODES])

    @property
    def cluster_nodes(self) -> Sequence[RabbitNode]:
        return self._nodes

    def _start(self) -> None:
        if not any(self._port_mapper.leftover_processes()):
            self._port_mapper.start()
        missing = [node for node in self._nodes if not any(node.leftover_processes())]
        if len(missing) == NODES and not (self._nodes[0].folder / "data").exists():
            missing.pop(0).start()  # alone at first: the others join it
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(RabbitNode.start, missing))
        if not any(self.front.leftover_processes()):
            self.front.lead_to([Backend(name=f"node{n}", port=node.port) for n, node in enumerate(self._nodes)], greeting=GREETING)
            self.front.start()

    def stop(self) -> None:
        super().stop()
        self._port_mapper.stop()

    def leftover_processes(self) -> Iterator[int]:
        yield from super().leftover_processes()
        yield from self._port_mapper.leftover_processes()

    def create_vhost(self, name: str, user: str, password: str) -> str:
        """As of a broker: the URL leads through HAProxy, and asks for quorum queues."""
        return self.create_vhosts([(name, user, password)])[0]

    def create_vhosts(self, logins: Sequence[tuple[str, str, str]]) -> list[str]:
        """The same for several at once."""
        node = self._nodes[0]
        return [f"{url.replace(f':{node.port}/', f':{self.port}/')}?{QUORUM}" for url in node.create_vhosts(logins)]

    def import_definitions(self, definitions: Sequence[Mapping[str, Sequence[object]]]) -> None:
        """As of a broker."""
        self._nodes[0].import_definitions(definitions)

    def run_ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against the first node and return what it prints. Raises Unavailable."""
        return self._nodes[0].run_ctl(*arguments)


def _name_of_node(number: int) -> str:
    return f"superconductor{number}@localhost"
