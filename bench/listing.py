"""What a list of servers costs with a hundred cells, some of them down, and what an idle cell costs a process of the API level.

    python bench/listing.py            100 cells and 20,000 servers on MariaDB, and again on SQLite (about three minutes)
    python bench/listing.py --smoke    a few cells and servers on SQLite; figures not to be quoted

``--server mariadb|postgresql|sqlite``, ``--cells N``, ``--servers N``, ``--runs N``; ``--spec-size KIB``
of metadata in each request spec. The databases are new ones and are removed at
the end; on a server all cells share one, as what is measured does not depend on what is in it. A cell that is down is one whose
server takes connections and never answers, or whose file is missing. Requests go through the application itself, without HTTP; of
several runs the quickest is told, and the slowest where waiting matters. Statements are all that the list executes, but those that
go by the clock.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import falcon.testing
import msgspec
import sqlalchemy as sa
from rich.console import Console

from api.main import build_app
from api.opts import ApiSettings
from bench import _ledger
from bench._script import parser_of, print_table
from cells.fan_out import fan_out
from cells.registry import CellRegistry, RegistrySettings
from conductor.silence import SilenceWatch
from db.api.deployment import cell_mappings
from db.api.rows import spec_fields
from db.api.rows.tables import instance_mappings, request_specs
from db.cell import feed
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import stored
from objects.cell import CELL0_UUID, UNKNOWN_CELLS_HEADER, CellMapping
from objects.spec import Image, RequestSpec, ServerProperties
from rpc.transport import Bus
from tests.support import fleet

IDLE = Path(__file__).with_name("_idle.py")
PER_BATCH = 5
LISTS = {
    "first page of all tenants": "all_tenants=1",
    "the tenth page": "all_tenants=1&marker={tenth}",
    "of a project with 100 servers": "all_tenants=1&project_id=p7",
    "sorted by name": "all_tenants=1&sort_key=display_name",
    "sorted by flavor": "all_tenants=1&sort_key=instance_type_id",
    "by flavor and tag": "all_tenants=1&flavor=large&tags=blue",
    "by name, one found": "all_tenants=1&name=^server-123$",
    "by fifty tags that none has": "all_tenants=1&tags=" + ",".join(f"t{number}" for number in range(50)),
}


class Bench:
    """One API database with its cells and servers, and an API on it."""

    def __init__(self, url: str, cells: list[CellMapping], servers: int, spec_size: int) -> None:
        self.database = Database(url, name="api")
        self.cells = cells[1:]
        for cell in cells:
            self.database.write(cell_mappings.create, cell)
        self.uuids = [str(uuid.uuid4()) for _ in range(servers)]
        self._insert_servers({"role": "web"} | {f"key-{number}": "x" * 250 for number in range(4 * spec_size)})
        self.registry = CellRegistry(self.database)
        settings = ApiSettings(allowed_hosts=("falconframework.org",), max_limit=1000)
        self.client = falcon.testing.TestClient(
            build_app(settings, self.registry, self.database, Bus("embedded://bench/listing", name="api"), None)
        )

    def get(self, path: str) -> falcon.testing.Result:
        answer = self.client.simulate_get(path)
        assert answer.status_code == 200, answer.text
        return answer

    def close(self) -> None:
        self.registry.close()
        self.database.dispose_connections()

    def silence_cells(self, count: int, dead: str) -> None:
        """Let the first cells be down, and a conductor find out."""
        for cell in self.cells[:count]:
            mapping = self.database.read(cell_mappings.get, cell.uuid)
            self.database.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, database_url=dead))
        conductor = CellRegistry(self.database, RegistrySettings())
        fan_out(conductor.list_cells()[:count], feed.read_head)
        SilenceWatch(self.database, conductor).run_round()
        conductor.close()
        self.registry.refresh_cells()

    def _insert_servers(self, metadata: dict[str, str]) -> None:
        servers, specs = [], dict[str, RequestSpec]()
        for number, instance_uuid in enumerate(self.uuids):
            if number % PER_BATCH == 0:
                large = number % 3 == 0
                spec = fleet.spec(
                    msgspec.structs.replace(fleet.flavor(4 if large else 1), flavor_id="large" if large else "small"),
                    num_instances=PER_BATCH,
                    image=Image(id=str(uuid.uuid4())),
                    properties=ServerProperties(tags=("blue",) if number % 2 else ("green", "web"), metadata=metadata),
                )
                specs[spec.batch_id] = spec
            at = 1_700_000_000.0 + number
            servers.append(
                {
                    "instance_uuid": instance_uuid,
                    "batch_id": spec.batch_id,
                    "cell_uuid": self.cells[number % len(self.cells)].uuid,
                    "project_id": f"p{number // 100}",
                    "user_id": "u",
                    "name": f"server-{number}",
                    "state": "active",
                    "host": f"host-{number % 997}",
                    "node": f"host-{number % 997}",
                    "created_at": at,
                    "updated_at": at,
                }
            )
        rows = [
            {"batch_id": b, "spec": stored.dump_value(s), "created_at": 1.0, **spec_fields.columns_of(s)} for b, s in specs.items()
        ]
        self.database.write(_ledger.insert_rows, request_specs, rows)
        self.database.write(spec_fields.label_batches, specs)
        self.database.write(_ledger.insert_rows, instance_mappings, servers)


class Runs(NamedTuple):
    """Milliseconds of a call in several runs: the quickest, the slowest, and the least CPU of this process; its statements."""

    quickest: float
    slowest: float
    cpu: float
    statements: int


def time_runs(call: Callable[[], object], runs: int) -> Runs:
    spent, used = [], []
    for _ in range(runs):
        begun, cpu = time.perf_counter(), time.process_time()
        call()
        spent.append((time.perf_counter() - begun) * 1000)
        used.append((time.process_time() - cpu) * 1000)
    with StatementCounter() as counter:
        call()
    executed = sum(count.executions for (_, text), count in counter.count_by_statement().items() if "epochs" not in text)
    return Runs(min(spent), max(spent), min(used), executed)


def measure_lists(bench: Bench, dead: str, runs: int, console: Console) -> None:
    """Every list with all cells up; the first with some down, beside a show."""
    tenth, rows = bench.uuids[max(0, len(bench.uuids) - 9000)], []
    for name, query in LISTS.items():
        path = f"/v2.1/servers/detail?{query.format(tenth=tenth)}"
        server_count = len(bench.get(path).json["servers"])
        listed = time_runs(partial(bench.get, path), runs)
        rows.append((name, str(server_count), f"{listed.quickest:.0f}", str(listed.statements)))
    title = f"{len(bench.uuids)} servers in {len(bench.cells)} cells"
    print_table(console, title, ("with all cells up", "servers", "ms", "statements"), rows)
    headings = ("cells down", "first page, ms", "of CPU", "statements", "show elsewhere, ms", "the slowest")
    counts = [down for down in (0, 1, 10) if down < len(bench.cells)]
    rows_down = [_row_of_down(bench, dead, down, runs) for down in counts]
    print_table(console, "some down", (*headings, "in one that is down: first, then"), rows_down)


def _row_of_down(bench: Bench, dead: str, down: int, runs: int) -> list[str]:
    page, well, sick = "/v2.1/servers/detail?all_tenants=1", f"/v2.1/servers/{bench.uuids[-1]}", ""
    if down:
        bench.silence_cells(down, dead)
    assert (UNKNOWN_CELLS_HEADER in bench.get(page).headers) is bool(down)
    bench.get(well)
    if down:
        ask = partial(bench.get, f"/v2.1/servers/{bench.uuids[down - 1]}")
        first, _, then = (time_runs(ask, count).quickest for count in (1, 3, 5))
        sick = f"{first:.0f}, {then:.1f}"
    listed, shown = time_runs(partial(bench.get, page), runs), time_runs(partial(bench.get, well), 10 * runs)
    figures = (
        f"{listed.quickest:.0f}",
        f"{listed.cpu:.0f}",
        str(listed.statements),
        f"{shown.quickest:.1f}",
        f"{shown.slowest:.1f}",
    )
    return [str(down), *figures, sick]


def measure_idle(
    make: Callable[[int], contextlib.AbstractContextManager[str]], counts: tuple[int, ...], seconds: float, console: Console
) -> None:
    """What a process holds that nobody asks anything, ``seconds`` after its start and watched for as long."""
    rows = []
    for role, count in product(("api", "api asked", "conductor"), counts):
        with make(count) as url:
            command = [sys.executable, str(IDLE), role, url, str(seconds)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append((role, str(count), *output.split()[-4:]))
    print_table(console, "Idle", ("idle process", "cells", "RSS, MiB", "threads", "open files", "CPU ms/s"), rows)


def mappings_for(count: int, url_of: Callable[[str], str]) -> list[CellMapping]:
    names = [f"cell{number:03}" for number in range(count)]
    return [
        CellMapping(uuid=str(uuid.uuid4()), name=name, database_url=url_of(name), transport_url=f"embedded://bench/listing/{name}")
        for name in names
    ]


@contextlib.contextmanager
def prepared_databases(server: str, count: int) -> Iterator[tuple[str, list[CellMapping], str]]:
    """The URL of an API database, mappings of cell0 and of cells that answer, and a database URL that does not."""
    with contextlib.ExitStack() as stack:
        url, server = stack.enter_context(_ledger.database_on(server))
        seed, _ = stack.enter_context(_ledger.database_on(server, "cell"))
        cell0 = CellMapping(uuid=CELL0_UUID, name="cell0", database_url=seed, transport_url="none:///")
        if server == "sqlite":
            file = Path(str(sa.make_url(seed).database))

            def copy_database(name: str) -> str:
                shutil.copy(file, file.with_name(f"{name}.db"))
                return f"sqlite:///{file.with_name(name)}.db"

            yield url, [cell0, *mappings_for(count, copy_database)], f"sqlite:///{file.with_name('missing')}.db"
            return
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        dead = sa.make_url(seed).set(host="127.0.0.1", port=listener.getsockname()[1]).render_as_string(hide_password=False)
        yield url, [cell0, *mappings_for(count, lambda _: seed)], dead


@contextlib.contextmanager
def with_cells(server: str, count: int) -> Iterator[str]:
    with prepared_databases(server, count) as (url, cells, _):
        database = Database(url)
        for cell in cells:
            database.write(cell_mappings.create, cell)
        database.dispose_connections()
        yield url


def main() -> None:
    parser = parser_of(__doc__, "a few cells and servers on SQLite")
    parser.add_argument("--server", choices=("mariadb", "postgresql", "sqlite"))
    parser.add_argument("--cells", type=int)
    parser.add_argument("--servers", type=int)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--spec-size", type=int, default=0, help="KiB of metadata in each request spec")
    options = parser.parse_args()
    cells = options.cells or (3 if options.smoke else 100)
    console = Console(width=130)
    for server in [options.server] if options.server else ["sqlite"] if options.smoke else ["mariadb", "sqlite"]:
        console.rule(server)
        with prepared_databases(server, cells) as (url, mappings, dead):
            bench = Bench(url, mappings, options.servers or (60 if options.smoke else 20_000), options.spec_size)
            measure_lists(bench, dead, options.runs or (1 if options.smoke else 7), console)
            bench.close()
        most = cells if server == "sqlite" else min(cells, 50)  # each holds a connection, of which a server has few
        counts, seconds = ((1,), 0.5) if options.smoke else ((0, 10, most), 8.0)
        measure_idle(partial(with_cells, server), counts, seconds, console)


if __name__ == "__main__":
    main()
