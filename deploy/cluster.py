"""What the clusters of our own have in common: some nodes, and an HAProxy in front of them, each a server in its own folder."""

from __future__ import annotations

import os
import secrets
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from deploy import ports, processes
from deploy.haproxy import HAProxy
from deploy.server import KILL_TIMEOUT_S, Server
from objects.base import Object

NODES = 3
NOTES = "cluster.json"


class ClusterNotes(Object, frozen=True):
    """What all nodes must know of each other, in the cluster's folder. Only its owner may read it."""

    ports: tuple[int, ...]
    password: str


class Cluster(ABC):
    """It is used in place of a server: clients connect to ``port``, which is HAProxy's. Nodes have numbers from 0."""

    NAME: ClassVar[str]

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """``port``: as of a server."""
        self.folder = Path(folder).resolve()
        self._known: ClusterNotes | None = None
        self.front = HAProxy(self.folder / "haproxy", port)
        self.port = self.front.port

    @property
    @abstractmethod
    def cluster_nodes(self) -> Sequence[Server]:
        """The nodes in order."""

    @abstractmethod
    def _start(self) -> None:
        """Start what does not run, and return when every node serves. Raises Unavailable."""

    def start(self) -> None:
        """Start what does not run, and return when every node serves. Raises Unavailable."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)  # some servers run as another user than root
        if self._known is not None:
            self._write(NOTES, msgspec.json.encode(self._known).decode(), 0o600)
        self._start()

    def install_missing(self) -> None:
        """Install what is missing. Raises Unavailable."""
        for server in (*self.cluster_nodes, self.front):
            server.install_missing()

    def stop(self) -> None:
        """End all; harmless where nothing runs. The first node goes last: it then has what all others had."""
        self.front.stop()
        for node in reversed(self.cluster_nodes):
            node.stop()

    def leftover_processes(self) -> Iterator[int]:
        """Every process of it."""
        for server in (*self.cluster_nodes, self.front):
            yield from server.leftover_processes()

    def _known_notes(self, ports_wanted: int) -> ClusterNotes:
        """Those of last time, else new ones, which the next start writes down."""
        try:
            self._known = msgspec.json.decode((self.folder / NOTES).read_bytes(), type=ClusterNotes)
        except FileNotFoundError:
            self._known = ClusterNotes(tuple(ports.free_port() for _ in range(ports_wanted)), secrets.token_hex(16))
        return self._known

    def _write_program(self, name: str, text: str) -> Path:
        """A program in the cluster's folder that only its owner may run."""
        return self._write(name, text, 0o700)

    def _write(self, name: str, text: str, mode: int) -> Path:
        path = self.folder / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w") as file:
            file.write(text)
        return path

    def end_node(self, number: int, *, kill: bool) -> None:
        """End a node: in order, or killed."""
        node = self.cluster_nodes[number]
        if kill:
            processes.end_process(node.pid, signal.SIGKILL, KILL_TIMEOUT_S)
        node.stop()

    def freeze_node(self, number: int) -> None:
        """Stop a node's process: for the others it has left, and it does not know."""
        os.kill(self.cluster_nodes[number].pid, signal.SIGSTOP)

    def thaw_node(self, number: int) -> None:
        """Let a frozen node go on."""
        os.kill(self.cluster_nodes[number].pid, signal.SIGCONT)

    def revive_node(self, number: int) -> None:
        """Start a node that was ended; return when it has caught up. Raises Unavailable."""
        self.cluster_nodes[number].start()
