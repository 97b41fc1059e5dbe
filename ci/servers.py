"""A RabbitMQ, a MariaDB and a PostgreSQL for a run of the tests: found ones where tests may use them, our own elsewhere.

``python ci/servers.py`` says what would be used; ``python ci/servers.py COMMAND...`` runs a command with the servers in its
environment. A found server is used if SC_TEST_RABBIT_URL, SC_TEST_MYSQL_URL or SC_TEST_POSTGRES_URL names it, or if the usual login
works and something can be made in it; ``own`` there asks for a new one, ``none`` for none. A found one is never stopped, and what
tests have made in it is removed. Servers of our own are in a temporary folder; they and it are gone afterwards, and what a killed
run has left of either is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import sqlalchemy as sa

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci import found
from ci.commands import run
from deploy import processes
from deploy.servers import MariaDB, PostgreSQL, RabbitMQ, Server, Unavailable
from objects.base import Object
from objects.mask import mask_url
from tests.support import scratch
from tests.support.servers import MYSQL, NONE, OWN, POSTGRES, RABBIT, USUAL
from tests.support.vhosts import CTL_VARIABLE

PREFIX = "superconductor-servers-"
CLASSES: dict[str, type[Server]] = {RABBIT: RabbitMQ, MYSQL: MariaDB, POSTGRES: PostgreSQL}


class Outcome(Object, frozen=True, kw_only=True):
    """What became of the wish for one server."""

    variable: str
    url: str = ""
    """Empty where it cannot be had."""
    how: str
    """Found or our own; or the reason why it cannot be had."""
    control: str = ""
    """The command that administers a broker of our own."""

    @property
    def server_name(self) -> str:
        return CLASSES[self.variable].NAME

    def __str__(self) -> str:
        return (
            f"{self.server_name}: {self.how}, {mask_url(self.url)}"
            if self.url
            else f"{self.server_name} could not be had: {self.how}"
        )


class Owner(Object, frozen=True):
    """Whose the servers in a folder are: a process, and when it began, as its number may be another's by now."""

    pid: int
    started: str


@contextlib.contextmanager
def provided_servers(
    variables: Sequence[str] = tuple(CLASSES), *, environ: Mapping[str, str] = os.environ
) -> Iterator[list[Outcome]]:
    """Find or start the servers, say how it went, and clean up at the end. One that cannot be had is an outcome, not an error."""
    sweep_folders()
    at_the_end = contextlib.ExitStack()
    try:
        outcomes = {variable: find_server(variable, environ) for variable in variables}
        for outcome in outcomes.values():
            _sweep_found(outcome, scratch.is_left_over)
            at_the_end.callback(_sweep_found, outcome, lambda name: scratch.belongs_to(name, scratch.run()))
        missing = [
            variable for variable, outcome in outcomes.items() if not outcome.url and environ.get(variable) in (None, "", OWN)
        ]
        if missing:
            outcomes |= at_the_end.enter_context(_own_servers(missing))
        yield [outcomes[variable] for variable in variables]
    finally:
        with _ignore_interrupts():
            at_the_end.close()


def server_environment(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """What tests are told of the servers."""
    variables = {outcome.variable: outcome.url or NONE for outcome in outcomes}
    for outcome in outcomes:
        if outcome.control:
            variables[CTL_VARIABLE] = outcome.control
    return variables | {scratch.RUN_VARIABLE: scratch.run()}


def find_server(variable: str, environ: Mapping[str, str] = os.environ) -> Outcome:
    """The server that the variable names, or the one with the usual login; an outcome without a URL where tests cannot use it."""
    named = environ.get(variable)
    if named == NONE:
        return Outcome(variable=variable, how=f"{variable}={NONE} says to do without")
    if named == OWN:
        return Outcome(variable=variable, how="a new one was asked for")
    url = named or USUAL[variable]
    why = found.why_not(url)
    if why is None:
        return Outcome(variable=variable, url=url, how="found")
    return Outcome(variable=variable, how=f"{variable} names one, but {why}" if named else why)


def sweep_folders(folder: Path | None = None) -> list[Path]:
    """End the servers whose owner, a process of this machine and user, was killed, and remove their folders. Which those were."""
    swept = []
    for place in (folder or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, msgspec.DecodeError, Unavailable):
            owner = msgspec.json.decode((place / "owner.json").read_bytes(), type=Owner)
            if place.stat().st_uid == os.geteuid() and processes.start_time_of(owner.pid) != owner.started:
                for variable, server in CLASSES.items():
                    server(place / variable).stop()
                shutil.rmtree(place)
                swept.append(place)
    return swept


@contextlib.contextmanager
def _own_servers(variables: Sequence[str]) -> Iterator[dict[str, Outcome]]:
    """Servers of our own, for those of the variables for which there can be one."""
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    place.chmod(0o711)  # PostgreSQL runs as another user than root
    owner = Owner(pid=os.getpid(), started=processes.start_time_of(os.getpid()))
    (place / "owner.json").write_bytes(msgspec.json.encode(owner))
    new_servers = {variable: CLASSES[variable](place / variable) for variable in variables}
    try:
        with ThreadPoolExecutor() as threads:
            outcomes = dict(zip(new_servers, threads.map(_start_server, new_servers, new_servers.values()), strict=True))
        yield outcomes
    finally:
        for server in new_servers.values():
            server.stop()
        shutil.rmtree(place)


def _start_server(variable: str, server: Server) -> Outcome:
    try:
        server.install_missing()  # packages are installed one after another, which is seen to there
        server.start()
    except Unavailable as why:
        return Outcome(variable=variable, how=str(why))
    control = str(server.folder / "ctl") if isinstance(server, RabbitMQ) else ""
    return Outcome(variable=variable, url=server.admin_url, how="started for this run", control=control)


def _sweep_found(outcome: Outcome, is_ours: Callable[[str], bool]) -> None:
    if outcome.url:
        try:
            found.remove_leftovers(outcome.url, is_ours)
        except (sa.exc.SQLAlchemyError, LookupError) as error:
            print(f"{outcome.server_name}: what tests have left could not be removed: {error}", file=sys.stderr)


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Cleaning up takes seconds, and who presses Ctrl-C twice wants it done too."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(command: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through everything that cleans up
    if not command:
        for variable in CLASSES:
            outcome = find_server(variable)
            print(outcome if outcome.url else f"{outcome.server_name}: would be our own, as {outcome.how}")
        return 0
    with provided_servers() as outcomes:
        for outcome in outcomes:
            print(outcome, file=sys.stderr, flush=True)
        return run(command, Path.cwd(), {**os.environ, **server_environment(outcomes)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
