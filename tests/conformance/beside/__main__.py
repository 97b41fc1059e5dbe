"""``python -m tests.conformance.beside --nova PYTHON --server URL``: read a cloud that Nova's own code has written.

``PYTHON``: an interpreter with Nova and Placement. Their tools make the schemas in new databases on a MariaDB, and ``fill.py`` the
rows. Then what this project reads is compared with what was made, and commands that ``nova audit`` prints are run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from beside_nova.audit import NovaFault, audit_cloud
from beside_nova.explain import explain_subject
from beside_nova.opts import NovaSettings
from beside_nova.room import count_room, try_request
from beside_nova.site import NovaSite, read_site
from beside_nova.state import NovaState, open_databases

FILL = Path(__file__).with_name("fill.py")
NAMES = ("api", "cell0", "cell1", "placement")


class NovaTools:
    """Nova's and Placement's own programs, on databases of one name."""

    def __init__(self, python: Path, server: str, folder: Path) -> None:
        self._python = python
        prefix = f"beside_{uuid.uuid4().hex[:8]}_"
        base = sa.make_url(server).set(drivername="mysql+pymysql")
        self.urls = {name: base.set(database=prefix + name).render_as_string(hide_password=False) for name in NAMES}
        self._server = sa.create_engine(base.set(database=None))
        self.nova_conf, self.placement_conf = folder / "nova.conf", folder / "placement.conf"
        self.nova_conf.write_text(
            f"[DEFAULT]\ntransport_url = fake:/\nstate_path = {folder}\n[api_database]\nconnection = {self.urls['api']}\n"
            f"[database]\nconnection = {self.urls['cell0']}\n"
        )
        self.placement_conf.write_text(
            f"[api]\nauth_strategy = noauth2\n[placement_database]\nconnection = {self.urls['placement']}\n"
        )

    @contextlib.contextmanager
    def made_databases(self) -> Iterator[None]:
        """The databases with their schemas, as a new cloud has them."""
        try:
            for url in self.urls.values():
                self._execute(f"CREATE DATABASE {sa.make_url(url).database} CHARACTER SET utf8mb3")
            self.run_tool("nova-manage", "api_db", "sync")
            self.run_tool("nova-manage", "db", "sync", "--local_cell")
            cell1 = self.nova_conf.with_name("cell1.conf")
            cell1.write_text(self.nova_conf.read_text().replace(self.urls["cell0"], self.urls["cell1"]))
            self._run(self._tool("nova-manage"), "--config-file", cell1, "db", "sync", "--local_cell")
            self._run(self._tool("placement-manage"), "--config-file", self.placement_conf, "db", "sync")
            self.run_tool("nova-manage", "cell_v2", "map_cell0", "--database_connection", self.urls["cell0"])
            template = self.urls["cell1"].replace("mysql+pymysql://", "{scheme}://", 1)
            create = ("cell_v2", "create_cell", "--name", "cell1", "--transport-url", "fake:/")
            self.run_tool("nova-manage", *create, "--database_connection", template)
            yield
        finally:
            for url in self.urls.values():
                self._execute(f"DROP DATABASE IF EXISTS {sa.make_url(url).database}")

    def fill_cloud(self) -> dict[str, Any]:
        """What ``fill.py`` has made."""
        lines = self._run(self._python, FILL, self.nova_conf, self.placement_conf).strip().splitlines()
        made: dict[str, Any] = json.loads(lines[-1])
        return made

    def sync_placement(self) -> None:
        """The resource classes and traits that Placement writes when it starts."""
        calls = Path(__file__).with_name("placement_calls.py")
        done = subprocess.run([str(self._python), str(calls), str(self.placement_conf)], input="", capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.decode())

    def run_tool(self, name: str, *words: str) -> str:
        """A program that reads nova.conf."""
        return self._run(self._tool(name), "--config-file", self.nova_conf, *words)

    def _tool(self, name: str) -> Path:
        return self._python.parent / name

    def _run(self, *command: str | Path) -> str:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _execute(self, statement: str) -> None:
        with self._server.connect() as connection:
            connection.execute(sa.text(statement))


class Check:
    """Prints each comparison, and counts those that fail."""

    failures = 0

    def compare(self, what: str, got: object, expected: object) -> None:
        is_same = got == expected
        self.failures += not is_same
        print(f"{'ok    ' if is_same else 'FAILED'} {what}" + ("" if is_same else f"\n  got      {got}\n  expected {expected}"))


def open_cloud(tools: NovaTools) -> tuple[NovaSite, NovaState]:
    settings = NovaSettings(config_file=str(tools.nova_conf), placement_connection=tools.urls["placement"])
    site = read_site(settings)
    state = NovaState(open_databases(site.nova), site.service_down_time)
    state.load_all()
    return site, state


def faults_by_kind(state: NovaState) -> dict[str, NovaFault]:
    return {fault.kind: fault for fault in audit_cloud(state).faults}


def check_reads(check: Check, tools: NovaTools, made: dict[str, Any]) -> None:
    site, state = open_cloud(tools)
    errors = [view.error for view in state.cells.values() if view.error]
    check.compare("all cells are read, with a URL that is a template", errors, [])
    check.compare("hosts left out", state.left_out, {"unmapped": "it is not mapped to cell cell1, where it reports"})
    table = state.table
    free = {table.hosts[row]: table.free_vcpus.item(row) for row in range(table.size) if table.eligible[row]}
    check.compare("free vCPUs, with ratios", free, {"h1": 5.0, "h2": 6.0, "h3": 4.0})
    room = count_room(site, state, ["m1", "wide"])
    check.compare("room for each flavor", {one.flavor: one.servers for one in room.flavors}, {"m1": 2 + 3 + 2, "wide": 0})
    zoned = try_request(site, state, "m1", 1, availability_zone="east")
    check.compare("a request in a zone", zoned.hosts, ("h2",))
    apart = try_request(site, state, "m1", 1, made["group"])
    check.compare("a request in an anti-affinity group", apart.hosts, ("h3",))
    [refused] = explain_subject(site, state, made["refused"])
    check.compare("the fault of a refused server", refused.fault, "No valid host was found. ")
    remedies = refused.outcome.would_have_fitted if refused.outcome is not None else None
    check.compare("what would have been enough for it", remedies, ("with a flavor of 1 vCPU less",))
    [placed] = explain_subject(site, state, made["placed"][0])
    check.compare("the claims of a placed server", placed.claimed, ("h1",))
    state.close()


def check_audit(check: Check, tools: NovaTools, made: dict[str, Any]) -> None:
    _, state = open_cloud(tools)
    faults = faults_by_kind(state)
    subjects = {kind: fault.subject for kind, fault in faults.items()}
    expected = {
        "host without a mapping": "unmapped",
        "mapping without a host": "gone",
        "claim without a server": made["orphan"],
        "server without a claim": made["without_claim"],
    }
    check.compare("the faults that were made", subjects, expected)
    for kind in ("host without a mapping", "mapping without a host"):
        if kind in faults:
            program, *words = shlex.split(faults[kind].mend)
            tools.run_tool(program, *words)
            check.compare(f"{kind}: its command mends it", kind in faults_by_kind(state), False)
    state.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nova", type=Path, required=True, help="interpreter with nova and openstack-placement")
    parser.add_argument("--server", required=True, help="URL of a MariaDB where databases may be made")
    arguments = parser.parse_args()
    check = Check()
    with tempfile.TemporaryDirectory(prefix="beside-nova-") as name:
        tools = NovaTools(arguments.nova, arguments.server, Path(name))
        with tools.made_databases():
            made = tools.fill_cloud()
            check_reads(check, tools, made)
            check_audit(check, tools, made)
    return int(check.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
