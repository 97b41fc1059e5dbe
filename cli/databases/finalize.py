"""What ``superconductor upgrade finalize`` does."""

from __future__ import annotations

from cells.fan_out import Unanswered, fan_out
from cli.databases.upgrade_checks import ReportedProcesses, format_names, list_spans, report_processes
from cli.shared.deployment import Deployment
from db import processes
from db.api.rows import finalized
from db.sql import ready
from objects import errors
from objects.messages_version import SPAN, MessagesVersion
from service.release import installed_release


def finalize_messages(deployment: Deployment) -> tuple[MessagesVersion, MessagesVersion]:
    """The messages version before, and now.

    Raises errors.Conflict if an older process may still read what others write, and errors.CellUnavailable if that is not known.
    """
    database, registry = deployment.api_database, deployment.cell_registry
    ready.check_schema(database, "api")
    cells = registry.list_cells()
    for reason in registry.reasons_by_uuid().values():
        raise errors.CellUnavailable(f"{reason}; its processes are unknown")
    reports: list[ReportedProcesses] = []
    for answer in fan_out(cells, report_processes):
        if isinstance(answer, Unanswered):
            raise errors.CellUnavailable(f"{answer.reason}; its processes are unknown")
        reports.append(answer.value)
    process_spans = list_spans(database.read(processes.list_all, "api"), reports)
    if older := {f"{binary} on {host} ({span})" for binary, host, span in process_spans if span.newest < SPAN.newest}:
        raise errors.Conflict(
            f"Not finalized: these are of an older release, and know no messages {SPAN.newest}: {format_names(older)}. "
            "Upgrade them, "
            "or say of a host that will not come back 'superconductor host set HOST --down'."
        )
    before = database.read(finalized.read)
    if before > SPAN.newest:
        raise errors.Conflict(
            f"Messages {before} are finalized already, and release {installed_release()} knows {SPAN} only: upgrade it."
        )
    database.write(finalized.write, SPAN.newest, installed_release())
    return before, SPAN.newest
