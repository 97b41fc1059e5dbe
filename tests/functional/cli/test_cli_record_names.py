"""``superconductor db backfill-names``: names of older servers are recorded as the configuration asks."""

from __future__ import annotations

import json
import uuid

from db.api.queue.accepting import NewServer
from db.api.servers.names import SERVERS_PER_TRANSACTION
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.commands import Outcome, Shell, shell_fixture
from tests.support.conductor import FAR, NOW
from tests.support.databases import sqlite_url, synced

shell = shell_fixture("-q db sync")


def accept(shell: Shell, project: str, *names: str) -> None:
    database = synced(sqlite_url(shell.state, "api"), "api")
    servers = [NewServer(uuid=str(uuid.uuid4()), name=name) for name in names]
    database.write(accept_batch, fleet.spec(project_id=project), servers, now=NOW, deadline=FAR)
    database.dispose_connections()


def record(shell: Shell, scope: str) -> Outcome:
    return run(shell, scope, "db backfill-names")


def run(shell: Shell, scope: str, command: str) -> Outcome:
    file = shell.state / f"api-{scope}.conf"
    file.write_text(f"[api_database]\nconnection = {sqlite_url(shell.state, 'api')}\n[api]\nunique_server_names = {scope}\n")
    return shell.run("--config-file", str(file), *command.split(), "-f", "json")


def test_every_server_that_shares_its_name_is_listed(shell: Shell) -> None:
    accept(shell, "p1", *(f"s{n}" for n in range(SERVERS_PER_TRANSACTION)), "S7")
    accept(shell, "p2", "s1")
    within = record(shell, "project")
    assert (within.status, within.err) == (1, "")
    [shared] = json.loads(within.out)
    assert (shared["Project"], shared["Name"].lower()) == ("p1", "s7")
    everywhere = record(shell, "global")
    assert everywhere.status == 1
    assert {each["Name"].lower() for each in json.loads(everywhere.out)} == {"s1", "s7"}
    for scope in ("", ""):
        assert (record(shell, scope).status, json.loads(record(shell, scope).out)) == (0, [])
    assert shell.json("db backfill-names") == []


def test_the_upgrade_check_says_the_command(shell: Shell) -> None:
    def said(scope: str) -> tuple[str, str]:
        [found] = [each for each in json.loads(run(shell, scope, "upgrade check").out) if each["Check"] == "Server names"]
        return found["Result"], found["Details"]

    accept(shell, "p1", "a", "b")
    accept(shell, "p2", "b")
    assert said("") == ("Success", "need not be unique")
    assert said("project") == ("Warning", "not recorded for 3 servers; run 'superconductor db backfill-names'")
    record(shell, "project")
    assert said("project") == ("Success", "all are recorded")
    assert said("global")[0] == "Warning"
    record(shell, "global")
    assert said("global") == ("Warning", "not recorded for 1 server; run 'superconductor db backfill-names'")
