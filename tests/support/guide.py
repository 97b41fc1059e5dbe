"""Run the pages of the operator's guide as a reader would: block by block, and compare what they say with what they promise.

A page has blocks ``sh`` (``sh exit=1``: where that is the exit status; ``sh mariadb``: for a reader with that database server),
each perhaps followed by a block ``output``, in which ``...`` stands for anything in a line, and a line ``...`` for any lines.
Spaces and the borders of tables do not count.

Comments tell what a reader does by other means. ``<!-- stop: FILES -->``, ``<!-- restart: FILES -->``: the processes with these
configuration files. ``<!-- away: CELL -->``, ``<!-- back: CELL -->``: its database does not answer, and answers again; a reader
with a server follows the page there.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from cells import administration
from cells.administration import CellChange
from cli import app
from db.sql.engine import Database
from service.periodic import wait_until
from tests.support import vhosts
from tests.support.databases import SERVERS, closed_port
from tests.support.processes import RoleProcess

PATIENCE = 90.0
"""Seconds until a process serves, or what a page promises is there."""
READING = ("list", "show", "status", "check", "version", "discover", "verify", "explain")
"""Words of commands that may be repeated until what they say is as promised: work goes on behind them."""

FOLLOWING = ("conductor cloud/etc/api.conf", "scheduler cloud/etc/api.conf")
FOLLOWED = "was removed or has new URLs"
"""What these log when a cell has another address."""

_BLOCK = re.compile(r"^```(sh|output)([^\n]*)\n(.*?)^```$|^<!-- (stop|restart|away|back): (.*?) -->$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One thing to do.

    ``kind``: sh, or the word of a comment. ``promise``: what its output is to be like, if that is said. ``info``: what stands after
    ``sh``.
    """

    line: int
    kind: str
    text: str
    status: int = 0
    promise: str | None = None
    info: str = ""


def blocks(page: str) -> Iterator[Block]:
    """What there is to do on a page, in its order."""
    last: Block | None = None
    for found in _BLOCK.finditer(page):
        fence, info, text, step, names = found.groups()
        if fence == "output":
            assert last is not None, f"an output of nothing: {text}"
            assert last.kind == "sh", f"an output of nothing: {text}"
            yield last._replace(promise=text)
            last = None
            continue
        if last is not None:
            yield last
        line = page.count("\n", 0, found.start()) + 1
        status = int(info.partition("exit=")[2] or 0) if fence else 0
        last = Block(line, "sh", text, status, info=info.strip()) if fence else Block(line, step, names)
    if last is not None:
        yield last


def steps(page: str, heading: str) -> list[str]:
    """A section of a page, split before each of its numbered steps. The first text is what comes before them."""
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(f"{heading}\n")]
    return re.split(r"^(?=\d+\. )", text, flags=re.MULTILINE)


def programs(folder: Path) -> Path:
    """A folder with the command of this checkout, whatever is installed."""
    program = folder / "bin" / "superconductor"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cli "$@"\n')
    program.chmod(0o755)
    if control := os.environ.get(vhosts.CTL_VARIABLE):
        broker = program.with_name("rabbitmqctl")
        broker.write_text(f'#!/bin/sh\nexec {control} "$@"\n')
        broker.chmod(0o755)
    return program.parent


