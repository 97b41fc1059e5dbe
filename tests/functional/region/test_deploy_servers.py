"""Servers of our own really start, keep their data and leave nothing behind; and tests get the right ones."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import amqp  # type: ignore[import-untyped]  # the library ships no types
import pytest
import sqlalchemy as sa

from ci import found, stages
from ci.servers import Outcome, provided_servers, server_environment, sweep_folders
from deploy import packages, ports, processes
from deploy.servers import MariaDB, PostgreSQL, RabbitMQ, Server, Unavailable
from tests.support import scratch
from tests.support.servers import MYSQL, NONE, OWN

DATABASES = [MariaDB, PostgreSQL]
PATIENCE = 60.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may pass through, as those of pytest may not; and no server survives the test."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-servers-"))
    folder.chmod(0o711)
    yield folder
    for child in folder.iterdir():
        for kind in (MariaDB, PostgreSQL, RabbitMQ):
            for pid in kind(child).leftover_processes():
                processes.end_process(pid, signal.SIGKILL, PATIENCE)
    shutil.rmtree(folder)


@pytest.fixture
def started(place: Path) -> Iterator[Callable[[type[Server]], Server]]:
    """Start a server of that class, which is stopped at the end; skip where it cannot be had."""
    running: list[Server] = []

    def start(kind: type[Server]) -> Server:
        server = kind(place / kind.__name__)
        _install(server)
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


@pytest.mark.parametrize("kind", DATABASES)
def test_a_killed_database_server_started_again_retains_data(kind: type[MariaDB | PostgreSQL], place: Path) -> None:
    first = kind(place / "server")
    _install(first)
    first.start()
    password = r"it's \ %/@:"
    url = first.create_database("region_api", "region", password)
    assert first.create_database("region_api", "region", password) == url
    _sql(url, "CREATE TABLE things (name VARCHAR(20) PRIMARY KEY)", "INSERT INTO things VALUES ('kept')")
    os.kill(first.pid, signal.SIGKILL)

    del first  # as if its process had gone too: the folder's lock goes with it
    again = kind(place / "server")
    again.start()

    assert again.create_database("region_api", "region", password) == url, "the port is the same, and so URLs that were stored hold"
    assert _sql(url, "SELECT name FROM things") == "kept"
    assert processes.start_time_of(again.pid)
    again.stop()
    assert [*again.leftover_processes()] == []
    assert ports.is_free(again.port)


@pytest.mark.parametrize("kind", DATABASES)
def test_a_user_has_its_database_only(kind: type[MariaDB | PostgreSQL], started: Callable[[type[Server]], Server]) -> None:
    server = started(kind)
    assert isinstance(server, MariaDB | PostgreSQL)
    mine = server.create_database("cell_1", "mine", "one")
    server.create_database("cellx1", "other", "two")  # an underscore in a grant would let this one in too

    assert _sql(mine, "SELECT 1") == 1
    administrative = sa.make_url(server.admin_url).database
    for change in ({"database": "cellx1"}, {"database": administrative}, {"password": "two"}, {"username": "other"}):
        with pytest.raises(sa.exc.OperationalError):
            _sql(_changed(mine, **change), "SELECT 1")
    with pytest.raises(sa.exc.OperationalError):
        _sql(_changed(server.admin_url, password=""), "SELECT 1")


def test_a_database_server_spares_temporary_tables_of_others(started: Callable[[type[Server]], Server]) -> None:
    """MariaDB removes whatever has such a name where it keeps its own."""
    others = Path(tempfile.gettempdir()) / f"#sql-temptable-{uuid.uuid4().hex[:6]}-1-1.MAD"
    others.touch()
    try:
        server = started(MariaDB)
        assert others.exists()
        assert _sql(server.admin_url, "SELECT @@tmpdir") == str(server.folder / "tmp")
    finally:
        others.unlink(missing_ok=True)


def test_a_killed_broker_started_again_retains_its_vhosts(place: Path) -> None:
    first = RabbitMQ(place / "server")
    _install(first)
    first.start()
    url = first.create_vhost("cell1", "agents", "p'w/")
    first.create_vhost("api", "top", "other")
    assert _log_in(first.port, "agents", "p'w/", "cell1") is None
    assert "NOT_ALLOWED" in (_log_in(first.port, "agents", "p'w/", "api") or "")
    assert "ACCESS_REFUSED" in (_log_in(first.port, "guest", "guest", "/") or ""), (
        "its administrator's password is not the usual one"
    )
    assert len({port for pid in first.leftover_processes() for port in _ports_of(pid)}) >= 2, "it has a port mapper of its own"
    os.kill(first.pid, signal.SIGKILL)

    first.start()

    assert first.create_vhost("cell1", "agents", "p'w/") == url
    assert "api" in first.run_ctl("list_vhosts").split()
    first.stop()
    assert [*first.leftover_processes()] == []
    assert ports.is_free(first.port)


def test_a_late_tool_ends_with_its_broker(place: Path) -> None:
    broker = RabbitMQ(place / "server")
    _install(broker)
    broker.start()
    with subprocess.Popen([broker.folder / "ctl", "eval", "timer:sleep(600000)."], stdout=subprocess.DEVNULL) as late:
        assert processes.wait_until(lambda: late.pid in broker.leftover_processes(), PATIENCE)
        broker.stop()
        assert late.wait(PATIENCE) != 0
    assert [*broker.leftover_processes()] == []


def test_a_server_that_ends_at_once_is_unavailable(tmp_path: Path) -> None:
    class Broken(RabbitMQ):
        PLACES = (str(tmp_path),)

    _program(tmp_path / "rabbitmq-server", "echo starting; echo 'FATAL: it has no wheels' >&2; exit 1")
    _program(tmp_path / "rabbitmqctl", "exit 1")
    server = Broken(tmp_path / "server")

    with pytest.raises(Unavailable, match=r"^RabbitMQ ended at its start: FATAL: it has no wheels \(see .*log\)$"):
        server.start()
    assert [*server.leftover_processes()] == []


def test_a_tool_that_does_not_end_is_unavailable(tmp_path: Path) -> None:
    class Slow(MariaDB):
        PLACES = (str(tmp_path),)
        TOOL_TIMEOUT_S = 0.5

    _program(tmp_path / "mariadbd", "exit 1")
    _program(tmp_path / "mariadb-install-db", "exec sleep 60")
    server = Slow(tmp_path / "server")

    with pytest.raises(Unavailable, match=r"^MariaDB: mariadb-install-db did not end within 0.5 s: see .*log$"):
        server.start()
    assert [*server.leftover_processes()] == []


def test_a_missing_program_is_unavailable(tmp_path: Path) -> None:
    class Missing(MariaDB):
        PLACES = (str(tmp_path),)

    with pytest.raises(Unavailable, match="MariaDB is not installed: there is no mariadbd in"):
        Missing(tmp_path / "server").start()


def test_a_package_is_installed_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(MariaDB):
        PLACES = (str(tmp_path / "installed"),)

    (tmp_path / "installed").mkdir()
    policy = packages.POLICY.read_text() if packages.POLICY.exists() else None
    said = f'echo "$@" >> {tmp_path}/said; {packages.POLICY}; echo "policy $?" >> {tmp_path}/said'
    _program(tmp_path / "apt-get", f"{said}; touch {tmp_path}/installed/mariadbd; chmod +x {tmp_path}/installed/mariadbd")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server = Fresh(tmp_path / "server")

    if os.geteuid() != 0:
        with pytest.raises(Unavailable, match="only root may: apt-get install mariadb-server"):
            server.install_missing()
        return
    server.install_missing()
    server.install_missing()

    (line, answer) = (tmp_path / "said").read_text().splitlines()
    assert line.endswith("install --yes --no-install-recommends --no-upgrade mariadb-server")
    assert answer == "policy 101"
    assert (packages.POLICY.read_text() if packages.POLICY.exists() else None) == policy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_a_package_that_cannot_be_installed_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(MariaDB):
        PLACES = (str(tmp_path / "installed"),)

    _program(tmp_path / "apt-get", "echo 'E: Unable to locate it' >&2; exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(Unavailable, match=r"^apt-get cannot install mariadb-server: E: Unable to locate it$"):
        Fresh(tmp_path / "server").install_missing()


def test_a_port_in_use_stays_with_its_owner(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((ports.HOST, 0))
        other.listen()
        server = MariaDB(tmp_path / "server", port=other.getsockname()[1])
        _install(server)

        with pytest.raises(Unavailable, match=r"port .* is taken"):
            server.start()
        socket.create_connection(other.getsockname(), timeout=PATIENCE).close()


def test_a_folder_has_one_server_at_a_time(started: Callable[[type[Server]], Server]) -> None:
    server = started(MariaDB)
    second = MariaDB(server.folder)

    for meddle in (second.start, second.stop):
        with pytest.raises(Unavailable, match="is run by another process"):
            meddle()
    assert found.why_not(server.admin_url) is None


def test_an_existing_server_stays_running_and_clean(started: Callable[[type[Server]], Server]) -> None:
    server = started(MariaDB)
    old = scratch.new_name().replace(scratch.run()[:8], "00000001")
    young, foreign = scratch.new_name(), "sctest_of_somebody_else"
    _sql(server.admin_url, f"CREATE DATABASE {old}", f"CREATE DATABASE {foreign}")

    with provided_servers([MYSQL], environ={MYSQL: server.admin_url}) as outcomes:
        assert outcomes == [Outcome(variable=MYSQL, url=server.admin_url, how="found")]
        assert server_environment(outcomes) == {MYSQL: server.admin_url, scratch.RUN_VARIABLE: scratch.run()}
        assert old not in _names(server.admin_url)
        _sql(server.admin_url, f"CREATE DATABASE {young}")

    assert processes.start_time_of(server.pid)
    assert foreign in _names(server.admin_url)
    assert young not in _names(server.admin_url)


def test_a_server_that_cannot_be_had_is_named(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in stages.ACCEPT:
        monkeypatch.delenv(variable, raising=False)
    port = ports.free_port()
    for told, why in (
        (f"mysql+pymysql://root@127.0.0.1:{port}/mysql", f"{MYSQL} names one, but nothing listens on 127.0.0.1:{port}"),
        (NONE, f"{MYSQL}=none says to do without"),
    ):
        with provided_servers([MYSQL], environ={MYSQL: told}) as outcomes:
            assert server_environment(outcomes)[MYSQL] == NONE
        assert stages.say_missing([str(outcome) for outcome in outcomes]) is False
        assert f"MariaDB could not be had: {why}\n" in capfd.readouterr().out

    monkeypatch.setenv(stages.ACCEPT[0], "1")
    assert stages.say_missing([str(outcome) for outcome in outcomes]) is True
    assert capfd.readouterr().out.endswith("skipped.\n")


def test_the_reason_shows_no_password(started: Callable[[type[Server]], Server]) -> None:
    server = started(MariaDB)
    why = found.why_not(_changed(server.admin_url, password="a-wrong-one")) or ""
    assert "cannot be used" in why
    assert "a-wrong-one" not in why


RUN = """
import signal, sys, time
from ci.servers import provided_servers
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by all that a shell starts in the background
with provided_servers([sys.argv[1]], environ={sys.argv[1]: "own"}) as outcomes:
    print(outcomes[0].url or outcomes[0].how, flush=True)
    time.sleep(600)  # until a signal ends it
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_servers_of_a_run_are_gone_after_it(how: signal.Signals, place: Path) -> None:
    _install(MariaDB(place / "unused"))
    command = [sys.executable, "-c", RUN, MYSQL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(place)}) as run:
        assert run.stdout is not None
        url = run.stdout.readline().strip()
        assert found.why_not(url) is None
        assert sweep_folders(place) == [], "it is at work"
        run.send_signal(how)
        try:
            run.wait(PATIENCE)
        finally:
            run.kill()

    if how == signal.SIGKILL:
        assert found.why_not(url) is None, "the server outlived the run"
        assert len(sweep_folders(place)) == 1
    assert "nothing listens" in (found.why_not(url) or "")
    assert [*place.glob("superconductor-*")] == []


