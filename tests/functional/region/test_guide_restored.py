"""The page on restored databases does what it says on servers too, with operations between the backup and the restore."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import sqlalchemy as sa

from compute.journal import read_entries
from objects.base import Object
from rpc import agents
from service.periodic import wait_until
from tests.support import guide, vhosts
from tests.support.bus import url_of
from tests.support.databases import SERVERS, closed_port, named_databases
from tests.support.ground import CHOSEN, on
from tests.support.guide import PATIENCE, Reader, steps
from tests.support.processes import IMAGE

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
PAGE = "restoring-a-database.md"
CELLS = ("cell1", "cell2")
DATABASES = ("api", "cell0", "cell1", "cell2", "cell1_restored", "cell2_restored")
CLIENTS = {"mariadb": ("mariadb", "mariadb-dump"), "postgresql": ("psql", "pg_dump", "createdb", "dropdb")}
HOST = """
```sh
superconductor host user CELL-host2 --cell CELL --folder cloud/etc --like cloud/etc/CELL-compute.conf
rabbitmqctl import_definitions < cloud/etc/CELL-host2.users.json
superconductor-compute --config-file cloud/etc/CELL-host2.conf &
```

```sh
superconductor host list --cell CELL -f value -c Mapped -c State
```

```output
yes up
yes up
```
"""
"""As the page on adding hosts says it."""
NETWORK = """
```sh
superconductor network create blue --physical-network physnet1
superconductor subnet add blue 10.0.0.0/24
superconductor upgrade finalize
```
"""


class Seen(Object, frozen=True, kw_only=True):
    """What users and hosts see. ``servers``: status, host and addresses by id. ``guests``, ``disks``: their hosts, by server.
    ``images``: what the image store has.
    """

    servers: dict[str, tuple[str, str, tuple[str, ...]]]
    guests: dict[str, set[str]]
    disks: dict[str, set[str]]
    images: set[str]


class Cloud:
    """A deployment that a reader of the guide has made, and its users."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.page = (GUIDE / PAGE).read_text()
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.headers["OpenStack-API-Version"] = "compute 2.95"
        self.network = ""

    def follow(self, text: str) -> None:
        """A part of the page."""
        self.reader.follow(text, PAGE)

    def ask(self, method: str, path: str, **arguments: Any) -> Any:
        root = os.environ["SUPERCONDUCTOR_ENDPOINT"]
        if path.startswith("/network"):
            root = root.removesuffix("/v2.1")
        answers: list[requests.Response] = []

        def answered() -> bool:
            with contextlib.suppress(requests.ConnectionError):
                answers.append(self.http.request(method, f"{root}{path}", timeout=30, **arguments))
            return bool(answers) and answers[-1].status_code not in (409, 503)  # another operation is about to end

        assert wait_until(answered, PATIENCE, 0.3), answers[-1].text if answers else path
        assert answers[-1].ok, (method, path, answers[-1].text)
        return answers[-1].json() if answers[-1].content else None

    def boot(self, *names: str, port: str | None = None) -> dict[str, str]:
        flavor = self._flavor("m1.tiny")
        networks = [{"port": port} if port is not None else {"uuid": self.network}]
        body = {"flavorRef": flavor, "imageRef": IMAGE, "networks": networks}
        booted = {name: self.ask("POST", "/servers", json={"server": body | {"name": name}})["server"]["id"] for name in names}
        self.wait(dict.fromkeys(booted.values(), "ACTIVE"))
        return booted

    def port(self, name: str) -> str:
        made = self.ask("POST", "/network/v2.0/ports", json={"port": {"network_id": self.network, "name": name}})
        return str(made["port"]["id"])

    def act(self, uuid: str, action: str, value: Any = None) -> None:
        self.ask("POST", f"/servers/{uuid}/action", json={action: value})

    def resize(self, uuid: str) -> None:
        self.act(uuid, "resize", {"flavorRef": self._flavor("m1.small")})

    def delete(self, uuid: str) -> None:
        self.ask("DELETE", f"/servers/{uuid}")

    def wait(self, statuses: dict[str, str]) -> None:
        def reached() -> bool:
            servers = self.servers()
            return all(servers.get(uuid, ("gone",))[0] == status for uuid, status in statuses.items())

        assert wait_until(reached, PATIENCE, 0.3), self.servers()

    def servers(self) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Servers without a task, and those with one as busy."""
        found = {}
        for server in self.ask("GET", "/servers/detail")["servers"]:
            addresses = tuple(sorted(each["addr"] for some in server["addresses"].values() for each in some))
            status = server["status"] if server["OS-EXT-STS:task_state"] is None else "busy"
            found[server["id"]] = status, server["OS-EXT-SRV-ATTR:host"] or "", addresses
        return found

    def look(self) -> Seen:
        guests: dict[str, set[str]] = defaultdict(set)
        disks: dict[str, set[str]] = defaultdict(set)
        bodies: dict[str, str] = {}
        for journal in self.reader.folder.rglob("*.guests"):
            here: dict[str, str] = {}
            for entry in read_entries(journal):
                if entry.spawned is not None:
                    here[entry.spawned.uuid] = entry.spawned.server_uuid or entry.spawned.uuid
                if entry.destroyed is not None:
                    here.pop(entry.destroyed, None)
            bodies |= here
            for server in here.values():
                guests[server].add(journal.stem)
        for disk in self.reader.folder.rglob("*.disks/*"):
            if disk.name in bodies:
                disks[bodies[disk.name]].add(disk.parent.stem)
        return Seen(servers=self.servers(), guests=dict(guests), disks=dict(disks), images=self.images())

    def images(self) -> set[str]:
        """What the image store has."""
        return {file.name for file in (self.reader.folder / "cloud" / "images").iterdir()}

    def _flavor(self, name: str) -> str:
        return next(str(each["id"]) for each in self.ask("GET", "/flavors")["flavors"] if each["name"] == name)


class Users:
    """What users did before the backup, and do after it."""

    BEFORE = ("quiet", "stopped", "resized", "undecided", "migrated", "shelved", "unshelved", "ported", "imaged", "deleted")

    def __init__(self, cloud: Cloud, cell: str) -> None:
        """Their servers are in this cell."""
        self.cloud = cloud
        [other] = [name for name in CELLS if name != cell]
        cloud.follow(f"```sh\nsuperconductor cell disable {other}\n```\n")
        self.of = cloud.boot(*self.BEFORE, "moved")
        cloud.follow(f"```sh\nsuperconductor cell enable {other}\n```\n")
        images = cloud.images()
        cloud.act(self.of["unshelved"], "shelve")
        cloud.wait({self.of["unshelved"]: "SHELVED_OFFLOADED"})
        self.snapshot = cloud.images() - images

    def go_on(self) -> Seen:
        """Everything that a backup does not know."""
        cloud, of = self.cloud, self.of
        cloud.act(of["stopped"], "os-stop")
        cloud.resize(of["resized"])
        cloud.resize(of["undecided"])
        cloud.act(of["migrated"], "migrate")
        cloud.act(of["moved"], "migrate")
        cloud.act(of["shelved"], "shelve")
        cloud.act(of["unshelved"], "unshelve")
        cloud.act(of["imaged"], "createImage", {"name": "copy"})
        cloud.delete(of["deleted"])
        port = cloud.port("attached")
        cloud.ask("POST", f"/servers/{of['ported']}/os-interface", json={"interfaceAttachment": {"port_id": port}})
        late = cloud.boot("new", "gone", "away") | cloud.boot("with-port", port=cloud.port("booted"))
        moving = [of[name] for name in ("resized", "undecided", "migrated", "moved")]
        cloud.wait(dict.fromkeys(moving, "VERIFY_RESIZE") | {of["shelved"]: "SHELVED_OFFLOADED", of["unshelved"]: "ACTIVE"})
        for name in ("resized", "migrated", "moved"):
            cloud.act(of[name], "confirmResize")
        cloud.wait(dict.fromkeys([of["resized"], of["migrated"], of["moved"]], "ACTIVE"))
        cloud.act(of["moved"], "shelve")
        cloud.act(late["away"], "shelve")
        cloud.delete(late["gone"])
        ends = {of["moved"]: "SHELVED_OFFLOADED", late["away"]: "SHELVED_OFFLOADED", of["stopped"]: "SHUTOFF"}
        cloud.wait(ends | {of["imaged"]: "ACTIVE", of["ported"]: "ACTIVE"})
        gone = {late["gone"], of["deleted"]}
        assert wait_until(lambda: not gone & (cloud.servers().keys() | cloud.look().guests.keys()), PATIENCE, 0.3)
        assert wait_until(lambda: not self.snapshot & cloud.images(), PATIENCE, 0.3), "it is removed some time after the unshelving"
        time.sleep(6.0)  # marks rise: a restore in the second of the backup is not one
        return cloud.look()


@pytest.fixture
def cloud(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Cloud]:
    server = str(request.param)
    if missing := [program for program in CLIENTS[server] if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("SUPERCONDUCTOR_CONFIG", "SUPERCONDUCTOR_ENDPOINT"):
        monkeypatch.setenv(name, "")  # set by the first page, and back to what they were at the end
    with ExitStack() as stack:
        urls = stack.enter_context(named_databases(server, DATABASES))
        _drop_restored(server, urls)
        _reach_with_clients(server, tmp_path, monkeypatch)
        first, second = (stack.enter_context(contextmanager(url_of)("rabbit")) for _ in range(2))
        prefix = str(sa.make_url(urls.replace("{name}", "")).database)
        backend = "mysql" if server == "mariadb" else "postgresql"
        (tmp_path / "database.url").write_text(urls)
        (tmp_path / "second.url").write_text(urls)
        meant = {
            "rabbit://sc:PASSWORD@mq/cell1": first,
            "rabbit://sc:PASSWORD@mq/cell2": second,
            "8774": str(closed_port()),
            "--transport-url @cell1.bus": "--database-connection @database.url --transport-url @cell1.bus",
            "--transport-url @cell2.bus": "--database-connection @second.url --transport-url @cell2.bus",
            f"{backend}://sc:PASSWORD@db/sc_": urls.partition("{name}")[0],
            "sc_cell": f"{prefix}cell",
            "sc_api": f"{prefix}api",
        }
        for cell in CELLS:
            meant[f"restart: cloud/etc/{cell}-compute.conf"] = f"restart: cloud/etc/{cell}-compute.conf cloud/etc/{cell}-host2.conf"
        users = [agents.prefix_of(urlsplit(url).path) for url in (first, second)]
        meant["compute.cell1."] = users[0]
        stack.callback(vhosts.delete_users, [f"{user}{cell}-host{n}" for user in users for cell in CELLS for n in (1, 2)])
        reader = Reader(tmp_path, meant, capsys, server)
        stack.callback(reader.close)
        for page in ("README.md", "first-cell.md", "second-cell.md"):
            reader.read(GUIDE / page)
        for cell in CELLS:
            reader.follow(HOST.replace("CELL", cell), "adding-hosts.md")
        reader.follow(NETWORK, "networks.md")
        made = Cloud(reader)
        made.network = made.ask("GET", "/network/v2.0/networks")["networks"][0]["id"]
        yield made


def _drop_restored(server: str, urls: str) -> None:
    """The page makes these: here they are only dropped at the end."""
    administration = sa.create_engine(SERVERS[server], isolation_level="AUTOCOMMIT")
    with administration.connect() as tx:
        for cell in CELLS:
            database = sa.make_url(urls.replace("{name}", f"{cell}_restored")).database
            tx.execute(sa.text(f"DROP DATABASE {database}"))
    administration.dispose()


def _reach_with_clients(server: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own programs reach it as its administrator."""
    url = sa.make_url(SERVERS[server])
    if server == "postgresql":
        values = {"PGHOST": url.host, "PGPORT": url.port, "PGUSER": url.username, "PGPASSWORD": url.password}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value or ""))
        return
    socket = f"--host={url.host} --port={url.port or 3306} --protocol=tcp --user={url.username} --password={url.password or ''}"
    programs = guide.programs(folder)
    for name in CLIENTS[server]:
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shutil.which(name)} {socket} "$@"\n')
        program.chmod(0o700)


