"""``superconductor service``: every process of the deployment."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from cells import administration
from cells.fan_out import Unanswered, fan_out
from cli.shared import liveness
from cli.shared.base import AdminLister, Row, Table, at_least
from db import processes
from db.cell import services
from db.cell.services import SeenService
from db.sql.connection import CellTransaction
from objects.process import AGENT_BINARY, API_BINARY, CONDUCTOR_BINARY, CONSOLE_PROXY_BINARY, SCHEDULER_BINARY, Process

BINARIES = (API_BINARY, CONSOLE_PROXY_BINARY, SCHEDULER_BINARY, CONDUCTOR_BINARY, AGENT_BINARY)
COLUMNS = ("Binary", "Level", "Host", "PID", "State", "Status", "Reason", "Forced Down", "Last Seen", "Started At")


class ProcessReport(NamedTuple):
    """What one cell says of its processes."""

    conductors: list[Process]
    agents: list[SeenService]


class ServiceList(AdminLister):
    """List the processes of all levels: APIs, console proxies, schedulers and super conductors (level "api"), and of each cell.

    A process is down if it was not seen for --down-after seconds, by the clock of the database that it reports to. A stopped
    process is not listed; one that died is removed after an hour. Agents stay until 'host delete'. "Release" is the version of
    the software, "Messages" those of the messages that a process knows. "Status", "Reason" and "Forced Down" are what
    operators set for an agent's host. Two machines with the name of one host are named on standard error. If a cell cannot be
    reached, it is named there too, and the exit status is 1.

    Example: superconductor service list --cell east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cell", metavar="CELL", help="only the processes of this cell (name or UUID)")
        parser.add_argument("--host", metavar="HOST", help="only the processes on this host")
        parser.add_argument("--binary", choices=BINARIES, help="only processes of this kind")
        text = f"default: {liveness.DOWN_AFTER_S}"
        parser.add_argument("--down-after", metavar="SECONDS", type=partial(at_least, 1), default=liveness.DOWN_AFTER_S, help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        rows = [row for row in self._list_rows(parsed_args.cell, parsed_args.down_after) if _is_wanted(row, parsed_args)]
        return (*COLUMNS, "Release", "Messages"), rows

    def _list_rows(self, cell: str | None, down_after: int) -> Iterable[Row]:
        database, registry = self.deployment.api_database, self.deployment.cell_registry
        if cell is None:
            yield from _process_rows("api", database.read(processes.list_all, "api"), down_after)
            cells = registry.list_cells()
            for reason in registry.reasons_by_uuid().values():
                self._warn_unknown(reason)
        else:
            cells = (registry.get(administration.find_cell(database, cell).uuid),)
        for answer in fan_out(cells, _read_report):
            if isinstance(answer, Unanswered):
                self._warn_unknown(answer.reason)
            else:
                yield from _process_rows(answer.cell.name, answer.value.conductors, down_after)
                for agent in answer.value.agents:
                    if agent.two_machines:
                        self.warn_user(f"Cell {answer.cell.name}: {agent.two_machines}")
                yield from _agent_rows(answer.cell.name, answer.value.agents, down_after)

    def _warn_unknown(self, reason: str) -> None:
        self.status = 1
        self.warn_user(f"{reason}; its processes are unknown")


def _read_report(tx: CellTransaction) -> ProcessReport:
    return ProcessReport(processes.list_all(tx, "cell"), services.list_seen(tx, AGENT_BINARY))


def _is_wanted(row: Row, parsed_args: argparse.Namespace) -> bool:
    return parsed_args.binary in (None, row[0]) and parsed_args.host in (None, row[2])


def _process_rows(level: str, records: Iterable[Process], down_after: int) -> Iterable[Row]:
    for process in records:
        state = "down" if process.age > down_after else "up"
        times = (liveness.format_moment(process.last_seen), liveness.format_moment(process.started_at))
        about = process.about
        yield (
            process.binary,
            level,
            process.host,
            about.pid,
            state,
            None,
            None,
            None,
            *times,
            about.release,
            about.messages or None,
        )


def _agent_rows(level: str, agents: Iterable[SeenService], down_after: int) -> Iterable[Row]:
    for agent in agents:
        service = agent.service
        said = (liveness.agent_status(agent), service.disabled_reason, "yes" if service.forced_down else "no")
        times = (liveness.format_moment(service.last_seen), liveness.format_moment(service.started_at))
        identity = (service.binary, level, service.host, service.pid, liveness.agent_state(agent, down_after))
        yield (*identity, *said, *times, service.release, service.messages)
