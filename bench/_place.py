"""A region of its own for measuring: large hosts whose guests spawn in no time, and what is asked of it over HTTP."""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deploy.local.backing import Backing
from deploy.local.folder import DATABASE, Folder, Notes
from deploy.local.make import make_region, notes_of
from deploy.local.options import edit_file, set_options
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.start import Start
from deploy.local.stop import stop
from deploy.servers import MariaDB

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
FLAVOR_MEMORY_MB = 64
"""MiB of a server."""
FLAVOR = ("bench", "--vcpus", "1", "--ram", str(FLAVOR_MEMORY_MB), "--disk", "0")
QUORUM = "?rabbit_quorum_queue=true"
ROOM = {"vcpus": "4000", "memory_mb": str(1 << 24), "disk_gb": "100000"}
"""Of every host: capacity limits nothing here."""
AT_ONCE = {"spawn_delay_min": "0", "spawn_delay_max": "0"}
SHORTENED_OPTIONS = (
    "sweep_interval",
    "idle_interval",
    "resend_age",
    "service_down_time",
    "report_interval",
    "stats_interval",
    "stats_full_interval",
    "audit_interval",
    "build_timeout",
)
"""What a local region does oftener or gives up sooner than the product by default, so that who tries it out waits for less."""


STATEMENTS_KEPT = 200_000
"""Statements that a counting server remembers one by one, if it is asked to."""


class QuorumBacking(Backing):
    """Its broker's URLs ask for quorum queues: in the files of all processes and in the cell mappings."""

    def make_hosts(self, names: Iterable[str]) -> Mapping[str, str]:
        return {name: url + QUORUM for name, url in super().make_hosts(names).items()}


class CountingMariaDB(MariaDB):
    """It counts statements by their text."""

    def _server_command(self) -> list[str]:
        size = f"--performance-schema-events-statements-history-long-size={STATEMENTS_KEPT}"
        return [*super()._server_command(), "--performance-schema=ON", size]


class CountingBacking(Backing):
    """Its database is such a one."""

    def __init__(self, folder: Folder, notes: Notes) -> None:
        super().__init__(folder, notes)
        self._database = CountingMariaDB(folder.path / DATABASE, notes.database_port)
        self.servers = (self._rabbit, self._database)


@contextmanager
def prepared_region(
    shape: Shape, *, quorum: bool = False, slots: int | None = None, backing: type[Backing] = Backing, hurried: bool = False
) -> Iterator[Region]:
    """A region with its servers but none of its own processes yet (``start_processes`` starts them); stopped and removed at the
    end.

    ``slots``: how many servers each host takes; None: as many as come. ``backing``: the servers, where queues are classic.
    ``hurried``: it looks after itself as often as a local region does, and not at the product's own intervals.

    Raises ``deploy.servers.Unavailable`` where a server cannot be had.
    """
    with tempfile.TemporaryDirectory(prefix="superconductor-bench-") as name:
        Path(name).chmod(0o711)  # a database server of another user must get to its own folder
        folder = Folder(Path(name))
        with folder.hold_lock():
            notes: Notes = notes_of(folder, shape)
            region = Region(folder, notes, lambda _: None)
            region.backing = (QuorumBacking if quorum else backing)(folder, notes)
            try:
                make_region(region)
                region.commands.run("flavor", "create", *FLAVOR)
                described = (
                    [f"{cell}-hosts" for cell in shape.cell_names()] if shape.is_crowded else [h.name for h in shape.list_hosts()]
                )
                for name in described:
                    room = ROOM if slots is None else {**ROOM, "memory_mb": str(slots * FLAVOR_MEMORY_MB)}
                    set_options(folder.etc / f"{name}.conf", "simulated", room)
                for cell in shape.cell_names():
                    set_options(folder.etc / f"{cell}-compute.conf", "simulated", AT_ONCE)
                if not hurried:
                    for name in ("api", *shape.cell_names(), *(f"{cell}-compute" for cell in shape.cell_names())):
                        _unset_options(folder.etc / f"{name}.conf", SHORTENED_OPTIONS)
                yield region
            finally:
                stop(region)


def start_processes(region: Region, patience: float = 240.0) -> None:
    """Start the processes and return when a boot would work."""
    Start(region, patience).run()


def _unset_options(file: Path, options: Iterable[str]) -> None:
    """Leave these options of any section to their defaults."""
    with edit_file(file) as parser:
        for section in parser.sections():
            for option in options:
                parser.remove_option(section, option)


class Client:
    """Asks the APIs of a region, each thread by a connection of its own that stays open. Cheap, as it shares the machine."""

    def __init__(self, region: Region) -> None:
        self._addresses = [urlsplit(endpoint) for endpoint in region.notes.api_endpoints()]
        self.flavor = ""
        self._local = threading.local()
        self._lock = threading.Lock()
        self._threads = 0
        flavors: Any = self._send_request("GET", "/flavors", None)["flavors"]
        (self.flavor,) = [flavor["id"] for flavor in flavors if flavor["name"] == FLAVOR[0]]

    def boot_servers(self, name: str, count: int = 1, host: str | None = None) -> str:
        """Boot ``count`` servers, on this host if one is named; the id of the first."""
        body: dict[str, object] = {
            "name": name,
            "flavorRef": self.flavor,
            "imageRef": IMAGE,
            "min_count": count,
            "max_count": count,
        }
        if host is not None:
            body["availability_zone"] = f"nova:{host}"
        return str(self._send_request("POST", "/servers", {"server": body})["server"]["id"])

    def get_status(self, uuid: str) -> str:
        return str(self._send_request("GET", f"/servers/{uuid}", None)["server"]["status"])

    def delete(self, uuid: str) -> None:
        self._send_request("DELETE", f"/servers/{uuid}", None)

    def _send_request(self, method: str, path: str, body: object) -> dict[str, dict[str, str]]:
        connection, prefix = self._open_connection()
        connection.request(method, prefix + path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status in (200, 202, 204), f"{answer.status}: {content[:300]!r}"
        parsed: dict[str, dict[str, str]] = json.loads(content or b"{}")
        return parsed

    def _open_connection(self) -> tuple[http.client.HTTPConnection, str]:
        if not hasattr(self._local, "connection"):
            with self._lock:
                address = self._addresses[self._threads % len(self._addresses)]
                self._threads += 1
            self._local.connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
            self._local.prefix = address.path
        return self._local.connection, self._local.prefix