def agrees(before: Seen, after: Seen, *, have_both_lost: bool) -> None:
    """Nothing that there was before the restore is lost or doubled, and nothing that was deleted is back.

    ``have_both_lost``: no database knows of deletes and of shelved servers since the backup, but the image store has the snapshots.
    """
    assert before.images <= after.images
    known = {uuid for uuid in before.servers if uuid in before.guests or not have_both_lost}
    assert known <= after.servers.keys()
    assert have_both_lost or known == after.servers.keys()
    unlike = [uuid for uuid in known if _differ(before, after, uuid, have_both_lost=have_both_lost)]
    assert not {uuid: (before.servers[uuid], after.servers[uuid]) for uuid in unlike}
    for uuid in known:
        status, host, _ = after.servers[uuid]
        on = {host} if host else set()
        if status != "VERIFY_RESIZE":
            assert (after.guests.get(uuid, set()), after.disks.get(uuid, set())) == (on, on), (uuid, status)
    assert not after.guests.keys() - known


def _differ(before: Seen, after: Seen, uuid: str, *, have_both_lost: bool) -> bool:
    """A resize that was to be confirmed may have been forgotten: the server is what it was resized to.

    What no database knows is as before the backup: that a server was stopped, or that an interface was attached.
    """
    (status, host, addresses), (now, host_now, addresses_now) = before.servers[uuid], after.servers[uuid]
    forgotten = {("VERIFY_RESIZE", "ACTIVE"), *([("SHUTOFF", "ACTIVE")] if have_both_lost else [])}
    has_less = have_both_lost and set(addresses_now) < set(addresses)
    return host != host_now or (addresses != addresses_now and not has_less) or (status != now and (status, now) not in forgotten)


