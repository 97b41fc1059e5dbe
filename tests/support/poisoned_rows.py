"""A small deployment with something in every table, whose rows a test makes unreadable one column at a time.

Its databases are SQLite, which takes any value in any column. Nothing runs by itself: a test starts the roles anew for every
column, and runs each of their sweeps once.
"""

from __future__ import annotations

import gc
import math
import re
import sqlite3
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import falcon.testing
import msgspec
import sqlalchemy as sa

from api.main import build_app
from api.opts import ApiSettings
from cells.registry import CellRegistry, RegistrySettings
from conductor.feed_follower import FeedFollower
from conductor.main import CellConductorService, SuperConductorService
from conductor.opts import ConductorSettings
from db.api.rows import tables as api_tables
from db.api.rows.cache import EpochCache
from db.api.servers import networks
from db.cell import tables as cell_tables
from images.store import FolderStore
from objects import stored
from objects.build import Report, ReportKind
from objects.context import RequestContext
from objects.network import Network, Subnet
from objects.unknown_guest import UnknownGuest
from rpc import scheduler as scheduler_topic
from scheduler.cell_reader import CellWatch
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from service.periodic import Periodic
from service.vault import Vault, new_key
from tests.support import fleet
from tests.support.api import CELL1_UUID, IMAGE, NEWEST, Front
from tests.support.databases import cell_database
from tests.support.deciding import add_hosts
from tests.support.ground import Ground
from tests.support.routes import routes_of

