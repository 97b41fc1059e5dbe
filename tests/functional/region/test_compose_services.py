"""The scripts and the commands of ``compose.yaml`` as processes of this machine, on servers that are there already.

Host names of its services become 127.0.0.1 and its ports free ones. Databases, virtual hosts and users are the test's own. A
broker may have no HTTP API, so ``rabbitmqctl`` imports what ``curl`` would send.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import sqlalchemy as sa
import yaml

from service.periodic import wait_until
from tests.support import guide, vhosts
from tests.support.bus import url_of
from tests.support.databases import closed_port, named_databases
from tests.support.processes import IMAGE, PATIENCE, RoleProcess

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[3]))
FOLDER = CHECKOUT / "deploy" / "compose"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]
CURL = """#!/bin/sh
for word; do case $word in @*) exec rabbitmqctl -q import_definitions < "${word#@}" ;; esac; done
exit 1
"""


class Region:
    """``folder``: the volume of the deployment. ``files``: what each process reads, by service."""

    def __init__(self, folder: Path, databases: str, bus: str) -> None:
        self.folder = folder
        self.port = closed_port()
        self.monitoring: dict[str, int] = {}
        database, broker = sa.make_url(databases), urlsplit(bus)
        self._broker = f"{broker.hostname}:{broker.port or 5672}"
        self.prefix = str(database.database).removesuffix("{name}")
        self._meant = {
            "/cloud": str(folder),
            "@mariadb/": f"@{database.host}:{database.port}/",
            "@rabbitmq/{name}": f"@{self._broker}/{self.prefix}{{name}}",
            '"name": "api"': f'"name": "{self.prefix}api"',
            '"name": "cell1"': f'"name": "{self.prefix}cell1"',
            '"vhost": "': f'"vhost": "{self.prefix}',
            '"name": "sc"': f'"name": "{self.user}"',
            '"name": "admin"': f'"name": "{self.user}-admin"',
            '"user": "sc"': f'"user": "{self.user}"',
            "//sc:": f"//{self.user}:",
            "sc@": f"{self.user}@",
            "sc_": self.prefix,
            "8774": str(self.port),
        }

    @property
    def user(self) -> str:
        return f"{self.prefix}sc"

    def translated(self, text: str) -> str:
        return re.sub("|".join(map(re.escape, self._meant)), lambda found: self._meant[found[0]], text)

    def run_script(self, name: str) -> None:
        programs = guide.programs(self.folder.parent)
        (programs / "curl").write_text(CURL)
        (programs / "curl").chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin", "PYTHONPATH": str(CHECKOUT)}
        text = self.translated((FOLDER / name).read_text())
        done = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def start(self, service: str) -> RoleProcess:
        program, *words = SERVICES[service]["command"]
        port = self.monitoring[service] = closed_port()
        settings = self.folder / f"{service}-compose.conf"
        text = (FOLDER / "compose.conf").read_text().replace("port = 9100", f"port = {port}")
        settings.write_text(text.replace("host = 0.0.0.0\nserial", f"host = 127.0.0.1\nport = {closed_port()}\nserial"))
        first = Path(self.translated(words[1]))
        return RoleProcess(program.removeprefix("superconductor-"), self.folder, first, settings, name=service)

    def is_healthy(self, service: str) -> bool:
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"http://127.0.0.1:{self.monitoring[service]}/health", timeout=PATIENCE).status_code == 200
        return False

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        answer = requests.request(method, f"http://127.0.0.1:{self.port}/v2.1{path}", json=body, timeout=PATIENCE)
        assert answer.ok, answer.text
        return answer.json()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with contextlib.ExitStack() as stack:
        bus = stack.enter_context(contextlib.contextmanager(url_of)("rabbit"))
        databases = stack.enter_context(named_databases("mariadb", ("api", "cell0", "cell1")))
        folder = tmp_path / "cloud"
        folder.mkdir(mode=0o700)
        made = Region(folder, databases, bus)
        administration = sa.create_engine(sa.make_url(databases).set(database="mysql"), isolation_level="AUTOCOMMIT")
        stack.callback(administration.dispose)
        hosts = [name for name in SERVICES if SERVICES[name].get("command", [""])[0] == "superconductor-compute"]
        users = [made.user, f"{made.user}-admin", *(f"compute.{made.prefix}cell1.{host}" for host in hosts)]
        stack.callback(vhosts.delete_users, users)
        stack.callback(vhosts.delete, [f"{made.prefix}{name}" for name in ("api", "cell1")])
        made.run_script("make-passwords")
        vhosts.ctl("import_definitions", said=(folder / "rabbitmq.json").read_text())
        with administration.connect() as connection:
            stack.callback(_drop_user, administration, made.user)
            for statement in filter(str.strip, (folder / "mariadb.sql").read_text().split(";\n")):
                connection.exec_driver_sql(statement.replace("%", "%%"))
        yield made


def _drop_user(administration: sa.Engine, user: str) -> None:
    with administration.connect() as connection:
        connection.exec_driver_sql(f"DROP USER IF EXISTS {user}@'%%'")


def test_the_services_become_healthy_and_a_server_active(region: Region) -> None:
    secrets = (region.folder / "rabbitmq.json").read_text()
    region.run_script("make-deployment")
    region.run_script("make-passwords")
    region.run_script("make-deployment")
    assert (region.folder / "rabbitmq.json").read_text() == secrets
    names = [name for name, service in SERVICES.items() if service.get("command", [""])[0].startswith("superconductor-")]
    with contextlib.ExitStack() as stack:
        processes = {}
        for name in names:
            processes[name] = region.start(name)
            stack.callback(processes[name].kill)
        for name, process in processes.items():
            assert wait_until(functools.partial(region.is_healthy, name), 2 * PATIENCE, 0.5), f"{name}: {process.log}"
        flavors = region.ask("GET", "/flavors")["flavors"]
        flavor = next(each["id"] for each in flavors if each["name"] == "m1.tiny")
        body = {"name": "web", "flavorRef": flavor, "imageRef": IMAGE, "min_count": 3, "max_count": 3}
        region.ask("POST", "/servers", {"server": body})

        def statuses() -> list[str]:
            return [server["status"] for server in region.ask("GET", "/servers/detail")["servers"]]

        assert wait_until(lambda: statuses() == ["ACTIVE"] * 3, 2 * PATIENCE, 0.5), statuses()
        for process in processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait() for process in processes.values()] == [0] * len(processes)
