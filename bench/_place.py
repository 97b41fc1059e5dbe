"""A region of its own for measuring: large hosts whose guests spawn in no time, and what is asked of it over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import SplitResult, urlsplit

from bench._counters import Meter
from ci.stages import is_missing_accepted
from deploy.local.backing import Backing
from deploy.local.folder import DATABASE, Folder, Notes
from deploy.local.make import make_region, notes_of
from deploy.local.options import edit_file, set_options
from deploy.local.processes import clean_environment
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.start import Start
from deploy.local.stop import stop
from deploy.servers import MariaDB, Unavailable

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
FLAVOR_MEMORY_MB = 64
"""MiB of a server."""
FLAVOR = ("bench", "--vcpus", "1", "--ram", str(FLAVOR_MEMORY_MB), "--disk", "0")
SMALL = Shape(apis=1, supers=1, schedulers=1, conductors=1, agents=2)
"""For short runs."""
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


class CountingMariaDB(MariaDB):
    """It keeps each statement with its connection."""

    def _server_command(self) -> list[str]:
        size = f"--performance-schema-events-statements-history-long-size={STATEMENTS_KEPT}"
        consumers = [f"--performance-schema-consumer-events-statements-{name}=ON" for name in ("current", "history-long")]
        return [*super()._server_command(), "--performance-schema=ON", size, *consumers]


class CountingBacking(Backing):
    """Its database is such a one."""

    def __init__(self, folder: Folder, notes: Notes) -> None:
        super().__init__(folder, notes)
        self._database = CountingMariaDB(folder.path / DATABASE, notes.database_port)
        self.servers = (self._rabbit, self._database)


class Bench(NamedTuple):
    """A region that serves, what its servers count, and a client of its APIs."""

    region: Region
    meter: Meter
    client: Client


@contextmanager
def running_region(
    shape: Shape,
    *,
    smoke: bool,
    messages: bool = True,
    slots: int | None = None,
    backing: type[Backing] = Backing,
    prepare: Callable[[Region], object] = lambda _: None,
    patience: float = 240.0,
) -> Iterator[Bench]:
    """A new region, in which a boot works; stopped and removed at the end. Its intervals are the product's own defaults.

    ``messages``: as ``Meter`` says. ``slots``: how many servers each host takes; None: as many as come. ``backing``: the servers.
    ``prepare``: called before its processes start. ``patience``: seconds that these may take.

    The script ends where no region can be had: well in its short form if that is accepted, as by ``make test``.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # through everything that stops the region
    for name in os.environ.keys() - clean_environment().keys():  # processes of a region read their files only
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="superconductor-bench-") as name:
        Path(name).chmod(0o711)  # a database server of another user must get to its own folder
        folder = Folder(Path(name))
        with folder.hold_lock():
            region = Region(folder, notes_of(folder, shape), lambda _: None)
            region.backing = backing(folder, region.notes)
            try:
                make_region(region)
                region.commands.run("flavor", "create", *FLAVOR)
                _set_options(folder, shape, slots)
                prepare(region)
                with contextlib.closing(Meter(region, messages=messages)) as meter:
                    start_processes(region, patience)
                    yield Bench(region, meter, Client(region))
            except Unavailable as error:
                end_unmeasured(f"No region can be had here: {error}", smoke=smoke)
            finally:
                stop(region)


def end_unmeasured(why: str, *, smoke: bool) -> NoReturn:
    """End the script, which lacks something of the machine: well in its short form if that is accepted."""
    print(why)
    sys.exit(0 if smoke and is_missing_accepted() else 1)


def _set_options(folder: Folder, shape: Shape, slots: int | None) -> None:
    """Large hosts whose guests spawn in no time, and the product's own intervals."""
    room = ROOM if slots is None else {**ROOM, "memory_mb": str(slots * FLAVOR_MEMORY_MB)}
    described = [f"{cell}-hosts" for cell in shape.cell_names()] if shape.is_crowded else [h.name for h in shape.list_hosts()]
    for name in described:
        set_options(folder.etc / f"{name}.conf", "simulated", room)
    for cell in shape.cell_names():
        set_options(folder.etc / f"{cell}-compute.conf", "simulated", AT_ONCE)
    for name in ("api", *shape.cell_names(), *(f"{cell}-compute" for cell in shape.cell_names())):
        with edit_file(folder.etc / f"{name}.conf") as parser:
            for section, option in product(("DEFAULT", *parser.sections()), SHORTENED_OPTIONS):
                parser.remove_option(section, option)


def start_processes(region: Region, patience: float = 240.0) -> None:
    """Start what does not run, and return when a boot would work."""
    Start(region, patience).run()


class Client:
    """Asks the APIs of a region, each thread by a connection of its own that stays open. Cheap, as it shares the machine."""

    def __init__(self, region: Region) -> None:
        self._addresses = [urlsplit(endpoint) for endpoint in region.notes.api_endpoints()]
        self._local = threading.local()
        self._threads = itertools.count()
        flavors: Any = self._send_request("GET", "/flavors")["flavors"]
        (self.flavor,) = [str(flavor["id"]) for flavor in flavors if flavor["name"] == FLAVOR[0]]

    def boot_servers(self, name: str, count: int = 1, host: str | None = None) -> str:
        """Boot ``count`` servers, on this host if one is named; the id of the first."""
        body = self._boot_body(name, count)
        if host is not None:
            body["availability_zone"] = f"nova:{host}"
        return str(self._send_request("POST", "/servers", {"server": body})["server"]["id"])

    def boot_by_turns(self, name: str, turn: int) -> None:
        """Boot one server by a new connection to one of the APIs, so that a repetition at another one boots no second server.

        Raises OSError or HTTPException where that API does not answer.
        """
        address = self._addresses[turn % len(self._addresses)]
        with contextlib.closing(_open_connection(address)) as connection:
            _exchange_json(
                connection, "POST", f"{address.path}/servers", {"server": self._boot_body(name, 1)}, {"Idempotency-Key": name}
            )

    def get_status(self, uuid: str) -> str:
        return str(self._send_request("GET", f"/servers/{uuid}")["server"]["status"])

    def delete(self, uuid: str) -> None:
        self._send_request("DELETE", f"/servers/{uuid}")

    def _boot_body(self, name: str, count: int) -> dict[str, object]:
        return {"name": name, "flavorRef": self.flavor, "imageRef": IMAGE, "min_count": count, "max_count": count}

    def _send_request(self, method: str, path: str, body: object = None) -> dict[str, dict[str, str]]:
        if not hasattr(self._local, "connection"):
            address = self._addresses[next(self._threads) % len(self._addresses)]
            self._local.connection, self._local.prefix = _open_connection(address), address.path
        return _exchange_json(self._local.connection, method, self._local.prefix + path, body)


def _open_connection(address: SplitResult) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)


def _exchange_json(
    connection: http.client.HTTPConnection, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
) -> dict[str, dict[str, str]]:
    """The answer to one request. Raises AssertionError if it is refused."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    connection.request(method, path, json.dumps(body) if body else None, sent)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status in (200, 202, 204), f"{answer.status}: {content[:300]!r}"
    parsed: dict[str, dict[str, str]] = json.loads(content or b"{}")
    return parsed
