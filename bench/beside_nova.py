"""What it costs to stay current beside a Nova: statements, seconds of CPU, and wall time of a load and of polls.

``python bench/beside_nova.py --server mysql://root@127.0.0.1 --nova .venv-nova-cloud/bin/python`` has Nova and Placement make their
schemas on that MariaDB, and fills them. Without ``--server`` the databases are files of SQLite without indexes.

Every second a tenth of the hosts sends a heartbeat, as agents of Nova do. ``--claims`` of them get a claim.

CPU is that of this process, not of the database.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first
sys.path.remove(str(Path(__file__).parent))  # this file is no room of the product, and has the name of one

import sqlalchemy as sa

from bench._script import parser_of
from beside_nova import schema
from beside_nova.opts import NovaSettings
from beside_nova.site import read_site
from beside_nova.state import THOROUGH_INTERVAL_S, NovaState, open_databases
from tests.conformance.beside.__main__ import NovaTools
from tests.support.nova_cloud import NovaCloud

HEARTBEAT_S = 10
SERVERS_PER_HOST = 5
PAGE = 2_000


class FilledCloud:
    """Rows of a fleet in databases that exist. ``urls``: by ``api``, ``cell1`` and ``placement``."""

    def __init__(self, urls: dict[str, str], hosts: int) -> None:
        self.hosts = hosts
        self._engines = {name: sa.create_engine(url) for name, url in urls.items()}
        self._turn = 0
        numbers = range(1, hosts + 1)
        uuids = {number: str(UUID(int=number)) for number in numbers}
        moment = _utc_now()
        with self._engines["api"].connect() as connection:
            cell = connection.execute(
                sa.select(schema.cell_mappings.c.id).where(schema.cell_mappings.c.name == "cell1")
            ).scalar_one()
        with self._engines["placement"].connect() as connection:
            self._classes = dict(
                map(tuple, connection.execute(sa.select(schema.resource_classes.c.name, schema.resource_classes.c.id)))
            )
        self._insert_rows(
            "api", "host_mappings", ({"id": n, "cell_id": cell, "host": f"h{n}", "created_at": moment} for n in numbers)
        )
        times = {"created_at": moment, "updated_at": moment}
        service = {"binary": "nova-compute", "disabled": 0, "forced_down": 0, "deleted": 0, "last_seen_up": moment, **times}
        self._insert_rows("cell1", "services", ({"id": n, "host": f"h{n}", "topic": "compute", **service} for n in numbers))
        node = {  # agents write it where something has changed
            "vcpus": 64,
            "memory_mb": 262144,
            "local_gb": 2000,
            "hypervisor_type": "QEMU",
            "hypervisor_version": 8002000,
            "supported_instances": '[["x86_64", "kvm", "hvm"]]',
            "stats": '{"failed_builds": "0", "io_workload": "0"}',
            "running_vms": SERVERS_PER_HOST,
            "deleted": 0,
            "created_at": moment,
            "updated_at": moment - timedelta(hours=1),
        }
        self._insert_rows(
            "cell1",
            "compute_nodes",
            ({"id": n, "uuid": uuids[n], "host": f"h{n}", "hypervisor_hostname": f"h{n}", **node} for n in numbers),
        )
        provider = {"generation": 1, "created_at": moment, "updated_at": moment - timedelta(hours=1)}
        self._insert_rows(
            "placement",
            "resource_providers",
            ({"id": n, "uuid": uuids[n], "name": f"h{n}", "root_provider_id": n, **provider} for n in numbers),
        )
        totals = {"VCPU": 64, "MEMORY_MB": 262144, "DISK_GB": 2000}
        units = {"reserved": 0, "min_unit": 1, "step_size": 1, "allocation_ratio": 1.0}
        self._insert_rows(
            "placement",
            "inventories",
            (
                {"resource_provider_id": n, "resource_class_id": self._classes[name], "total": total, "max_unit": total, **units}
                for n in numbers
                for name, total in totals.items()
            ),
        )
        self._insert_rows(
            "placement",
            "allocations",
            (
                row
                for n in numbers
                for server in range(SERVERS_PER_HOST)
                for row in self._claim_rows(n, str(UUID(int=(n << 32) + server)))
            ),
        )

    def send_heartbeats(self) -> None:
        """A second of the fleet."""
        self._turn += 1
        change = sa.update(schema.services).where(schema.services.c.id % HEARTBEAT_S == self._turn % HEARTBEAT_S)
        with self._engines["cell1"].begin() as connection:
            connection.execute(change.values(last_seen_up=_utc_now(), updated_at=_utc_now()))

    def claim_hosts(self, count: int) -> None:
        """So many hosts get a claim."""
        numbers = [(self._turn * count + step) % self.hosts + 1 for step in range(count)]
        rows = [row for number in numbers for row in self._claim_rows(number, str(UUID(int=(self._turn << 64) + number)))]
        self._insert_rows("placement", "allocations", iter(rows))
        p = schema.resource_providers.c
        with self._engines["placement"].begin() as connection:
            change = sa.update(schema.resource_providers).where(p.id.in_(numbers))
            connection.execute(change.values(generation=p.generation + 1, updated_at=_utc_now()))

    def _claim_rows(self, number: int, consumer: str) -> list[dict[str, Any]]:
        amounts = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}
        return [
            {"resource_provider_id": number, "resource_class_id": self._classes[name], "consumer_id": consumer, "used": used}
            for name, used in amounts.items()
        ]

    def _insert_rows(self, database: str, table: str, rows: Iterator[dict[str, Any]]) -> None:
        """Columns that a real schema needs beyond these are 0 or empty."""
        reflected = sa.Table(table, sa.MetaData(), autoload_with=self._engines[database])
        first = next(rows, None)
        if first is None:
            return
        needed = {
            column.name: 0 if isinstance(column.type, sa.Integer) else ""
            for column in reflected.columns
            if not column.nullable and column.server_default is None and not column.primary_key and column.name not in first
        }
        with self._engines[database].begin() as connection:
            page = [needed | first]
            for row in rows:
                page.append(needed | row)
                if len(page) == PAGE:
                    connection.execute(sa.insert(reflected), page)
                    page = []
            if page:
                connection.execute(sa.insert(reflected), page)


@contextlib.contextmanager
def made_cloud(hosts: int, server: str | None, python: Path | None) -> Iterator[tuple[FilledCloud, NovaSettings]]:
    """A cloud of one cell with so many hosts."""
    with tempfile.TemporaryDirectory(prefix="beside-nova-") as name:
        if server is None or python is None:
            cloud = NovaCloud(Path(name))
            cloud.add_cell("cell1")
            urls = {"api": cloud.url_of("nova_api"), "cell1": cloud.url_of("cell1"), "placement": cloud.url_of("placement")}
            yield FilledCloud(urls, hosts), cloud.settings
            return
        tools = NovaTools(python, server, Path(name))
        with tools.made_databases():
            tools.sync_placement()
            settings = NovaSettings(config_file=str(tools.nova_conf), placement_connection=tools.urls["placement"])
            yield FilledCloud({key: tools.urls[key] for key in ("api", "cell1", "placement")}, hosts), settings


class Costs:
    """Statements, CPU and wall time since it was made."""

    def __init__(self, state: NovaState) -> None:
        self._state, self._statements = state, state.statement_count
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def show_line(self, label: str) -> None:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        statements = self._state.statement_count - self._statements
        print(f"  {label:34} {statements:8.1f} {1e3 * cpu:10.1f} {1e3 * wall:10.1f}", flush=True)


def measure_costs(cloud: FilledCloud, settings: NovaSettings, polls: int, claims: int) -> None:
    site = read_site(settings)
    state = NovaState(open_databases(site.nova), site.service_down_time)
    print(f"{cloud.hosts:,} hosts{'':26} {'statements':>10} {'CPU ms':>9} {'wall ms':>10}")
    costs = Costs(state)
    state.load_all()
    costs.show_line("load")
    assert not state.left_out
    for changed in (0, claims):
        quick: list[tuple[int, float, float]] = []
        for _ in range(polls):
            cloud.send_heartbeats()
            cloud.claim_hosts(changed)
            before = state.statement_count, time.process_time(), time.perf_counter()
            state.poll_changes()
            after = state.statement_count, time.process_time(), time.perf_counter()
            quick.append((after[0] - before[0], after[1] - before[1], after[2] - before[2]))
            time.sleep(max(0.0, 1.0 - (time.perf_counter() - before[2])))
        statements, cpu, wall = (sum(column) / polls for column in zip(*quick, strict=True))
        print(f"  {f'a second, {changed} claims':34} {statements:8.1f} {1e3 * cpu:10.1f} {1e3 * wall:10.1f}", flush=True)
    state.close()


def _utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def main() -> None:
    parser = parser_of(__doc__, "50 hosts, two polls")
    parser.add_argument("--hosts", type=int, action="append", help="hosts of the fleet; may be repeated")
    parser.add_argument("--claims", type=int, default=10, help="hosts that get a claim in a second")
    parser.add_argument("--seconds", type=int, default=2 * int(THOROUGH_INTERVAL_S), help="polls of each kind, one a second")
    parser.add_argument("--server", help="URL of a MariaDB where databases may be made")
    parser.add_argument("--nova", type=Path, help="interpreter with nova and openstack-placement, for --server")
    arguments = parser.parse_args()
    polls = 2 if arguments.smoke else arguments.seconds
    for hosts in [50] if arguments.smoke else arguments.hosts or [1_000, 10_000]:
        with made_cloud(hosts, arguments.server, arguments.nova) as (cloud, settings):
            measure_costs(cloud, settings, polls, arguments.claims)


if __name__ == "__main__":
    main()
