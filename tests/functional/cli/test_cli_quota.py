"""``superconductor quota``: limits set, shown, listed and taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.api.projects import quota_limits, quotas
from objects.quota import Admission, QuotaUsage
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.commands import Shell, shell_fixture
from tests.support.conductor import FAR, NOW, servers
from tests.support.databases import sqlite_url, synced

NOTHING = {
    "project": "p",
    "instances": 0,
    "cores": 0,
    "ram": 0,
    "max_instances": -1,
    "max_cores": -1,
    "max_ram": -1,
    "max_key_pairs": 100,
    "max_metadata_items": 128,
    "max_server_groups": -1,
    "max_server_group_members": -1,
    "own_limits": "",
    "class_limits": "",
}


shell = shell_fixture("-q db sync")


def accept(shell: Shell, count: int) -> None:
    database = synced(sqlite_url(shell.state, "api"), "api")
    database.write(accept_batch, fleet.spec(), servers(count), now=NOW, deadline=FAR, admission=Admission())
    database.dispose_connections()


def test_limits_from_the_first_to_none(shell: Shell) -> None:
    assert shell.json("quota show p") == NOTHING
    accept(shell, 3)
    has = NOTHING | {"instances": 3, "cores": 3, "ram": 3072}
    assert shell.json("quota show p") == has
    first = shell.json("quota set p --instances 5 --ram -1")
    assert first == has | {"max_instances": 5, "own_limits": "instances, ram"}
    assert shell.json("quota set p --cores 9") == has | {"max_instances": 5, "max_cores": 9, "own_limits": "instances, cores, ram"}
    assert shell.json("quota unset p --instances --ram") == has | {"max_cores": 9, "own_limits": "cores"}
    assert shell.json("quota unset p") == has


def test_limits_are_shown_with_their_source(shell: Shell) -> None:
    database = synced(sqlite_url(shell.state, "api"), "api")
    database.write(quota_limits.change_limits, quota_limits.DEFAULTS, {"cores": 8, "server_groups": 4})
    database.write(quota_limits.change_limits, "p", {"key_pairs": 3})
    database.dispose_connections()
    of_class = {"max_cores": 8, "max_server_groups": 4, "class_limits": "cores, server_groups"}
    assert shell.json("quota show p") == NOTHING | of_class | {"max_key_pairs": 3, "own_limits": "key_pairs"}
    assert shell.json("quota show q") == NOTHING | of_class | {"project": "q"}


def test_a_limit_below_what_is_used_needs_force(shell: Shell) -> None:
    accept(shell, 3)
    assert "Quota limit 2 for instances must be greater than or equal to already used" in shell.refused("quota set p --instances 2")
    assert shell.json("quota show p")["max_instances"] == -1
    assert shell.json("quota set p --instances 2 --force")["max_instances"] == 2


def test_all_projects_are_listed_with_configured_defaults(shell: Shell, tmp_path: Path) -> None:
    accept(shell, 2)
    shell.done("-q quota set a --cores 7")
    assert shell.json("quota list") == [
        {"Project": "a", "Instances": 0, "Max Instances": -1, "Cores": 0, "Max Cores": 7, "RAM": 0, "Max RAM": -1},
        {"Project": "p", "Instances": 2, "Max Instances": -1, "Cores": 2, "Max Cores": -1, "RAM": 2048, "Max RAM": -1},
    ]
    config = tmp_path / "api.conf"
    config.write_text(f"[api_database]\nconnection = {sqlite_url(tmp_path, 'api')}\n[quota]\ninstances = 10\ncores = 20\n")
    listed = shell.run("--config-file", str(config), *["quota", "list", "-f", "csv"])
    assert listed.out.splitlines()[1:] == ['"a",0,10,0,7,0,-1', '"p",2,10,2,20,2048,-1']


def test_an_audit_reports_differences_until_repaired(shell: Shell) -> None:
    accept(shell, 2)
    assert shell.json("quota audit") == []
    database = synced(sqlite_url(shell.state, "api"), "api")
    database.write(quotas.correct_usage, "p", QuotaUsage(instances=9, cores=2))
    database.dispose_connections()
    found = shell("quota audit -f csv")
    assert (found.status, found.err) == (1, "")
    assert found.out.splitlines()[1:] == ['"p","",9,2,2,2,0,2048']
    assert shell.done("quota audit --repair -f value") == "p  9 2 2 2 0 2048\n"
    assert shell.json("quota audit --repair") == shell.json("quota audit") == []
    assert shell.json("quota show p")["instances"] == 2


def test_user_limits_are_set_changed_and_removed(shell: Shell) -> None:
    accept(shell, 3)
    has = NOTHING | {"instances": 3, "cores": 3, "ram": 3072}
    shell.done("-q quota set p --cores 9")
    of_user = has | {"max_cores": 9, "user": "u"}
    assert shell.json("quota show p --user u") == of_user
    first = shell.json("quota set p --user u --instances 5 --cores 4")
    assert first == of_user | {"max_instances": 5, "max_cores": 4, "own_limits": "instances, cores"}
    refused = shell.refused("quota set p --user v --cores 6")
    assert "Quota limit 6 for cores must be less than or equal to 5" in refused
    row = {"Instances": 3, "Max Instances": 5, "Cores": 3, "Max Cores": 4, "RAM": 3072, "Max RAM": ""}
    assert shell.json("quota list --users") == [{"Project": "p", "User": "u"} | row]
    assert shell.json("quota show p") == has | {"max_cores": 9, "own_limits": "cores"}
    assert shell.json("quota show p --user v")["instances"] == 0
    assert shell.json("quota unset p --user u --cores") == of_user | {"max_instances": 5, "own_limits": "instances"}
    assert shell.json("quota unset p --user u") == of_user
    shell.done("-q quota set p --user u --instances 5")
    shell.done("-q quota unset p")
    assert shell.json("quota list --users") == []
    assert shell.json("quota show p --user u") == has | {"user": "u"}


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv", "value"])
def test_every_format(shell: Shell, form: str) -> None:
    for line in ("quota set p --instances 31", "quota show p", "quota list", "quota unset p --cores"):
        assert "31" in shell.done(f"{line} -f {form}")


@pytest.mark.parametrize(
    ("line", "text", "status"),
    [
        ("quota set p", "Nothing to set: give --instances or --cores or --ram", 1),
        ("quota set p --instances -2", "'-2' is not a whole number from -1 to 2147483647", 2),
        ("quota set p --cores 1.5", "'1.5' is not a whole number", 2),
        ("quota set p --ram 2147483648", "'2147483648' is not a whole number", 2),
        ("quota set '' --cores 1", "'' is not a name", 2),
        ("quota set p --gigabytes 1", "gigabytes", 2),
        ("quota show", "PROJECT", 2),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(shell: Shell, line: str, text: str, status: int) -> None:
    assert text in shell.refused(line, status)


def test_an_impossible_default_is_refused_in_a_line(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "api.conf"
    config.write_text(f"[api_database]\nconnection = {sqlite_url(tmp_path, 'api')}\n[quota]\ninstances = few\n")
    outcome = shell.run("--config-file", str(config), *["quota", "show", "p"])
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "instances" in outcome.err
