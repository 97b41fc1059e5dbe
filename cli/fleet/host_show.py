"""``superconductor host show``: everything about one host."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from cliff.columns import FormattableColumn

from cells.cell import Cell
from cells.fan_out import Answered, Unanswered, fan_out
from cli.shared import liveness
from cli.shared.base import TWIN, AdminShow, at_least
from db.api.deployment import aggregates
from db.api.servers import mappings
from db.api.servers.mappings import ServerQuery
from db.audit import cell_rows, hosts
from db.cell import host_terms, services
from db.cell.host_terms import WaitingSize
from db.cell.services import SeenService
from db.sql.connection import ApiTransaction, CellTransaction
from objects import errors
from objects.aggregate import Aggregate
from objects.compute_node import ComputeNode
from objects.instance import Server
from objects.inventory import Inventory
from objects.process import AGENT_BINARY

INSTANCES_LIMIT = 1000
"""Servers that are listed."""


class Lines(FormattableColumn[list[Any]]):
    """Several things: a line each for people, a list for programs."""

    def human_readable(self) -> str:
        return "\n".join(_value_line(one) for one in self._value)


def _value_line(one: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in one.items()) if isinstance(one, dict) else str(one)


class HostRecord(NamedTuple):
    """What the API database knows of a host."""

    home: str | None
    aggregates: list[Aggregate]
    claims: list[Inventory]
    servers: list[Server]


class HostReport(NamedTuple):
    """What a cell says of it."""

    agent: SeenService | None
    nodes: list[ComputeNode]
    waiting: list[WaitingSize]


class HostShow(AdminShow):
    """Show one host: its cell, whether it is alive and takes servers, its capacity, its claims and its servers.

    "Nodes" are as its agent last reported, with the sizes and allocation ratios that count (MiB, GiB); "Claims" are what schedulers
    count. "Problems" says why it takes no servers, or counts with less than it reports, and what to do. A cell that cannot be
    reached is named on standard error; what the API database knows is still shown.

    Example: superconductor host show east-h1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("host", metavar="HOST", help="name of the host")
        text = f"default: {liveness.DOWN_AFTER_S}"
        parser.add_argument("--down-after", metavar="SECONDS", type=partial(at_least, 1), default=liveness.DOWN_AFTER_S, help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        host, registry = parsed_args.host, self.deployment.cell_registry
        level = self.deployment.api_database.read(_read_record, host)
        answers = fan_out(registry.list_cells(), _read_report, host)
        reports = {answer.cell.uuid: answer.value for answer in answers if isinstance(answer, Answered)}
        silent = [answer for answer in answers if isinstance(answer, Unanswered)]
        reporting = [cell for cell in registry.list_cells() if cell.uuid in reports and reports[cell.uuid].agent is not None]
        if level.home is None and not reporting:
            raise errors.NotFound(_unknown_text(host, [answer.cell.name for answer in silent]))
        for answer in silent:
            self.warn_user(f"{answer.reason}; its records of the host are not shown")
        cell_uuid = level.home or (reporting[0].uuid if len(reporting) == 1 else None)
        report = reports.get(cell_uuid or "")
        problems = list(_list_problems(host, level, report, reporting, _live_cells(reports, parsed_args.down_after)))
        shown = _mapping_fields(level, {cell.uuid: cell.name for cell in registry.list_cells()}, host)
        shown |= _liveness_fields(
            report.agent if report else None, parsed_args.down_after, was_asked=cell_uuid is None or cell_uuid in reports
        )
        shown |= _room_fields(level, report.nodes if report else [])
        shown["Servers"] = Lines([{"id": s.uuid, "state": s.state, "name": s.name} for s in level.servers])
        return (*shown, "Problems"), (*shown.values(), Lines(problems))


def _unknown_text(host: str, silent: Sequence[str]) -> str:
    cells_note = f" in the cells that answer ({', '.join(silent)} did not)" if silent else ""
    return f"There is no host {host!r}{cells_note}: see 'superconductor host list'. A new one appears when its agent reports."


def _read_record(tx: ApiTransaction, host: str) -> HostRecord:
    home = hosts.mappings_by_host(tx, [host]).get(host)
    return HostRecord(
        home=home.cell_uuid if home else None,
        aggregates=[one for one in aggregates.list_all(tx) if host in one.hosts],
        claims=[row for _, row in sorted(hosts.offers_by_node(tx, [host]).items())],
        servers=mappings.list_(tx, ServerQuery(host=host, limit=INSTANCES_LIMIT)),
    )


def _read_report(tx: CellTransaction, host: str) -> HostReport:
    agent = next(iter(services.list_seen(tx, AGENT_BINARY, host)), None)
    return HostReport(agent, cell_rows.list_nodes(tx, [host]), host_terms.list_waiting(tx, host))


def _live_cells(reports: dict[str, HostReport], down_after: float) -> set[str]:
    return {uuid for uuid, report in reports.items() if report.agent is not None and liveness.is_up(report.agent, down_after)}


def _mapping_fields(level: HostRecord, names: dict[str, str], host: str) -> dict[str, Any]:
    zone = next((one.availability_zone for one in level.aggregates if one.availability_zone), None)
    return {
        "Host": host,
        "Cell": names.get(level.home, level.home) if level.home else None,
        "Availability Zone": zone,
        "Aggregates": Lines([one.name for one in level.aggregates]),
    }


def _liveness_fields(agent: SeenService | None, down_after: float, *, was_asked: bool) -> dict[str, Any]:
    service = agent.service if agent else None
    return {
        "State": liveness.agent_state(agent, down_after) if agent else "never heard of" if was_asked else "unknown",
        "Status": liveness.agent_status(agent) if agent else None,
        "Reason": service.disabled_reason if service else None,
        "Forced Down": None if service is None else "yes" if service.forced_down else "no",
        "Last Seen": liveness.format_moment(service.last_seen) if service else None,
        "Started At": liveness.format_moment(service.started_at) if service else None,
        "Release": service.release if service else None,
        "Machine": service.machine_name if service else None,
    }


def _room_fields(level: HostRecord, nodes: Iterable[ComputeNode]) -> dict[str, Any]:
    return {"Nodes": Lines([_node_fields(node) for node in nodes]), "Claims": Lines([_claim_fields(row) for row in level.claims])}


def _node_fields(node: ComputeNode) -> dict[str, Any]:
    return {
        "node": node.node,
        "vcpus": f"{node.vcpus_used}/{node.vcpus} x {node.cpu_allocation_ratio:g}",
        "memory_mb": f"{node.memory_mb_used}/{node.memory_mb} - {node.reserved_memory_mb} x {node.ram_allocation_ratio:g}",
        "disk_gb": f"{node.disk_gb_used}/{node.disk_gb} - {node.reserved_disk_gb} x {node.disk_allocation_ratio:g}",
        "guests": node.running_vms,
        "waiting_builds": node.queued_builds,
        "failed_builds": round(node.failed_builds, 2),
    } | {name: f"{node.resources_used.get(name, 0)}/{amount}" for name, amount in sorted(node.resources.items())}


def _claim_fields(row: Inventory) -> dict[str, Any]:
    return {
        "node": row.node,
        "servers": row.instances,
        "vcpus": f"{row.used_vcpus}/{row.cap_vcpus:g}",
        "memory_mb": f"{row.used_memory_mb}/{row.cap_memory_mb:g}",
        "disk_gb": f"{row.used_disk_gb}/{row.cap_disk_gb:g}",
    } | {name: f"{row.used_resources.get(name, 0)}/{amount}" for name, amount in sorted(row.cap_resources.items())}


def _list_problems(
    host: str, level: HostRecord, report: HostReport | None, reporting: Sequence[Cell], up: set[str]
) -> Iterable[str]:
    names = [cell.name for cell in reporting if cell.uuid in up]
    if len(names) > 1:
        yield TWIN.format(host=host, cells=" and ".join(names))
    elif level.home is None:
        yield "not mapped to a cell: run 'superconductor host discover'"
    elif names and level.home not in up:
        yield f"its agent reports in cell {names[0]}: give it that cell's configuration, or run 'superconductor host move'"
    elif report is not None and report.agent is None:
        yield "no agent has reported in its cell: start it; nothing is placed there meanwhile"
    if report is not None and report.agent is not None and report.agent.two_machines:
        yield report.agent.two_machines
    for size in report.waiting if report is not None else ():
        yield f"node {size.node} reports {size.describe_sizes}: if the machine has that, run 'superconductor host accept {host}'"
    if report is not None and any(node.failed_builds >= 0.5 for node in report.nodes):
        yield "builds have failed there lately, for reasons of the host: see 'failed_builds' and its agent's log"
