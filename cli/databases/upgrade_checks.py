"""The checks of ``superconductor upgrade check``."""

from __future__ import annotations

import contextlib
import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import api.opts
import service.opts
from cells.cell import Cell
from cells.discovery import in_two_cells
from cells.fan_out import Answered, fan_out
from cells.registry import CellRegistry
from cli.shared import liveness
from cli.shared.base import TWIN
from cli.shared.deployment import Deployment
from cli.standalone import key_file
from compute.main import VERSION as AGENT_VERSION
from db import online, processes
from db.api.deployment import host_mappings
from db.api.rows import finalized
from db.api.servers import names as server_names
from db.cell import services
from db.cell.services import SeenService
from db.sql import galera, ready, sync
from db.sql.connection import CellTransaction, Connection
from objects import errors
from objects.mask import mask_url
from objects.messages_version import SPAN, Span, span_of
from objects.process import AGENT_BINARY, Process
from objects.server_name import NameScope
from rpc.transport import Bus
from service import config
from service.release import installed_release
from service.vault import OPTION, Vault

CHECK_THREADS = 16
NAMES_SHOWN_LIMIT = 5
"""Hosts or processes that are named where there are more."""


class Severity(enum.IntEnum):
    """What a finding means; its number is the exit status."""

    SUCCESS = 0
    WARNING = 1
    FAILURE = 2

    @property
    def shown_name(self) -> str:
        return self.name.capitalize()


class UpgradeFinding(NamedTuple):
    check: str
    level: Severity
    text: str


class ReportedProcesses(NamedTuple):
    """The processes of one cell that have reported."""

    conductors: list[Process]
    agents: list[SeenService]


def report_processes(tx: CellTransaction) -> ReportedProcesses:
    """What a cell knows of its processes."""
    return ReportedProcesses(processes.list_all(tx, "cell"), services.list_seen(tx, AGENT_BINARY))


def list_spans(api_processes: Iterable[Process], reports: Iterable[ReportedProcesses]) -> Iterator[tuple[str, str, Span]]:
    """Binary, host and messages of all that are alive, and of all agents whose hosts are not called dead.

    ``api_processes``: the processes of the API level.
    """
    reports = list(reports)
    for process in (*api_processes, *(process for cell_report in reports for process in cell_report.conductors)):
        if process.age <= liveness.DOWN_AFTER_S:
            yield process.binary, process.host, span_of(process.about.messages)
    for agent in (agent.service for cell_report in reports for agent in cell_report.agents):
        if not agent.forced_down:
            yield agent.binary, agent.host, span_of(agent.messages)


class _Site:
    """The deployment as it is looked at: its cells, and what those with a database that can be worked on have to say."""

    def __init__(self, deployment: Deployment) -> None:
        self.database = deployment.api_database
        self.scope = api.opts.unique_names(deployment.loaded_conf)
        self.registry = CellRegistry(self.database, deployment.registry_settings)
        self.cells = list(self.registry.list_cells())
        self.cell0: Cell | None = None
        with contextlib.suppress(errors.NotFound, errors.CellUnavailable):  # its own check tells
            self.cell0 = self.registry.cell0
        self.sound: list[Cell] = []
        """Cells, and cell0, whose databases answer and have a schema that this release works with."""

    def read_reports(self) -> Mapping[Cell, ReportedProcesses]:
        """What each of these cells says of its processes."""
        answers = fan_out([cell for cell in self.sound if cell is not self.cell0], report_processes)
        return {answer.cell: answer.value for answer in answers if isinstance(answer, Answered)}


def list_findings(deployment: Deployment) -> Iterator[UpgradeFinding]:
    """All checks, one or more findings for each. Those that need the API database are left out where it cannot be used."""
    first = list(_run_check("API database", partial(_api_database, deployment)))
    yield from first
    yield from _run_check("Encryption key", partial(_check_key, deployment))
    yield from _run_check("API level's bus", partial(_api_bus, deployment))
    if any(finding.level is Severity.FAILURE for finding in first):
        return
    site = _Site(deployment)
    try:
        for check, look in _ON_SITE:
            yield from _run_check(check, partial(look, site))
    finally:
        site.registry.close()


def _run_check(check: str, look: Callable[[], Iterator[tuple[Severity, str]]]) -> Iterator[UpgradeFinding]:
    """What one check finds. One that cannot be made is a failure, and keeps no other from being made."""
    try:
        for level, text in look():
            yield UpgradeFinding(check, level, text)
    except errors.SuperconductorError as error:
        yield UpgradeFinding(check, Severity.FAILURE, mask_url(str(error)))


CheckFindings = Iterator[tuple[Severity, str]]

# -- the API level -----------------------------------------------------------------------------------------------------------


def _api_database(deployment: Deployment) -> CheckFindings:
    ready.check_schema(deployment.api_database, "api")
    yield Severity.SUCCESS, f"schema {_schema_text(deployment.api_database.read(sync.schema_version, 'api'), 'api')}"
    yield from _check_cluster(deployment.api_database.read(galera.list_misfits), "")