def test_a_new_server_can_be_asked_for() -> None:
    with provided_servers([MYSQL], environ={MYSQL: OWN}) as (outcome,):
        if not outcome.url:
            pytest.skip(outcome.how)
        assert outcome.how == "started for this run"
        assert _sql(outcome.url, "SELECT 1") == 1
    assert "nothing listens" in (found.why_not(outcome.url) or "")


def _install(server: Server) -> None:
    try:
        server.install_missing()
    except Unavailable as why:
        pytest.skip(str(why))


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _sql(url: str, *statements: str) -> object:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        return result.scalar() if result.returns_rows else None


def _changed(url: str, **parts: str | None) -> str:
    return sa.make_url(url).set(**parts).render_as_string(hide_password=False)  # type: ignore[arg-type]  # one of them is a number


def _names(url: str) -> list[str]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return list(connection.exec_driver_sql("SHOW DATABASES").scalars())


def _log_in(port: int, user: str, password: str, vhost: str) -> str | None:
    """None, or what the broker has against it."""
    try:
        with amqp.Connection(f"{ports.HOST}:{port}", user, password, virtual_host=vhost, connect_timeout=PATIENCE) as connection:
            connection.connect()
    except amqp.exceptions.AMQPError as error:
        return str(error)
    return None


def _ports_of(pid: int) -> list[str]:
    """What is said of ports in the environment of a process."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return [value for value in variables if value.startswith(("ERL_EPMD_PORT=", "RABBITMQ_DIST_PORT="))]
