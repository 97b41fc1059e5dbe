"""``nova record``: the past of a Nova as a trace for ``lab replay``."""

from __future__ import annotations

import argparse
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cli.databases.purge import date_of
from cli.nova.base import NovaCommand
from objects import errors

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.history import NovaHistory
    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState


class NovaRecord(NovaCommand):
    """Write the past of a Nova as a trace, and its hosts as a fleet, for 'lab replay'. Nothing is changed in Nova.

    A server is a line from when it became ACTIVE to its end, with the size that it has now or had at its end. Servers that
    'nova-manage db archive_deleted_rows' moved are missing. Pseudonyms, new ones for each record, stand for all names unless
    --with-names is given. Every cell must answer.

    Example: superconductor nova record trace.csv --fleet fleet.csv --since 2026-01-01
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", metavar="TRACE", type=Path, help="file for the servers")
        parser.add_argument("--fleet", metavar="FILE", type=Path, required=True, help="file for the hosts as they are now")
        text = "leave out what ended before, and let what ran then begin then: 2026-03-31, or 2026-03-31T12:00:00+02:00"
        parser.add_argument("--since", metavar="DATE", type=date_of, help=text)
        parser.add_argument("--with-names", action="store_true", help="write names and ids as they are, not pseudonyms")

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> NovaHistory:
        from beside_nova.history import NovaRecorder
        from lab.record import Names

        if parsed_args.trace.absolute() == parsed_args.fleet.absolute():
            raise errors.Invalid("--fleet: names the same file as the trace")
        state.load_all()
        names = Names(None if parsed_args.with_names else secrets.token_hex())
        since = None if parsed_args.since is None else datetime.fromtimestamp(parsed_args.since, UTC).replace(tzinfo=None)
        return NovaRecorder(state, names, since).write_files(parsed_args.trace, parsed_args.fleet)

    def describe_answer(self, console: Console, answer: NovaHistory) -> None:
        console.print(f"{answer.servers} servers and {answer.hosts} hosts were written.", markup=False)
        if answer.never_ran:
            console.print(f"{answer.never_ran} servers never became ACTIVE and are left out.", markup=False)