def _check_key(deployment: Deployment) -> CheckFindings:
    if Vault(_read_keys(deployment)).can_seal:
        yield Severity.SUCCESS, "there is a master key"
    else:
        text = "is empty: boots with user data are refused, and get no admin password; 'superconductor secrets new' makes one"
        yield Severity.WARNING, f"{OPTION} {text}"


def _read_keys(deployment: Deployment) -> Sequence[str]:
    if deployment.state_folder is not None:
        return key_file.read(deployment.state_folder)
    keys: Sequence[str] = config.load_options(deployment.config_arguments, service.opts.list_opts()).secrets["keys"]
    return keys


def _api_bus(deployment: Deployment) -> CheckFindings:
    if deployment.state_folder is not None:
        yield Severity.SUCCESS, "inside the process"
        return
    conf = config.load_options(deployment.config_arguments, service.opts.list_opts())
    url = conf.api_transport_url or conf.transport_url
    if not url:
        yield Severity.WARNING, "[DEFAULT] transport_url is not set here: run this with the configuration of the API level"
        return
    bus = Bus(url, name="api")
    try:
        bus.check_login()
        yield Severity.SUCCESS, f"{mask_url(url)} answers"
    except errors.SuperconductorError as error:
        yield Severity.WARNING, mask_url(str(error))
    finally:
        bus.close()


def _schema_text(revision: str | None, kind: sync.Kind) -> str:
    return f"{revision}" if revision == sync.latest_version(kind) else f"{revision}, of a newer release"


# -- cells -------------------------------------------------------------------------------------------------------------------


def _check_cells(site: _Site) -> CheckFindings:
    if site.cell0 is None:
        yield Severity.FAILURE, "there is no cell0; 'superconductor cell create cell0 --cell0 --database-connection URL' makes it"
    if not site.cells:
        yield Severity.FAILURE, "there is no cell that could hold servers; 'superconductor cell create' makes one"
    if site.cell0 is not None and site.cells:
        yield Severity.SUCCESS, f"cell0 and {_format_count(len(site.cells), 'cell')}"


def _cell_databases(site: _Site) -> CheckFindings:
    """A cell that is away is a warning: that is daily life, and its schema can be brought up to date when it is back."""
    for reason in site.registry.reasons_by_uuid().values():
        yield Severity.FAILURE, mask_url(reason)
    for answer in fan_out([*site.cells, *([site.cell0] if site.cell0 else [])], sync.schema_version, "cell"):
        if not isinstance(answer, Answered):
            yield Severity.WARNING, mask_url(answer.reason)
            continue
        try:
            ready.judge_schema(answer.cell.database, "cell", answer.value)
            site.sound.append(answer.cell)
        except errors.DatabaseUnavailable as error:
            yield Severity.FAILURE, f"cell {answer.cell.name!r}: {error}"
    for looked in fan_out(site.sound, galera.list_misfits):
        if isinstance(looked, Answered):
            yield from _check_cluster(looked.value, f"cell {looked.cell.name!r}: ")
    if site.sound:
        yield Severity.SUCCESS, f"the schema of {_format_count(len(site.sound), 'database')} is up to date"


def _check_cluster(misfits: list[galera.Misfit] | None, prefix: str) -> CheckFindings:
    """What does not fit about a Galera cluster under a database."""
    for misfit in misfits or []:
        yield Severity.FAILURE if misfit.lasting else Severity.WARNING, f"{prefix}Galera: {misfit.text}"
    if misfits == []:
        yield Severity.SUCCESS, f"{prefix}a node of a Galera cluster that fits"


def _cell_buses(site: _Site) -> CheckFindings:
    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        trouble = [text for text in pool.map(_try_bus, site.cells) if text]
    for text in trouble:
        yield Severity.WARNING, text
    if (well := len(site.cells) - len(trouble)) or not trouble:
        yield Severity.SUCCESS, f"{_format_count(well, 'cell')} can be reached"


def _try_bus(cell: Cell) -> str:
    try:
        cell.check_bus()
    except errors.SuperconductorError as error:
        return mask_url(str(error))
    return ""


# -- hosts and services ------------------------------------------------------------------------------------------------------


def _check_hosts(site: _Site) -> CheckFindings:
    names = {cell.uuid: cell.name for cell in site.cells}
    mapped = {mapping.host: mapping.cell_uuid for mapping in site.database.read(host_mappings.list_all)}
    agents = [(agent, cell.name) for cell, report in site.read_reports().items() for agent in report.agents]
    if unmapped := {agent.service.host for agent, _ in agents} - mapped.keys():
        level = Severity.WARNING if mapped else Severity.FAILURE
        yield level, f"not mapped: {format_names(unmapped)}; 'superconductor host discover' maps them"
    alive = [(agent.service.host, cell) for agent, cell in agents if liveness.is_up(agent, liveness.DOWN_AFTER_S)]
    for host, cells in in_two_cells(alive).items():
        yield Severity.WARNING, TWIN.format(host=host, cells=" and ".join(cells))
    if shared := {agent.service.host for agent, _ in agents if agent.service.is_shared}:
        text = "cannot be distinguished, because their agents share a broker user; 'superconductor host user' creates one for each"
        yield Severity.WARNING, f"{format_names(shared)}: {text}"
    if lost := {host for host, uuid in mapped.items() if uuid not in names and uuid not in site.registry.reasons_by_uuid()}:
        yield (
            Severity.WARNING,
            f"mapped to a cell that is registered no more: {format_names(lost)}; 'superconductor host delete' forgets them",
        )
    yield Severity.SUCCESS, f"{_format_count(len(mapped), 'host')} mapped"


