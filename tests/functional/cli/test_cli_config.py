"""``superconductor config``: what processes would read, where it comes from, and never a secret of it."""

from __future__ import annotations

import csv
import json
import socket
import stat
from pathlib import Path

import pytest
from oslo_config import cfg

from api.http.keystone import GROUP
from cli.databases.effective import ROLES, Effective, mask_value
from images.opts import GLANCE_GROUP
from service.vault import Vault, new_key
from tests.support.commands import Shell

SAMPLES = Path(__file__).parents[3] / "etc" / "superconductor"
FORMATS = ("table", "json", "yaml", "csv", "value")


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Shell(tmp_path, capsys)


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("more", [(), ("--all",), ("--role", "api")])
def test_no_format_shows_a_secret(
    shell: Shell, tmp_path: Path, form: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what a key begins with, nor how many there are."""
    key = new_key()
    file = _written(
        tmp_path / "a.conf",
        f"""[DEFAULT]
transport_url = rabbit://u:hunter2@h1:5672,v:hun@ter2@h2:5672/vh?ssl_key_password=hunter2&ssl=true
api_transport_url = hunter2 is no URL
log_file = /tmp/x?password=hunter2
[api_database]
connection = mysql+pymysql://u:hunter2 with blanks@h/d
[secrets]
keys = {key},hunter2
""",
    )
    monkeypatch.setenv("OS_CELL_DATABASE__CONNECTION", "postgresql+psycopg://h/d?user=u&password=hunter2&sslpassword=hunter2")
    outcome = shell.run("config", "show", "--config-file", file, "-f", form, *more)
    assert outcome.status == 0, outcome
    for text in (outcome.out, outcome.err):
        assert "hunter2" not in text
        assert "ter2" not in text
        assert key[:6] not in text
    assert "***" in outcome.out


def test_a_url_is_shown_without_its_password(shell: Shell, tmp_path: Path) -> None:
    file = _written(tmp_path / "a.conf", "[DEFAULT]\ntransport_url = rabbit://u:p@h1:5672,v:q@h2:5672/vh?ssl=true\n")
    (row,) = json.loads(shell.run("config", "show", "--config-file", file, "-f", "json").out)
    assert row == {
        "Group": "DEFAULT",
        "Option": "transport_url",
        "Value": "rabbit://u:***@h1:5672,v:***@h2:5672/vh?ssl=true",
        "Source": file,
    }


def test_a_value_comes_from_its_strongest_source(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files that have the same group, the one that has the option."""
    one = _written(tmp_path / "one.conf", "[api]\nport = 1\nthreads = 2\n")
    two = _written(tmp_path / "two.conf", "[api]\nport = 3\nmax_limit = 7\n")
    folder = tmp_path / "conf.d"
    folder.mkdir()
    three = _written(folder / "three.conf", "[api]\nmax_limit = 8\nallowed_hosts = a, b\n")
    monkeypatch.setenv("OS_API__MAX_ATTEMPTS", "5")
    files = ("--config-file", one, "--config-file", two, "--config-dir", str(folder))
    rows = json.loads(shell.run("config", "show", *files, "-f", "json").out)
    assert {row["Option"]: (row["Value"], row["Source"]) for row in rows} == {
        "allowed_hosts": (["a", "b"], three),
        "max_attempts": (5, "environment OS_API__MAX_ATTEMPTS"),
        "max_limit": (8, three),
        "port": (3, two),
        "threads": (2, one),
    }
    (names,) = [
        row for row in csv.reader(shell.run("config", "show", *files, "-f", "csv").out.splitlines()) if "allowed_hosts" in row
    ]
    assert json.loads(names[2]) == ["a", "b"]


def test_defaults_are_shown_to_who_asks(shell: Shell, tmp_path: Path) -> None:
    """All options of the role and none of others."""
    file = _written(tmp_path / "a.conf", "[api]\nport = 1\n")
    rows = json.loads(shell.run("config", "show", "--config-file", file, "--role", "compute", "--all", "-f", "json").out)
    found = {(row["Group"], row["Option"]): (row["Value"], row["Source"]) for row in rows}
    assert found["compute", "driver"] == ("simulated", "default")
    assert found["DEFAULT", "debug"] == (False, "default")
    shared = {"DEFAULT", "api_database", "cell_database", "monitoring", "secrets"}
    assert {group for group, _ in found} == shared | {"compute", "glance", "images", "simulated", "upgrade_levels"}


def test_unknown_options_are_reported_with_the_nearest_name(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _written(
        tmp_path / "a.conf",
        "[DEFAULT]\ntransport_ulr = embedded://a/\nlog-file = x\nport = 1\n"
        "[apis]\nport = 1\n[conductor]\nqqq = 1\nlease_second = 2\n[compute]\nhost = h1\n",
    )
    monkeypatch.setenv("OS_API__PROT", "1")
    monkeypatch.setenv("OS_AUTH_TYPE", "none")  # other programs' variables are no business of ours
    for strict in (False, True):
        outcome = shell.run("config", "show", "--config-file", file, "--role", "api", *(["--strict"] if strict else []))
        assert outcome.status == strict
        assert sorted(outcome.err.splitlines()) == [
            f"superconductor: {file}: [DEFAULT] has no option port; perhaps in [api]",
            f"superconductor: {file}: [DEFAULT] has no option transport_ulr; perhaps transport_url",
            f"superconductor: {file}: [conductor] has no option lease_second; perhaps lease_seconds",
            f"superconductor: {file}: [conductor] has no option qqq",
            f"superconductor: {file}: no options are in a group [apis]; perhaps [api]",
            "superconductor: environment: no option is set by OS_API__PROT; perhaps OS_API__PORT",
        ]


def test_options_of_the_configured_driver_are_known(shell: Shell, tmp_path: Path) -> None:
    text = "[compute]\nhost = h1\ndriver = {}\n[libvirt]\nvirt_type = qemu\nvirt_typ = kvm\n"
    file = _written(tmp_path / "libvirt.conf", text.format("libvirt"))
    outcome = shell.run("config", "show", "--config-file", file, "--role", "compute", "-f", "json")
    assert {"Group": "libvirt", "Option": "virt_type", "Value": "qemu", "Source": file} in json.loads(outcome.out)
    assert outcome.err.splitlines() == [f"superconductor: {file}: [libvirt] has no option virt_typ; perhaps virt_type"]

    file = _written(tmp_path / "simulated.conf", text.format("simulated"))
    outcome = shell.run("config", "show", "--config-file", file, "--role", "compute")
    assert f"superconductor: {file}: no options are in a group [libvirt]" in outcome.err

    file = _written(tmp_path / "unknown.conf", text.format("vmware"))
    outcome = shell.run("config", "show", "--config-file", file, "--role", "compute")
    assert (outcome.status, outcome.out) == (1, "")
    assert "there is no 'vmware'" in outcome.err


def test_an_unsuitable_value_is_reported_without_secrets(shell: Shell, tmp_path: Path) -> None:
    file = _written(tmp_path / "a.conf", "[api]\nport = rabbit://u:hunter2@h/\n")
    outcome = shell.run("config", "show", "--config-file", file)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.count("\n") == 1
    assert "hunter2" not in outcome.err
    assert "port" in outcome.err


def test_a_dollar_in_a_password_is_written_twice(shell: Shell, tmp_path: Path) -> None:
    """Once, it begins the name of another option."""
    once = _written(tmp_path / "once.conf", "[DEFAULT]\ntransport_url = rabbit://u:hunter2$x@h/\n")
    outcome = shell.run("config", "show", "--config-file", once)
    assert (outcome.status, outcome.out) == (1, "")
    assert "[DEFAULT] transport_url: a $ in its value is followed by no option name; write $$ for a $" in outcome.err
    assert "hunter2" not in outcome.err
    twice = _written(tmp_path / "twice.conf", "[DEFAULT]\ntransport_url = rabbit://u:hunter2$$x@h/\n")
    assert Effective(["--config-file", twice]).conf.transport_url == "rabbit://u:hunter2$x@h/"


def test_a_state_folder_has_no_configuration(shell: Shell) -> None:
    assert "an all-in-one reads no configuration" in shell.refused("config show")


API = {"api": "api", "console-proxy": "console-proxy", "scheduler": "scheduler"}


@pytest.mark.parametrize(
    ("sample", "starting"),
    [
        ("all-in-one.conf", {"console-proxy": "console-proxy"}),
        ("single-cell.conf", API | {"conductor": "conductor of the API level and a cell"}),
        ("multi-cell-api.conf", API | {"conductor": "conductor of the API level"}),
        ("multi-cell-cell1.conf", {"conductor": "conductor of a cell"}),
        ("multi-cell-cell2.conf", {"conductor": "conductor of a cell"}),
        ("compute.conf", {"compute": "compute"}),
    ],
)
def test_a_worked_configuration_serves_only_its_roles(shell: Shell, sample: str, starting: dict[str, str]) -> None:
    """And no others: nobody can start an agent with a file of the API level."""
    outcome = shell.run("config", "check", "--strict", "--config-file", str(SAMPLES / sample), "-f", "json")
    assert outcome.status == 0, outcome
    found = {row["Role"]: row["Result"] for row in json.loads(outcome.out)}
    assert set(found) == set(ROLES)
    for role, result in found.items():
        assert result.startswith(f"could start: {starting[role]}" if role in starting else "could not start: "), (role, result)
        assert shell.run("config", "check", "--config-file", str(SAMPLES / sample), "--role", role).status == (role not in starting)


def test_misplaced_master_keys_are_refused(shell: Shell, tmp_path: Path) -> None:
    """At an agent every key, at a cell's conductor the master key."""
    master = new_key()
    keys = _written(tmp_path / "keys.conf", f"[secrets]\nkeys = {master}\n")
    cell = _written(tmp_path / "cell.conf", f"[secrets]\nkeys = {','.join(Vault([master]).keys_of('c1'))}\n")

    def check(sample: str, more: str, role: str) -> tuple[int, str]:
        outcome = shell.run("config", "check", "--config-file", str(SAMPLES / sample), "--config-file", more, "--role", role)
        assert master[:6] not in outcome.out + outcome.err
        return outcome.status, outcome.out

    assert check("compute.conf", keys, "compute")[0] == 1
    assert check("compute.conf", cell, "compute")[0] == 1
    assert check("multi-cell-cell1.conf", keys, "conductor")[0] == 1
    assert check("multi-cell-cell1.conf", cell, "conductor")[0] == 0
    status, text = check("single-cell.conf", keys, "api")
    assert status == 0
    assert "without admin passwords" not in text


def test_named_databases_and_buses_are_checked_on_request(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        bus = f"rabbit://u:hunter2@127.0.0.1:{closed.getsockname()[1]}/v"
        text = f"[DEFAULT]\ntransport_url = {bus}\n[api_database]\nconnection = sqlite:///{tmp_path}/api.db\n"
        _written(file, f"{text}[cell_database]\nconnection = sqlite:///{tmp_path}/cell.db\n")
        assert shell.run("db", "sync", "--config-file", str(file), "--api").status == 0
        outcome = shell.run("config", "check", "--config-file", str(file), "--connect", "-f", "json")
    assert outcome.status == 1
    assert "hunter2" not in outcome.out + outcome.err
    found = {row["Role"]: row["Result"] for row in json.loads(outcome.out)}
    assert found["[api_database] connection"] == f"sqlite:///{tmp_path}/api.db answers"
    assert "does not exist; create it and apply the schema with 'superconductor db sync'" in found["[cell_database] connection"]
    assert "Connection refused" in found["[DEFAULT] transport_url"]
    assert set(found) - set(ROLES) == {"[api_database] connection", "[cell_database] connection", "[DEFAULT] transport_url"}
    assert shell.run("config", "check", "--config-file", str(file)).status == 0, "nothing is connected to unless it is wanted"


def test_secrets_that_everybody_can_read_are_warned_of(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    _written(file, "[DEFAULT]\ntransport_url = rabbit://u:hunter2@h/v\n")
    assert shell.run("config", "check", "--config-file", str(file)).err == ""
    file.chmod(file.stat().st_mode | stat.S_IROTH)
    said = shell.run("config", "check", "--config-file", str(file)).err
    assert said == f"superconductor: {file}: holds secrets and can be read by everybody here; chmod o-rwx\n"
    file.write_text("[DEFAULT]\ntransport_url = embedded://a/\n")
    assert shell.run("config", "check", "--config-file", str(file)).err == ""


def test_what_can_be_reloaded_holds_no_secret() -> None:
    """oslo.config logs both values of an option that changes while a process runs."""
    for listings in ROLES.values():
        for listing in listings:
            assert [option.name for _, options in listing for option in options if option.mutable and option.secret] == []


def test_options_that_name_passwords_and_databases_are_secret() -> None:
    for listings in ROLES.values():
        for listing in listings:
            for group, options in listing:
                for option in options if group not in (GROUP, GLANCE_GROUP) else ():  # they are of OpenStack's libraries
                    told = option.dest in ("connection", "transport_url", "api_transport_url") or group == "secrets"
                    assert option.secret == told, option.name


def test_secret_lists_are_hidden_as_a_whole() -> None:
    option = cfg.ListOpt("keys", secret=True)
    assert mask_value(option, ["rabbit://a", "b"]) == "***"
    assert mask_value(option, []) == []
    assert mask_value(cfg.DictOpt("d"), {"a": "mysql://u:p@h/d"}) == {"a": "mysql://u:***@h/d"}


def test_every_option_is_listed_once(tmp_path: Path) -> None:
    settings = Effective(["--config-file", _written(tmp_path / "a.conf", "")]).list_settings()
    names = [(setting.group, setting.name) for setting in settings]
    assert len(names) == len(set(names)) > 80
    assert not any(setting.is_set for setting in settings)
