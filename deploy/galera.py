"""A Galera cluster of our own: three MariaDB nodes, one of which gets all transactions, or two at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from deploy import packages, ports
from deploy.cluster import NODES, Cluster
from deploy.haproxy import Backend
from deploy.mariadb import MariaDB
from deploy.unavailable import Unavailable

PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so", "/usr/lib64/galera/libgalera_smm.so")


class GaleraNode(MariaDB):
    NAME = "MariaDB Galera"
    USER = "mysql"  # rsync, which copies a node's data to another one, would serve them as nobody where root runs it

    def join_cluster(self, *, number: int, password: str, ports_of_group: Sequence[int], ports_of_transfer: Sequence[int]) -> None:
        """Which node this is, before its first start. ``ports_of_transfer``: of full and of incremental copies."""
        self._number = number
        self._password = password
        self._group = tuple(ports_of_group)
        self._transfer = tuple(ports_of_transfer)
        self.founding = False

    def install_missing(self) -> None:
        super().install_missing()
        if _find_provider() is None:
            packages.install_packages("galera-4")
        if packages.find_program("rsync", self.PLACES) is None:
            packages.install_packages("rsync")

    def _prepare_folder(self) -> None:
        self._hand_over(self.folder)
        super()._prepare_folder()
        state = self._data_folder() / "grastate.dat"
        if self.founding and state.exists():
            state.write_text(state.read_text().replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))

    def _server_command(self) -> list[str]:
        provider = _find_provider()
        if provider is None:
            raise Unavailable(f"Galera is not installed: there is no {' or '.join(PROVIDERS)}")
        # The users are in the tables that the nodes copy: only the founder makes them
        usual = [part for part in super()._server_command() if self.founding or not part.startswith("--init-file")]
        group_port = self._group[self._number]
        full, incremental = self._transfer
        options = {
            "base_port": str(group_port),
            "gmcast.listen_addr": f"tcp://{ports.HOST}:{group_port}",
            "ist.recv_addr": f"{ports.HOST}:{incremental}",
            "gcache.size": "64M",
        }
        return [
            *usual,
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--innodb-buffer-pool-size=64M",
            "--wsrep-on=ON",
            f"--wsrep-provider={provider}",
            "--wsrep-cluster-name=superconductor",
            f"--wsrep-cluster-address=gcomm://{','.join(f'{ports.HOST}:{port}' for port in self._group)}",
            f"--wsrep-node-address={ports.HOST}:{group_port}",
            f"--wsrep-node-name=node{self._number}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={ports.HOST}:{full}",
            f"--wsrep-provider-options={';'.join(f'{name}={value}' for name, value in options.items())}",
            *(["--wsrep-new-cluster"] if self.founding else []),
        ]

    def _is_serving(self) -> bool:
        return super()._is_serving() and self.is_synced()

    def is_synced(self) -> bool:
        """Whether it has what the others have, and a quorum with them."""
        try:
            status = self._run_sql("SHOW STATUS LIKE 'wsrep_local_state'", "SHOW STATUS LIKE 'wsrep_cluster_status'")
        except Unavailable:
            return False
        return "wsrep_local_state\t4" in status and "Primary" in status.replace("non-Primary", "")


class Galera(Cluster):
    NAME = "MariaDB Galera"
    WRITERS: ClassVar[int] = 1

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port)
        notes = self._known_notes(4 * NODES)
        sql_ports, group, full, incremental = (notes.ports[start : start + NODES] for start in range(0, 4 * NODES, NODES))
        self._nodes = [GaleraNode(self.folder / f"node{n}", sql_ports[n]) for n in range(NODES)]
        for number, node in enumerate(self._nodes):
            transfer = (full[number], incremental[number])
            node.join_cluster(number=number, password=notes.password, ports_of_group=group, ports_of_transfer=transfer)

    @property
    def cluster_nodes(self) -> Sequence[GaleraNode]:
        return self._nodes

    def _start(self) -> None:
        missing = [node for node in self._nodes if not any(node.leftover_processes())]
        if len(missing) == NODES and not self._all_remember():
            self._nodes[0].founding = True
            try:
                self._nodes[0].start()
            finally:
                self._nodes[0].founding = False
            missing = missing[1:]
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(GaleraNode.start, missing))
        if not any(self.front.leftover_processes()):
            self.front.lead_to(list(self._list_backends()), check=self._write_check())
            self.front.start()

    def create_database(self, name: str, user: str, password: str) -> str:
        """As of a server: the URL leads through HAProxy."""
        url = self._nodes[0].create_database(name, user, password)
        return url.replace(f":{self._nodes[0].port}/", f":{self.port}/")

    def _all_remember(self) -> bool:
        """Whether all nodes were killed at once: then they find each other again by themselves."""
        return all((node.folder / "data" / "gvwstate.dat").exists() for node in self._nodes)

    def _list_backends(self) -> Iterator[Backend]:
        for number, node in enumerate(self._nodes):
            yield Backend(name=f"node{number}", port=node.port, backup=number >= self.WRITERS)

    def _write_check(self) -> Path:
        """A program that asks a node whether it serves. HAProxy's own look only at its greeting."""
        client = packages.find_program("mariadb", MariaDB.PLACES)
        state = "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME) FROM information_schema.GLOBAL_STATUS"
        query = f"{state} WHERE VARIABLE_NAME IN ('wsrep_cluster_status', 'wsrep_local_state')"
        return self._write_program(
            "check",
            "#!/bin/sh\n# Whether a node has quorum (Primary) and has caught up (4)\n"
            f'found=$(timeout 5 {client} --defaults-file={self.folder}/"$HAPROXY_SERVER_NAME"/client.cnf -N -B -e "{query}")\n'
            '[ "$found" = "Primary,4" ]\n',
        )


class GaleraTwoWriters(Galera):
    """Two nodes get transactions at once."""

    WRITERS = 2


def _find_provider() -> Path | None:
    """Galera's library, where it is installed."""
    return next((path for path in map(Path, PROVIDERS) if path.exists()), None)