ADMIN = NEWEST | {"X-Project-Id": "operators", "X-User-Id": "root", "X-Roles": "admin"}
ROWS = 9
"""Of each kind of thing there are so many that a test may spoil, and two that it leaves alone."""
EVER = 1e9
DAY_S = 86400.0
"""Seconds that builds have: however slow the machine, none times out."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJw5oCmQcmlQXTpuWDUKvMkK1rKsmPcX6TnGZ1uhRsHy v"
CONTEXT = RequestContext(request_id="req-test")
CONDUCTOR = ConductorSettings(sweep_interval=1e-3, lease_seconds=30.0, resend_age=0.0, reap_interval=1e-3, service_down_time=EVER)
SCHEDULER = SchedulerSettings(warm_up=0.0, claim_window=0.0, service_down_time=EVER)
TABLES: dict[str, tuple[str, sa.Table]] = {
    **{f"api.{table.name}": ("api", table) for table in api_tables.metadata.sorted_tables},
    **{f"cell.{table.name}": ("cell1", table) for table in cell_tables.metadata.sorted_tables},
}
"""Every table by its level and name, with the database that has it."""


GOOD = "good"
SERVER_PARTS = ("explanation", "os-instance-actions", "migrations", "os-interface", "ips", "metadata", "tags", "topology")
ASKED = (
    "/v2.1/servers/detail?all_tenants=1",
    "/v2.1/servers/detail?all_tenants=1&deleted=True",
    "/v2.1/servers/detail?all_tenants=1&sort_key=host&sort_key=display_name",
    "/v2.1/servers/detail?all_tenants=1&flavor=good",
    "/v2.1/servers/detail?all_tenants=1&tags=good-active",
    "/v2.1/servers?all_tenants=1&name=good",
    "/v2.1/os-server-groups?all_projects=1",
    "/v2.1/os-keypairs?user_id=u1",
    "/v2.1/os-simple-tenant-usage?detailed=1",
    "/v2.1/flavors/detail?is_public=None",
    "/v2.1/os-hypervisors/detail?with_servers=true",
)


CHAIN = {
    "boot",
    "sweep: scheduler",
    "sweep: feeds",
    "sweep: restored databases",
    "sweep: queue",
    "sweep: cell conductor",
    "agents",
    "feeds again",
    "the boot has ended",
    "stop",
    "delete",
}
"""The steps that a boot needs, and what comes after it."""
_GOOD_NAME = re.compile(r"good(?!-host)[\w-]*")

_TEXTS = (b"\xff\xfe", "weird", "\x1b[31m", "", "x" * 300, "a\x00b", "{", 7, None)
_JSON = (b"\xff", "{", "null", "[]", '"x"', "[" * 3000, '{"a": [null, "\\ud800", 1e999]}', '{"a\\u0000": "\\u001b[31m"}', "")
_WHOLE = ("weird", 2**53, -1, b"\xff", 1.5, 1e300, 0, None, -(2**53))
_TIMES = ("then", float("inf"), -1.0, b"\xff", 1e300, -1e300, 0.0, None, "")
_BOOLEANS = ("weird", 7, -1, b"\xff", 1.5, None)
_BAD_VALUES: tuple[tuple[type, tuple[object, ...]], ...] = (
    (sa.Text, _JSON),
    (sa.String, _TEXTS),
    (sa.Boolean, _BOOLEANS),
    (sa.Integer, _WHOLE),
    (sa.Double, _TIMES),
)
"""By the type of the column; the first that fits counts."""


def tenant(project: str) -> dict[str, str]:
    return NEWEST | {"X-Project-Id": project, "X-User-Id": "u1", "X-Roles": "member"}


class Step(NamedTuple):
    """Something that happens in the deployment. ``run`` returns what it answers, or raises. ``about``: the name whose thing it is
    about; empty: everybody's.
    """

    name: str
    run: Callable[[], str]
    about: str = ""


class _Seam:
    """The endpoint of the scheduler that runs at the moment."""

    manager: Any = None

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: getattr(self.manager, name)(*args, **kwargs)


class Deployment:
    def __init__(self, folder: Path) -> None:
        store, file = FolderStore(folder / "images"), folder / "disk"
        file.write_bytes(b"x" * 512)
        store.add_image(file, name="cirros", image_id=IMAGE, min_disk=1)
        settings = ApiSettings(images_folder=str(folder / "images"), service_down_time=EVER, build_timeout=DAY_S)
        self.vault = Vault([new_key()])
        self.front = Front(Ground("lite", folder), settings, self.vault)
        self.folder = folder
        self.raw = {
            name: sqlite3.connect(folder / f"{name}.db", timeout=60.0, isolation_level=None) for name in ("api", "cell0", "cell1")
        }
        self._kept = {name: sqlite3.connect(":memory:") for name in self.raw}
        self._seam = _Seam()
        self._server = scheduler_topic.serve_topic(self.front.bus, "test", self._seam)
        add_hosts(self.front, [fleet.node(f"h{n}", vcpus=64) for n in range(4)])
        self.groups: dict[str, str] = {}
        self.servers: dict[tuple[str, str], str] = {}
        """By name and kind."""
        self.answers: dict[str, str] = {}
        """Of steps, while nothing is spoiled."""
        self.names: list[str] = []
        """Those whose things may be spoiled."""
        self.start()

    # -- roles ---------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Every role anew, with empty memories."""
        front = self.front
        self.registry = CellRegistry(front.database, RegistrySettings())
        self.client = falcon.testing.TestClient(build_app(front.settings, self.registry, front.database, front.bus, self.vault))
        self._conductor = SuperConductorService(CONDUCTOR, self.registry, front.database, front.bus, self.vault)
        cell = self.registry.get(CELL1_UUID)
        self._cell_conductor = CellConductorService(CONDUCTOR, "cell1", cell.database, front.bus, self.vault)
        scheduler = SchedulerService(SCHEDULER, self.registry, front.database, front.bus)
        self._fresh, self._seam.manager = scheduler.freshness, scheduler.manager
        self._followers: dict[str, Callable[[], object]] = {}

    def stop(self) -> None:
        for pool in (self._conductor._queue, self._conductor._builds, self._conductor._operations):
            pool.stop()
        self.registry.close()

    def close(self) -> None:
        self._server.stop()
        self.front.close()
        for connection in (*self.raw.values(), *self._kept.values()):
            connection.close()

    def look(self) -> None:
        """The scheduler looks at everything once."""
        fresh = self._fresh
        for cell in self.registry.list_cells():
            if cell.uuid not in fresh._watches:
                watch = CellWatch(cell, fresh._table, SCHEDULER, fresh._loads)
                fresh._watches[cell.uuid] = (watch, Periodic("never", EVER, watch.read_changes))
        fresh.follow_changes()
        for watch, _ in fresh._watches.values():
            _nothing(watch.read_changes)

    def follow(self) -> None:
        """Every feed is applied to its end."""
        for cell in (*self.registry.list_cells(), self.registry.cell0):
            if cell.uuid not in self._followers:
                followers = self._conductor._followers
                settings = msgspec.structs.replace(followers._settings, pause_rounds=0, interval=0.0, idle_interval=None)
                self._followers[cell.uuid] = FeedFollower(followers._context, cell, settings).keep_up
            _nothing(self._followers[cell.uuid])

    def sweeps(self) -> dict[str, Callable[[], object]]:
        """Whatever a role does by the clock."""
        found: dict[str, Callable[[], object]] = {"scheduler": self.look, "feeds": self.follow}
        for periodic in self._conductor._loops:
            if periodic.name != "cells":  # it would start threads that follow feeds
                found[periodic.name] = periodic._function
        found["restored databases"] = self._compare_marks
        self._conductor._queue._age = -1.0
        found["cell conductor"] = self._cell_conductor._sweep._function
        return found

    def _compare_marks(self) -> None:
        """What one look has compared is in force from the next one on."""
        for _ in range(3):
            self._conductor._restored.watch_marks()

    def run_agents(self) -> None:
        """The hosts begin all builds that were ordered, and end them well."""
        query = "SELECT uuid, host, fence, attempt FROM instances WHERE state = 'staged' AND typeof(attempt) = 'integer'"
        mapped = self.raw["api"].execute("SELECT instance_uuid FROM instance_mappings WHERE cell_uuid IS NOT NULL")
        ordered = {uuid for (uuid,) in mapped}
        rows = [row for row in self.raw["cell1"].execute(query) if row[0] in ordered]
        for kind in (ReportKind.ACCEPT, ReportKind.ACTIVE):
            reports = [
                Report(kind=kind, instance_uuid=key, host=host, fence=fence, attempt=attempt, builder=f"{host}:a")
                for key, host, fence, attempt in rows
            ]
            if reports:
                self._cell_conductor._endpoint.report(CONTEXT, reports)

    # -- asking --------------------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, headers: Mapping[str, str] = ADMIN, **given: Any) -> falcon.testing.Result:
        return self.client.simulate_request(method, path, headers=dict(headers), **given)

    def do(self, method: str, path: str, headers: Mapping[str, str] = ADMIN, **given: Any) -> Any:
        """Something that must go well; its answer."""
        answer = self.ask(method, path, headers, **given)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json if answer.text else None

    def boot(self, name: str, project: str, **fields: Any) -> str:
        server = {"name": name, "flavorRef": "1", "imageRef": IMAGE, "networks": "none", "metadata": {"k": name}, "tags": [name]}
        hints = fields.pop("hints", {})
        given = {"json": {"server": server | fields} | ({"os:scheduler_hints": hints} if hints else {})}
        key = {"Idempotency-Key": name}
        return str(self.do("POST", "/v2.1/servers", tenant(project) | key, **given)["server"]["id"])

    # -- what there is ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything that was asked for has happened, as far as hosts have no part in it."""
        for _ in range(2):
            self.look()
            for run in self.sweeps().values():
                run()
            self.run_agents()
            self.follow()

    def fill(self, names: Sequence[str]) -> None:
        """One thing of every kind under each name."""
        for name in names:
            self._define(name)
        active = {name: self.boot(f"{name}-active", name, networks=[{"port": self._port(name)}]) for name in names}
        moving = {name: self.boot(f"{name}-moving", name, networks=[{"uuid": _uuid(f"{name} network")}]) for name in names}
        stopping = {name: self.boot(f"{name}-stopping", name) for name in names}
        shelved = {name: self.boot(f"{name}-shelved", name) for name in names}
        imaged = {name: self.boot(f"{name}-imaged", name) for name in names}
        self.settle()
        for name in names:
            self._change(name, active[name])
            self._act(moving[name], {"migrate": None})
            self._act(stopping[name], {"os-stop": None})
            self._act(shelved[name], {"shelve": None})
            self._act(imaged[name], {"createImage": {"name": f"{name} image"}})
        self.settle()
        for kind, servers in (("active", active), ("moving", moving)):
            self.servers |= {(name, kind): server for name, server in servers.items()}
        for name in names:
            self._write_rest(name, active[name], stopping[name])

    def _write_rest(self, name: str, server: str, deleting: str) -> None:
        """Rows that come about by what hosts and processes do, or by what fails."""
        now = time.time()
        facts = stored.dump_value({"key": name, "facts": {}})
        notice: dict[str, Any] = {"message_id": _uuid(f"{name} notice"), "event_type": "instance.update", "priority": "INFO"}
        notice |= {"subject": server}
        notice |= {"facts": facts, "at": now, "taken_until": 0.0}
        letter = {"step": "operations", "key": name, "reason": "why", "tries": 1, "first_at": now, "last_at": now, "due": now + 900}
        process = {"uuid": _uuid(f"{name} process"), "binary": "superconductor-api", "host": name, "pid": 1, "release": "1.0"}
        process |= {"messages": "1.0", "started_at": now, "last_seen": now}
        place = {"server_uuid": server, "body_uuid": server, "console_type": "serial", "host": "h1", "address": "10.0.0.1"}
        content = {"disk_format": "raw", "size": 512, "virtual_size": 512, "hash_value": "0" * 128}
        guest = UnknownGuest(
            uuid=_uuid(f"{name} guest"),
            name=name,
            node="h1",
            fence=1,
            attempt=1,
            builder="b",
            vcpus=1,
            memory_mb=1,
            disk_gb=1,
            reason="r",
        )
        slot = {"group_uuid": self.groups[name], "instance_uuid": server, "host": "h1", "held": False, "fault_domain": "r1"}
        gone = _uuid(f"{name} cell")  # that was removed
        rows: dict[str, dict[str, Any]] = {
            "api.api_dead_letters": letter | {"skipped": False},
            "api.api_processes": process,
            "api.console_tokens": place | {"digest": sha256(name.encode()).hexdigest(), "port": 6000, "expires_at": now + 900},
            "api.group_slots": slot,
            "api.image_removals": {"image_id": _uuid(f"{name} removal"), "written_by": deleting, "since": now},
            "api.images": content
            | {"image_id": _uuid(f"{name} image"), "project_id": name, "name": name, "status": "active", "created_at": now},
            "api.notifications": notice,
            "api.cell_marks": {"cell_uuid": gone, "mark": 1},
            "api.cell_silences": {"cell_uuid": gone, "since": now, "reason": name},
            "api.feed_cursors": {"cell_uuid": gone, "sequence": 1},
            "api.writers": {"name": name, "started": now},
            "cell.block_device_mappings": {"instance_uuid": server, "position": 0, "mapping": "{}"},
            "cell.build_secrets": {"batch_id": _uuid(f"{name} batch"), "sealed": "cell1:x", "created_at": now},
            "cell.cell_dead_letters": letter | {"skipped": False},
            "cell.cell_notifications": notice,
            "cell.cell_processes": process,
            "cell.host_terms": {"host": f"{name}-terms", "node": name, "accepted": "{}", "waiting": "{}", "ratios": "{}"},
            "cell.instance_actions": {
                "instance_uuid": server,
                "action": "delete",
                "request_id": "r",
                "written_at": now,
                "started_at": now,
            },
            "cell.instance_faults": {"instance_uuid": server, "code": 500, "message": name, "details": "[]", "created_at": now},
            "cell.unknown_guests": {"host": "h1", "uuid": guest.uuid, "guest": stored.dump_value(guest), "reported_at": now},
        }
        for table, values in rows.items():
            self.insert(table, values)
        add_hosts(self.front, [fleet.node(f"{name}-host", vcpus=64)])

    def insert(self, table: str, values: Mapping[str, object]) -> None:
        place, about = TABLES[table]
        columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        self.raw[place].execute(f'INSERT INTO "{about.name}" ({columns}) VALUES ({marks})', tuple(values.values()))

    def enqueue(self, names: Sequence[str]) -> None:
        """One request of every kind that waits to be built, under each name."""
        for name in names:
            self._wait_for_build(name)

    def _define(self, name: str) -> None:
        flavor = {"id": name, "name": name, "vcpus": 1, "ram": 64, "disk": 1, "os-flavor-access:is_public": False}
        self.do("POST", "/v2.1/flavors", json={"flavor": flavor})
        self.do("POST", f"/v2.1/flavors/{name}/os-extra_specs", json={"extra_specs": {"a": name}})
        self._act_on(f"/v2.1/flavors/{name}", {"addTenantAccess": {"tenant": name}})
        aggregate = self.do("POST", "/v2.1/os-aggregates", json={"aggregate": {"name": name}})["aggregate"]["id"]
        self._act_on(f"/v2.1/os-aggregates/{aggregate}", {"add_host": {"host": "h3"}})
        self._act_on(f"/v2.1/os-aggregates/{aggregate}", {"set_metadata": {"metadata": {"a": name}}})
        self.groups[name] = self.do(
            "POST", "/v2.1/os-server-groups", tenant(name), json={"server_group": {"name": name, "policy": "soft-affinity"}}
        )["server_group"]["id"]
        self.do("POST", "/v2.1/os-keypairs", tenant(name), json={"keypair": {"name": name, "public_key": KEY}})
        self.do("PUT", f"/v2.1/os-quota-sets/{name}", json={"quota_set": {"instances": 100, "key_pairs": 50}})
        self.do("PUT", f"/v2.1/os-quota-sets/{name}?user_id=u1", json={"quota_set": {"instances": 90, "key_pairs": 40}})
        network = _uuid(f"{name} network")
        self.front.database.write(networks.create, Network(uuid=network, name=name, physical_network="p", project_ids=(name,)))
        number = len(self.groups)
        subnet = Subnet(uuid=_uuid(f"{name} subnet"), network_id=network, cidr=f"10.0.{number}.0/28", dns=("9.9.9.9",))
        self.front.database.write(networks.add_subnet, subnet)

    def _port(self, name: str) -> str:
        port = {"network_id": _uuid(f"{name} network"), "name": name, "tags": [name]}
        return str(self.do("POST", "/network/v2.0/ports", tenant(name), json={"port": port})["port"]["id"])

    def _change(self, name: str, server: str) -> None:
        headers = tenant(name)
        self.do("PUT", f"/v2.1/servers/{server}/tags", headers, json={"tags": [name, "b"]})
        self.do("PUT", f"/v2.1/servers/{server}/metadata", headers, json={"metadata": {"k": name}})
        self.do("PUT", f"/v2.1/servers/{server}", headers, json={"server": {"description": name}})
        self.do("POST", f"/v2.1/servers/{server}/action", headers, json={"lock": {"locked_reason": name}})

    def _act(self, server: str, action: Mapping[str, Any]) -> None:
        self._act_on(f"/v2.1/servers/{server}", action)

    def _act_on(self, path: str, action: Mapping[str, Any]) -> None:
        self.do("POST", f"{path}/action", json=action)

    def _wait_for_build(self, name: str) -> None:
        """What is queued."""
        group, keys = {"group": self.groups[name]}, {"key_name": name, "user_data": "eA=="}
        self.servers[name, "queued"] = self.boot(f"{name}-queued", name, hints=group, flavorRef=name, **keys)
        self.boot(f"{name}-together", name, hints={"all_or_nothing": True}, min_count=2)
        body = {"server": {"name": f"{name}-held", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}}
        self.do("POST", "/v2.1/superconductor/holds?seconds=800", tenant(name) | {"X-Roles": "admin"}, json=body)

    # -- what a test does with it --------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Every list, single things, a boot with all that follows from it, and every sweep, in this order."""
        plain = sorted(path for method, path in routes_of(self.client.app) if method == "GET" and "{" not in path)
        found = [Step(f"GET {path}", partial(self._get, path)) for path in plain]
        found += [Step(f"GET {path} of a tenant", partial(self._get, path, tenant(GOOD))) for path in plain]
        found += [Step(f"GET {path}", partial(self._get, path)) for path in ASKED]
        found += self._parts()
        found.append(Step("boot", self._boot_good))
        for name in self.names:
            found.append(Step(f"boot of {name}", partial(self._boot_bad, name), name))
        for name, sweep in self.sweeps().items():
            found.append(Step(f"sweep: {name}", partial(_nothing, sweep)))
        found += [Step("agents", partial(_nothing, self.run_agents)), Step("feeds again", partial(_nothing, self.follow))]
        found += [Step("the boot has ended", self._is_active), Step("stop", self._stop), Step("delete", self._delete)]
        for name in self.names:
            found.append(Step(f"delete of {name}", partial(self._delete_bad, name), name))
        for name, sweep in self.sweeps().items():
            found.append(Step(f"sweep after deletes: {name}", partial(_nothing, sweep)))
        return found

    def _parts(self) -> Iterator[Step]:
        """Single things of every name."""
        for number, name in enumerate((GOOD, *self.names)):
            network, server = _uuid(f"{name} network"), self.servers[name, "moving"]
            paths = {
                "flavor": f"/v2.1/flavors/{name}",
                "quota": f"/v2.1/os-quota-sets/{name}/detail",
                "quota of a user": f"/v2.1/os-quota-sets/{name}/detail?user_id=u1",
                "group": f"/v2.1/os-server-groups/{self.groups[name]}",
                "key pair": f"/v2.1/os-keypairs/{name}?user_id=u1",
                "network": f"/network/v2.0/networks/{network}",
                **{kind: f"/v2.1/servers/{self.servers[name, kind]}" for kind in ("active", "queued", "moving")},
                **{part: f"/v2.1/servers/{server}/{part}" for part in SERVER_PARTS[number % 3 :: 3]},
            }
            yield from (Step(f"GET {what} of {name}", partial(self._get, path), name) for what, path in paths.items())
            yield Step(f"GET limits of {name}", partial(self._get, "/v2.1/limits", tenant(name)), name)

    def _get(self, path: str, headers: Mapping[str, str] = ADMIN) -> str:
        answer = self.ask("GET", path, headers)
        if answer.status_code == 404 and "does not exist in version" in answer.text:
            answer = self.ask("GET", path, {name: value for name, value in headers.items() if name not in NEWEST})
        assert answer.status_code < 500, (answer.status_code, answer.text[:200])
        return f"{answer.status_code} {answer.text}"

    def _boot_good(self) -> str:
        fields = {"flavorRef": GOOD, "key_name": GOOD, "networks": [{"uuid": _uuid(f"{GOOD} network")}]}
        self._booted = self.boot("good-new", GOOD, hints={"group": self.groups[GOOD]}, **fields)
        return ""

    def _boot_bad(self, name: str) -> str:
        fields = {"flavorRef": name, "key_name": name, "networks": [{"uuid": _uuid(f"{name} network")}]}
        body = {"server": {"name": name, "imageRef": IMAGE} | fields, "os:scheduler_hints": {"group": self.groups[name]}}
        answer = self.ask("POST", "/v2.1/servers", tenant(name), json=body)
        assert answer.status_code < 500, (answer.status_code, answer.text[:200])
        return ""

    def _is_active(self) -> str:
        for server in (self._booted, self.servers[GOOD, "queued"]):
            found = self.do("GET", f"/v2.1/servers/{server}", tenant(GOOD))["server"]
            assert found["status"] == "ACTIVE", (found["name"], found["status"], found.get("fault"), self._rows_of(server))
        return ""

    def _rows_of(self, server: str) -> list[object]:
        """What explains why a server is not ACTIVE."""
        mapping = "SELECT state, cell_uuid, host, fault FROM instance_mappings WHERE instance_uuid = ?"
        request = "SELECT state, owner, fence FROM build_requests WHERE instance_uuid = ?"
        found = [self.raw["api"].execute(query, (server,)).fetchall() for query in (mapping, request)]
        return [
            *found,
            self.raw["cell1"].execute("SELECT state, attempt, host FROM instances WHERE uuid = ?", (server,)).fetchall(),
        ]

    def _stop(self) -> str:
        self.do("POST", f"/v2.1/servers/{self._booted}/action", tenant(GOOD), json={"os-stop": None})
        return ""

    def _delete(self) -> str:
        self.do("DELETE", f"/v2.1/servers/{self._booted}", tenant(GOOD))
        return ""

    def _delete_bad(self, name: str) -> str:
        for kind in ("moving", "queued"):
            answer = self.ask("DELETE", f"/v2.1/servers/{self.servers[name, kind]}")
            assert answer.status_code < 500, (answer.status_code, answer.text[:200])
        return ""

    def touched(self, steps: Sequence[Step]) -> dict[str, set[str]]:
        """The tables that the statements of each step name. Those of conductors that tests wait for run in other threads."""
        found: dict[str, set[str]] = {}
        names = {(place, table.name): key for key, (place, table) in TABLES.items()}
        step, caches = steps[0], [each for each in gc.get_objects() if isinstance(each, EpochCache)]

        def note(connection: sa.Connection, cursor: object, statement: str, *rest: object) -> None:
            place = Path(str(connection.engine.url.database)).stem
            words = set(re.findall(r"\w+", statement))
            found[step.name] |= {names[at, word] for at, word in names if at == place and word in words}

        sa.event.listen(sa.Engine, "after_cursor_execute", note)
        try:
            for step in steps:
                found[step.name] = set()
                for cache in caches:
                    cache._value, cache._reader._read_at = None, -math.inf
                self.answers[step.name] = step.run()
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", note)
        return found

    @contextmanager
    def spoiled(self, name: str, columns: Sequence[str], turn: int) -> Iterator[list[BadValue]]:
        """While inside, rows of the table have bad values, each row in one of these columns, and every role has just started.

        A value that the table's constraints refuse gives way to the next one that they take.
        """
        place, table = TABLES[name]
        self.stop()
        for kept, connection in self.raw.items():
            self._kept[kept].backup(connection)
        raw = self.raw[place]
        if name == "api.cell_mappings":
            self._add_cells()
        rows = [key for (key,) in raw.execute(f'SELECT rowid FROM "{table.name}" ORDER BY rowid') if key not in self._good[name]]
        assert rows, f"no row of {name} may be spoiled: put some into it, or say why there can be none"
        written: list[BadValue] = []
        for number, row in enumerate(rows):
            column = columns[number % len(columns)]
            for value in bad_values(table.c[column], turn + number // len(columns)):
                with suppress(sqlite3.IntegrityError, sqlite3.OperationalError):
                    raw.execute(f'UPDATE "{table.name}" SET "{column}" = ? WHERE rowid = ?', (value, row))
                    written.append(BadValue(column, value, row))
                    break
        self.start()
        yield written

    def _add_cells(self) -> None:
        """One for each name, all with the same empty database: only what they cost others counts."""
        for old in self.folder.glob("spare.db*"):  # it would know of a later state than what was put back
            old.unlink()
        cell_database(self.folder, "spare").dispose_connections()
        [url] = self.raw["api"].execute("SELECT database_url FROM cell_mappings WHERE name = 'cell1'").fetchone()
        for name in self.names:
            places = {"database_url": url.replace("cell1", "spare"), "transport_url": "embedded://spare/"}
            self.insert("api.cell_mappings", {"uuid": _uuid(name), "name": name, "state": "enabled", "epoch": 0} | places)

    def faults(self, name: str) -> list[str]:
        """What goes wrong in steps that have to do with the table, and in those that a boot needs."""
        found: list[str] = []
        for step in self.steps():
            if name not in self._touched[step.name] and step.name not in CHAIN:
                continue
            try:
                answer = step.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
                found.append(f"{step.name}: {type(error).__name__}: {str(error)[:300]} ({_where(error)})")
                continue
            if step.about not in self.names:
                before = self.answers[step.name]
                if answer[:3] != before[:3]:
                    found.append(f"{step.name}: {answer[:300]}")
                missing = set(_GOOD_NAME.findall(before)) - set(_GOOD_NAME.findall(answer))
                found += [f"{step.name}: {one} is not there" for one in sorted(missing)]
        return found

    def fill_all(self) -> None:
        """Put everything in, and note how it is."""
        self.names = [f"bad{number}" for number in range(ROWS)]
        self.fill([GOOD])
        self._good = self._rows()
        self.fill(self.names)
        before = self._rows()
        self.enqueue([GOOD])
        self._good = {
            name: rows | (now - before[name]) for (name, rows), now in zip(self._good.items(), self._rows().values(), strict=True)
        }
        self.enqueue(self.names)
        for name, connection in self.raw.items():
            connection.backup(self._kept[name])
        self.stop()
        self.start()
        self._touched = self.touched(self.steps())

    def _rows(self) -> dict[str, set[int]]:
        return {
            name: {key for (key,) in self.raw[place].execute(f'SELECT rowid FROM "{table.name}"')}
            for name, (place, table) in TABLES.items()
        }


class BadValue(NamedTuple):
    """What was written, and the number of the row."""

    column: str
    value: object
    row: int


def bad_values(column: sa.Column[Any], turn: int) -> tuple[object, ...]:
    """Values that no code of ours writes into the column, another one first in each turn."""
    values = next(values for kind, values in _BAD_VALUES if isinstance(column.type, kind))
    first = turn % len(values)
    return values[first:] + values[:first]


def rounds(table: sa.Table, turn: int) -> list[list[str]]:
    """The columns of the table, as many at once as there are rows at least. The order changes with the turn."""
    names = [column.name for column in table.columns]
    names = names[turn % len(names) :] + names[: turn % len(names)]
    return [names[start : start + ROWS] for start in range(0, len(names), ROWS)]


def _where(error: BaseException) -> str:
    """The innermost places of our code that it came through, the last first."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-5:-1])


def _nothing(work: Callable[[], object]) -> str:
    for _ in range(5):
        if work() is not True:
            break
    return ""


def _uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