def _check_services(site: _Site) -> CheckFindings:
    """By what processes say of themselves. Agents of the service version before are understood; those of older ones are not."""
    reports = site.read_reports().values()
    agents = [agent.service for report in reports for agent in report.agents]
    if old := {agent.host for agent in agents if agent.version < AGENT_VERSION}:
        yield Severity.WARNING, f"agents of an older version: {format_names(old)}; upgrade them after conductors and schedulers"
    known_processes = [
        *site.database.read(processes.list_all, "api"),
        *(process for report in reports for process in report.conductors),
    ]
    said = [
        (process.binary, process.host, process.about.release) for process in known_processes if process.age <= liveness.DOWN_AFTER_S
    ]
    said += [(agent.binary, agent.host, agent.release or "") for agent in agents]
    for release_name in sorted({release_name for _, _, release_name in said} - {installed_release(), ""}):
        of_it = {f"{binary} on {host}" for binary, host, its in said if its == release_name}
        yield Severity.WARNING, f"on release {release_name}, while this is {installed_release()}: {format_names(of_it)}"
    yield Severity.SUCCESS, f"{_format_count(len(said), 'process', 'es')} heard of; this is release {installed_release()}"


def _check_messages(site: _Site) -> CheckFindings:
    """The messages versions of each role, and whether there is a way back."""
    spans_by_binary: dict[str, Counter[Span]] = defaultdict(Counter)
    apart: set[str] = set()
    for binary, host, span in list_spans(site.database.read(processes.list_all, "api"), site.read_reports().values()):
        spans_by_binary[binary][span] += 1
        if not span.is_compatible_with(SPAN):
            apart.add(f"{binary} on {host} ({span})")
    if apart:
        yield Severity.FAILURE, f"know none of the messages {SPAN} of this release: {format_names(apart)}"
    for binary, counts in sorted(spans_by_binary.items()):
        yield Severity.SUCCESS, f"{binary}: {', '.join(f'{span} ({count})' for span, count in sorted(counts.items()))}"
    final = site.database.read(finalized.read)
    if final < SPAN.newest:
        way = f"finalized: {final}; what an older release cannot read waits for 'superconductor upgrade finalize'"
        yield Severity.WARNING, way
    else:
        yield Severity.SUCCESS, f"finalized: {final}"


# -- names ---------------------------------------------------------------------------------------------------------------------


def _check_names(site: _Site) -> CheckFindings:
    if site.scope is NameScope.OFF:
        yield Severity.SUCCESS, "need not be unique"
    elif missing := site.database.read(server_names.count_unrecorded, site.scope):
        yield Severity.WARNING, f"not recorded for {_format_count(missing, 'server')}; run 'superconductor db backfill-names'"
    else:
        yield Severity.SUCCESS, "all are recorded"


# -- rows of an older release ------------------------------------------------------------------------------------------------


def _online_migrations(site: _Site) -> CheckFindings:
    remaining = site.database.read(_count_remaining, "api")
    for answer in fan_out(site.sound, _count_remaining, "cell"):
        if isinstance(answer, Answered):
            remaining += answer.value
    if not remaining:
        yield Severity.SUCCESS, "nothing is left to migrate"
    for name, count in sorted(remaining.items()):
        yield Severity.WARNING, f"{name}: {_format_count(count, 'row')}; run 'superconductor db online-migrations'"


def _count_remaining(tx: Connection, kind: sync.Kind) -> Counter[str]:
    return Counter({migration.name: count for migration in online.migrations_of(kind) if (count := migration.count_left(tx))})


def format_names(names: set[str]) -> str:
    """Some of them."""
    shown_names = sorted(names)[:NAMES_SHOWN_LIMIT]
    return ", ".join(shown_names) + (f" and {len(names) - len(shown_names)} more" if len(names) > len(shown_names) else "")


def _format_count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


_ON_SITE: tuple[tuple[str, Callable[[_Site], CheckFindings]], ...] = (
    ("Cells", _check_cells),
    ("Cell databases", _cell_databases),
    ("Cell buses", _cell_buses),
    ("Hosts", _check_hosts),
    ("Services", _check_services),
    ("Messages", _check_messages),
    ("Server names", _check_names),
    ("Online migrations", _online_migrations),
)