class Reader:
    """Follows pages in a folder. ``meant``: what stands for texts of the pages here, such as the URL of a broker. ``server``: its
    databases are there.
    """

    def __init__(self, folder: Path, meant: Mapping[str, str], capsys: pytest.CaptureFixture[str], server: str = "sqlite") -> None:
        self.folder = folder
        self._server = server
        self._meant = meant
        self._capsys = capsys
        self._running: dict[str, RoleProcess] = {}
        self._addresses: dict[str, str] = {}
        self._starting: list[RoleProcess] = []

    def read(self, page: Path) -> None:
        self.follow(page.read_text(), page.name)

    def follow(self, text: str, name: str) -> None:
        """``text``: of a page, or a part of one. ``name``: of the page."""
        for here, there in self._meant.items():
            text = text.replace(here, there)
        for block in blocks(text):
            where = f"{name}, line {block.line}"
            if block.kind == "sh" and self._is_for_us(block):
                self._follow(block, where)
            elif block.kind in ("stop", "restart") or (block.kind in ("away", "back") and self._server == "sqlite"):
                for each in block.text.split():
                    self._steps[block.kind](self, each)

    def _is_for_us(self, block: Block) -> bool:
        return not set(block.info.split()) & SERVERS.keys() or self._server in block.info.split()

    def close(self) -> None:
        for process in self._running.values():
            process.kill()

    # -- what is typed -------------------------------------------------------------------------------------------------------

    def _follow(self, block: Block, where: str) -> None:
        said: list[str] = []

        def promised() -> bool:
            output, status = self._run(block)
            said.append(f"{output}status {status}")
            return status == block.status and (block.promise is None or is_like(output, block.promise))

        commands = _commands(block.text)
        again = all(set(READING) & set(command.split()[:3]) for command in commands)
        assert wait_until(promised, PATIENCE if again else 0.0, 0.5), (
            f"{where}: {said[-1]}\nis not like\n{block.promise}status {block.status}"
        )

    def _run(self, block: Block) -> tuple[str, int]:
        """What the commands say, and the exit status of the last one: the first that fails is the last."""
        said, status = "", 0
        for command in _commands(block.text):
            output, status = self._one(command)
            said += output
            if status != 0:
                break
        return said, status

    def _one(self, command: str) -> tuple[str, int]:
        if command.startswith("export "):
            os.environ.update(dict([command.removeprefix("export ").split("=", 1)]))
            return "", 0
        if command.startswith("superconductor-"):
            self._start(command.removesuffix(" &"))
            return "", 0
        self._await()
        if command.startswith("superconductor ") and "|" not in command:
            self._capsys.readouterr()
            status = app.main(shlex.split(command)[1:])
            captured = self._capsys.readouterr()
            return captured.out + captured.err, status
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{programs(self.folder)}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.stdout, done.returncode

    # -- processes -----------------------------------------------------------------------------------------------------------

    def _start(self, command: str) -> None:
        program, option, file = shlex.split(command)
        assert option == "--config-file", command
        role = program.removeprefix("superconductor-")
        name = f"{role} {file}"
        assert name not in self._running, f"{name} runs already"
        process = RoleProcess(role, self.folder, Path(file), name=name.replace("/", "_"))
        self._running[name] = process
        self._starting.append(process)

    def _await(self) -> None:
        while self._starting:
            process = self._starting.pop()
            assert process.says(" is ready", timeout=PATIENCE), process.log

    def _stop(self, file: str) -> list[str]:
        names = [name for name in self._running if name.split()[1] == file]
        assert names, f"nothing runs with {file}"
        for name in names:
            self._running[name].signal(signal.SIGTERM)
        for name in names:
            process = self._running.pop(name)
            process.wait(PATIENCE)
            process.log_file.unlink()  # a later one of this name is ready when it says so itself
        return names

    def _restart(self, file: str) -> None:
        for name in self._stop(file):
            role, _, path = name.partition(" ")
            self._start(f"superconductor-{role} --config-file {path}")

    # -- cells ---------------------------------------------------------------------------------------------------------------

    def _away(self, cell: str) -> None:
        self._addresses[cell] = self._moved(cell, f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/{cell}")

    def _back(self, cell: str) -> None:
        self._moved(cell, self._addresses.pop(cell))

    def _moved(self, cell: str, url: str) -> str:
        """Where it was before. Whoever places servers has followed when this returns: none is half-way there."""
        following = [p for name, p in self._running.items() if name in FOLLOWING]
        times = [process.log.count(FOLLOWED) for process in following]
        database = Database(f"sqlite:///{self.folder}/cloud/db/api.db")
        try:
            before = administration.find_cell(database, cell).database_url
            administration.change_cell(database, cell, CellChange(database_url=url))
        finally:
            database.dispose_connections()
        for process, count in zip(following, times, strict=True):
            assert process.says(FOLLOWED, count + 1, PATIENCE), process.log
        return before

    _steps: Mapping[str, Callable[[Reader, str], object]] = {"stop": _stop, "restart": _restart, "away": _away, "back": _back}


def _commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]


def is_like(said: str, promise: str) -> bool:
    """Whether an output is what a block promises."""
    pattern = ""
    for line in _lines(promise):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r" *\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(said))) is not None


def _lines(text: str) -> list[str]:
    """Without borders, and with single spaces."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line and not re.fullmatch(r"[-+─┌┐└┘├┤┬┴┼ ]+", line)]
