"""``superconductor host``: map hosts to cells, and show them."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from cells.cell import Cell
from cells.discovery import AGENT, discover
from cells.fan_out import Answered, Unanswered, fan_out
from cli.base import ActionLister, AdminLister, Row, Table, at_least
from db import compute_nodes, host_mappings, services
from db.connection import Connection
from objects.compute_node import ComputeNode, Service


class HostDiscover(ActionLister):
    """Map the hosts that have reported to their cells. May be run at any time, and several times at once.

    Exit status 1 if a cell could not be asked, or a host name is in two cells; the other hosts are mapped all the same.

    Example: superconductor host discover
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        registry = self.deployment.registry
        found = discover(registry, self.deployment.api_database)
        for problem in (*found.conflicts, *(f"{cell.reason}; its hosts were not looked at" for cell in found.unreachable)):
            self.status = 1
            self.warn(str(problem))
        names = {cell.uuid: cell.name for cell in registry.cells()}
        if not found.mapped and not self.quiet:
            self.warn(f"No new host among the {found.hosts} that have reported")
        return ("Host", "Cell"), [(mapping.host, names.get(mapping.cell_uuid, mapping.cell_uuid)) for mapping in found.mapped]


class Report(NamedTuple):
    """What one cell says of its hosts."""

    services: list[Service]
    nodes: list[ComputeNode]


class HostList(AdminLister):
    """List the hosts of all cells: whether they are up, when they were last seen, what they offer and use (MiB, GiB).

    A cell that cannot be reached has its hosts shown as unknown, and is told on standard error. A host is taken for down when it
    has not been seen for --down-after seconds. "Mapped" is no for hosts that 'host discover' has not mapped yet.

    Example: superconductor host list --cell east --sort-column State
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cell", metavar="CELL", help="only the hosts of this cell (name or UUID)")
        parser.add_argument("--down-after", metavar="SECONDS", type=partial(at_least, 1), default=60, help="default: 60")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        mapped: dict[str, set[str]] = defaultdict(set)
        for mapping in self.deployment.api_database.read(host_mappings.list_all):
            mapped[mapping.cell_uuid].add(mapping.host)
        rows: list[Row] = []
        for answer in fan_out(self._cells(parsed_args.cell), _report):
            mine = mapped[answer.cell.uuid]
            if isinstance(answer, Unanswered):
                self.warn(f"{answer.reason}; its {len(mine)} hosts are unknown")
                rows += (_unknown(host, answer.cell.name) for host in sorted(mine))
            else:
                rows += _hosts(answer, mine, parsed_args.down_after)
        columns = ("Host", "Cell", "Mapped", "State", "Status", "Last Seen", "vCPUs", "vCPUs Used")
        return (*columns, "RAM", "RAM Used", "Disk", "Disk Used", "Servers"), rows

    def _cells(self, wanted: str | None) -> Sequence[Cell]:
        from cells import administration

        registry = self.deployment.registry
        if wanted is not None:
            return [registry.get(administration.find_cell(self.deployment.api_database, wanted).uuid)]
        for reason in registry.broken().values():
            self.warn(f"{reason}; its hosts are left out")
        return registry.cells()


def _report(tx: Connection) -> Report:
    return Report([service for service in services.list_all(tx) if service.binary == AGENT], compute_nodes.list_all(tx))


def _hosts(answer: Answered[Report], mapped: set[str], down_after: int) -> Iterable[Row]:
    nodes: dict[str, list[ComputeNode]] = defaultdict(list)
    for node in answer.value.nodes:
        nodes[node.host].append(node)
    agents = {service.host: service for service in answer.value.services}
    for host in sorted({*mapped, *agents, *nodes}):
        yield (
            host,
            answer.cell.name,
            "yes" if host in mapped else "no",
            *_liveness(agents.get(host), down_after),
            *_capacity(nodes[host]),
        )


def _liveness(agent: Service | None, down_after: int) -> Row:
    """State, status and when it was last seen. Both clocks are compared, so a host may seem down where they differ by a minute."""
    if agent is None:
        return "unknown", None, None
    up = not agent.forced_down and time.time() - agent.last_seen <= down_after
    seen = datetime.fromtimestamp(agent.last_seen, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return "up" if up else "down", "disabled" if agent.disabled else "enabled", seen


def _capacity(nodes: Sequence[ComputeNode]) -> Row:
    """Offered and used by all nodes of a host, as its agent counts."""
    if not nodes:
        return (None,) * 7
    return (
        sum(node.vcpus for node in nodes),
        sum(node.vcpus_used for node in nodes),
        sum(node.memory_mb for node in nodes),
        sum(node.memory_mb_used for node in nodes),
        sum(node.disk_gb for node in nodes),
        sum(node.disk_gb_used for node in nodes),
        sum(node.running_vms for node in nodes),
    )


def _unknown(host: str, cell: str) -> Row:
    return (host, cell, "yes", "unknown", *(None,) * 9)
