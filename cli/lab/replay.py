"""``lab``: replay a trace of servers under several configurations, without a deployment."""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cli.shared.base import AdminLister, Row, Table, at_least
from cli.shared.streams import inner_stream
from objects import errors

if TYPE_CHECKING:  # a usage error or a help text should not wait for these
    from lab.compare import Policy, Question
    from lab.figures import ReplayReport

DEFAULT_NAME = "default"
BAR_WIDTH = 30
_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


class LabReplay(AdminLister):
    """Replay a trace: let the scheduler place its servers in virtual time, once for each configuration.

    Filters, weighers, driver and host table are those of the scheduler. No deployment is needed, and nothing is changed in one. The
    table begins with what no policy can beat. With --output, a folder gets report.html, results.json and results.csv, and the same
    command goes on where it was interrupted.

    Examples:
      superconductor lab replay trace.csv --fleet fleet.csv
      superconductor lab replay trace.csv --fleet fleet.csv --config spread.conf --config pack.conf --output results
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_trace_arguments(parser)
        text = "configuration file whose [scheduler] options decide; may be repeated (default: the default options)"
        parser.add_argument("--config", dest="configs", metavar="FILE", action="append", default=[], help=text)
        parser.add_argument("--output", metavar="FOLDER", help="folder for the report and for checkpoints")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from lab.compare import compare_policies
        from lab.report import HEADINGS, rows_of

        policies = policies_of(parsed_args.configs)
        question = question_of(parsed_args, parsed_args.output)
        progress = ReplayProgress(self.app.stderr, quiet=self.is_quiet)
        try:
            report = compare_policies(question, policies, parsed_args.processes, progress.show_progress)
        finally:
            progress.end_line()
        if parsed_args.output is not None:
            write_results(Path(parsed_args.output), report)
        return HEADINGS, shown_rows(rows_of(report), parsed_args.formatter)


def shown_rows(rows: Iterable[Row], formatter: str) -> list[Row]:
    """The rows as a person reads them: a dash for what is not known. Other formats have their own word for that."""
    return [tuple("-" if value is None and formatter == "table" else value for value in row) for row in rows]


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """What is replayed, and how."""
    from lab.trace import IGNORABLE

    parser.add_argument("trace", metavar="TRACE", help="CSV file of servers, of a format in docs/lab.md")
    parser.add_argument("--fleet", metavar="FILE", required=True, help="CSV file of hosts")
    parser.add_argument("--racks", metavar="FILE", help="table of host_id and rack_id, if the fleet does not say it")
    parser.add_argument("--seed", metavar="N", type=partial(at_least, 0), default=0, help="of random choices (default: 0)")
    text = "replays at a time (default: one for each processor)"
    parser.add_argument("--processes", metavar="N", type=partial(at_least, 1), default=os.cpu_count() or 1, help=text)
    text = "leave out NUMA nodes, or fault domains; may be repeated"
    parser.add_argument("--ignore", dest="ignored", choices=IGNORABLE, action="append", default=[], help=text)


def question_of(parsed_args: argparse.Namespace, folder: str | None) -> Question:
    """What is to be replayed."""
    from lab.compare import Question

    return Question(
        trace=parsed_args.trace,
        fleet=parsed_args.fleet,
        racks=parsed_args.racks,
        ignored=tuple(sorted(set(parsed_args.ignored))),
        seed=parsed_args.seed,
        folder=folder,
    )


def policies_of(paths: Sequence[str]) -> list[Policy]:
    """The policies of these configuration files, named like the files; without any, the default options.

    Raises Misconfigured for a file that processes would refuse, or with options that nobody knows. Raises Invalid for two files of
    one name.
    """
    from lab.compare import Policy
    from scheduler.framework.settings import SchedulerSettings

    if not paths:
        return [Policy(name=DEFAULT_NAME, settings=SchedulerSettings())]
    from cli.databases.effective import Effective  # the options of all roles, which take a third of a second to import
    from scheduler.opts import read_settings
    from scheduler.plugins import load_driver

    policies: dict[str, Policy] = {}
    for path in paths:
        name = Path(path).stem
        if not _NAME.fullmatch(name):
            raise errors.Invalid(f"{path}: the name of a policy, that of its file, has 1 to 80 letters, digits and . _ -")
        if name in policies:
            raise errors.Invalid(f"{path}: two configurations are called {name}; a policy has the name of its file")
        effective = Effective(["--config-file", path], "scheduler")
        for stranger in effective.list_strangers():
            raise errors.Misconfigured(stranger)
        policies[name] = Policy(name=name, settings=read_settings(effective.conf))
        load_driver(policies[name].settings)  # says what is wrong with the names of filters and weighers
    return list(policies.values())


def write_results(folder: Path, report: ReplayReport) -> None:
    """Write the three forms of the results, each whole or not at all."""
    from lab.compare import write_whole
    from lab.report import HEADINGS, html_page, rows_of
    from objects import stored

    table = io.StringIO()
    csv.writer(table).writerows([HEADINGS, *rows_of(report)])
    write_whole(folder / "results.json", stored.dump_value(report) + "\n")
    write_whole(folder / "results.csv", table.getvalue())
    write_whole(folder / "report.html", html_page(report))


class ReplayProgress:
    """A bar that is drawn again and again on a terminal; elsewhere a line for every tenth."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._out = inner_stream(stream)
        self._live = self._out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._quiet = quiet
        self._shown_tenth = 0

    def show_progress(self, servers: int, total: int) -> None:
        """So many servers were replayed, of all replays together."""
        tenth = servers * 10 // total
        text = f"{servers:,} of {total:,} servers"
        if self._quiet:
            return
        if self._live:
            filled = servers * BAR_WIDTH // total
            self._write(f"\r[{'#' * filled:<{BAR_WIDTH}}] {text}\x1b[K")
        elif tenth > self._shown_tenth:
            self._shown_tenth = tenth
            self._write(f"{text}\n")

    def end_line(self) -> None:
        """Leave the line of the bar."""
        if self._live and not self._quiet:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