RESTORED = ("api", "cell", "both") if len(CHOSEN) > 1 else ("api",)
"""One after the other. Each takes half a minute and more, so the usual run has only the one that loses most."""


@pytest.mark.timeout(900)
@on("cloud", "mariadb")
def test_the_page_is_followed_on_mariadb(cloud: Cloud) -> None:
    restore(cloud)


@pytest.mark.skipif(len(CHOSEN) <= 1, reason="the usual run follows it on MariaDB: TEST_GROUNDS=lite,postgresql")
@pytest.mark.timeout(900)
@on("cloud", "postgresql")
def test_the_page_is_followed_on_postgresql(cloud: Cloud) -> None:
    restore(cloud)


def restore(cloud: Cloud) -> None:
    """Lose what users do after a backup, and follow the page."""
    introduction = cloud.page.partition("\n## ")[0]
    of_cell, (backup, *of_api) = steps(cloud.page, "A cell"), steps(cloud.page, "The API level")
    first, *of_first = [text.replace("cell2", "cell1") for text in (introduction, *of_cell[1:])]
    both = [*of_api[:2], *of_first[:3], *of_api[2:4], *of_first[3:5], *of_api[4:], of_first[6]]
    ways = {
        "api": ("cell2", backup, of_api),
        "cell": ("cell2", introduction, of_cell),
        "both": ("cell1", first + backup, both),  # a cell is put into a new database once
    }
    for way in RESTORED:
        cell, before_loss, after_loss = ways[way]
        users = Users(cloud, cell)
        cloud.follow(before_loss)
        before = users.go_on()
        cloud.follow("".join(after_loss))
        agrees(before, cloud.look(), have_both_lost=way == "both")
