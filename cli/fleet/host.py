"""``superconductor host``: map hosts to cells, show them, and say which take servers."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf, nan
from typing import Any, NamedTuple

from cells import host_service
from cells.cell import Cell
from cells.discovery import discover_hosts, in_two_cells
from cells.emptying import Emptier, Emptying, HostCondition, MoveOrder
from cells.fan_out import Answered, Unanswered, fan_out
from cells.host_service import HostChange
from cli.servers.move import user_name
from cli.shared import liveness
from cli.shared.base import ASTRAY, TWIN, ActionLister, Admin, AdminLister, Row, Table, at_least, checked_name
from db.api.claims.claims import Ledger
from db.api.deployment import host_mappings
from db.api.deployment import host_removal as api_host_removal
from db.cell import compute_nodes, host_terms, services
from db.cell import host_removal as cell_host_removal
from db.cell.host_terms import WaitingSize
from db.cell.services import SeenService
from db.sql.connection import CellTransaction
from objects import errors
from objects.compute_node import ComputeNode
from objects.host_terms import RATIO_LIMIT
from objects.operation import OperationKind
from objects.process import AGENT_BINARY


class HostDiscover(ActionLister):
    """Map the hosts that have reported to their cells. It can run at any time, also several times at once.

    Exit status 1 if a cell could not be asked or a host name is in two cells. The other hosts are mapped.

    Example: superconductor host discover
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        registry = self.deployment.cell_registry
        discovered = discover_hosts(registry, self.deployment.api_database)
        unasked = (f"{cell.reason}; its hosts were not checked" for cell in discovered.unreachable)
        for problem in (*discovered.conflicts, *discovered.refused, *unasked):
            self.status = 1
            self.warn_user(str(problem))
        names = {cell.uuid: cell.name for cell in registry.list_cells()}
        if not discovered.mapped and not self.is_quiet:
            self.warn_user(f"No new host among the {discovered.hosts} that have reported")
        return ("Host", "Cell"), [(mapping.host, names.get(mapping.cell_uuid, mapping.cell_uuid)) for mapping in discovered.mapped]


class _HostCommand(Admin):
    """A command that tells the cells of hosts something about these."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("hosts", metavar="HOST", nargs="+", help="name of the host")

    def _change_hosts(self, hosts: Iterable[str], change: HostChange) -> None:
        registry, ledger = self.deployment.cell_registry, Ledger(self.deployment.api_database, "host")
        self.do_each(hosts, lambda host: host_service.change_agent(registry.of_host(host), ledger, host, change))


class HostEnable(_HostCommand):
    """Let hosts take new servers again.

    Example: superconductor host enable east-h1
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self._change_hosts(parsed_args.hosts, HostChange(disabled=False))


class HostDisable(_HostCommand):
    """Let hosts take no new servers. Their guests keep running, and builds already placed there are finished.

    Example: superconductor host disable east-h1 --reason 'a fan is loud'
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--reason", metavar="TEXT", type=checked_name, help="why; shown to administrators")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self._change_hosts(parsed_args.hosts, HostChange(disabled=True, reason=parsed_args.reason))


def _allocation_ratio(text: str) -> float | None:
    """An allocation ratio; None for ``default``."""
    if text == "default":
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = nan
    if not 0.0 <= ratio <= RATIO_LIMIT:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is neither a number from 0 to {RATIO_LIMIT:g} nor 'default'")
    return ratio


class HostSet(_HostCommand):
    """Declare hosts dead whatever their agents report, or undo that; or set their allocation ratios.

    Before --down, make sure that no guest of the host can reach its storage. Builds on a dead host move to other hosts at once. A
    host that returns destroys guests that were moved elsewhere. With --evacuate, conductors start its servers on other hosts; 'host
    evacuate' does that too, and shows what comes of it.

    A ratio counts at once. With 'default', the host follows its conductors' configuration from its next report on.

    Examples:
      superconductor host set east-h1 --down --evacuate
      superconductor host set east-h1 east-h2 --cpu-ratio 16
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--down", action="store_true", default=None, help="dead from now on")
        either.add_argument("--up", dest="down", action="store_false", default=None, help="as alive as its agent says")
        parser.add_argument(
            "--evacuate", action="store_true", help="with --down: accept evacuations of its servers, and do not wait"
        )
        for kind, meaning in (("cpu", "vCPUs per CPU"), ("ram", "guest memory per memory"), ("disk", "guest disk per disk")):
            parser.add_argument(
                f"--{kind}-ratio",
                dest=kind,
                metavar="RATIO",
                type=_allocation_ratio,
                default=argparse.SUPPRESS,
                help=f"{meaning} of the host",
            )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        ratios = {kind: getattr(parsed_args, kind) for kind in ("cpu", "ram", "disk") if hasattr(parsed_args, kind)}
        if parsed_args.down is None and not ratios:
            raise errors.Invalid("--down, --up or a ratio is needed")
        if parsed_args.evacuate and not parsed_args.down:
            raise errors.Invalid("--evacuate needs --down")
        if ratios:
            registry = self.deployment.cell_registry
            self.do_each(parsed_args.hosts, lambda host: host_service.set_ratios(registry.of_host(host), host, ratios))
        if parsed_args.down is not None:
            self._change_hosts(parsed_args.hosts, HostChange(forced_down=parsed_args.down))
        if parsed_args.evacuate:
            self.do_each(parsed_args.hosts, self._evacuate_host)

    def _evacuate_host(self, host: str) -> None:
        ledger = Ledger(self.deployment.api_database, "host set")
        order = MoveOrder(kinds={HostCondition.DEAD: OperationKind.EVACUATE}, user_id=user_name())
        emptier = Emptier(ledger, self.deployment.cell_registry.of_host(host), order)
        _, remaining = Emptying(emptier, [host], jobs=inf).accept_movable()
        for occupant in remaining:
            self.status = 1
            self.warn_user(f"Server {occupant.server_uuid} of host '{host}' is not evacuated: {occupant.reason}")


class HostAccept(_HostCommand, ActionLister):
    """Let hosts count with the sizes that they report, and show these (MiB, GiB). They may grow by half from there.

    'host list' and 'host show' name the sizes that wait. Compare them with the machine first: an agent may say anything.

    With --machine, sizes stay as they are, and the machine that 'host show' names as refused takes the host's name over within
    seconds. The machine that had it is refused from then on. Stop its agent first if you can.

    Examples:
      superconductor host accept east-h1
      superconductor host accept --machine east-h1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--machine", action="store_true", help="let the machine take over that was refused as this host")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        registry, rows = self.deployment.cell_registry, list[Row]()
        if parsed_args.machine:

            def accept_machine(host: str) -> None:
                rows.append((host, host_service.accept_machine(registry.of_host(host), host).name))

            self.do_each(parsed_args.hosts, accept_machine)
            return ("Host", "Machine"), rows

        def accept_sizes(host: str) -> None:
            for node, sizes in sorted(host_service.accept_sizes(registry.of_host(host), host).items()):
                custom = ", ".join(f"{name} {amount}" for name, amount in sorted(sizes.resources.items()))
                rows.append((host, node, sizes.vcpus, sizes.memory_mb, sizes.disk_gb, custom))

        self.do_each(parsed_args.hosts, accept_sizes)
        return ("Host", "Node", "vCPUs", "RAM", "Disk", "Resources"), rows

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]) -> int:
        """No table if every host was refused."""
        rows = list(data)
        return super().produce_output(parsed_args, column_names, rows) if rows else 0


class HostDelete(_HostCommand):
    """Delete hosts that were removed. A host that has servers, or whose agent runs, is refused.

    Example: superconductor host delete east-h1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--down-after",
            metavar="SECONDS",
            type=partial(at_least, 1),
            default=60,
            help="of silence (default: 60)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        registry = self.deployment.cell_registry

        def delete(host: str) -> None:
            registry.of_host(host).write(cell_host_removal.from_cell, host, AGENT_BINARY, parsed_args.down_after)
            self.deployment.api_database.write(api_host_removal.from_api, host)

        self.do_each(parsed_args.hosts, delete)


class HostsReport(NamedTuple):
    """What one cell says of its hosts."""

    agents: list[SeenService]
    nodes: list[ComputeNode]
    waiting: list[WaitingSize]


class HostList(AdminLister):
    """List the hosts of all cells: whether they are up, when they were last seen, what they offer and use (MiB, GiB).

    The hosts of a cell that cannot be reached are shown as unknown, and the cell is named on standard error. A host is down if it
    was not seen for --down-after seconds. "Mapped" is no for hosts that 'host discover' has not mapped yet. "Waiting Builds"
    were accepted by the agent and wait for one of its threads ([compute] max_concurrent_builds). "Resources" are custom resource
    classes, used and offered: CUSTOM_GPU 1/4. "Waiting Size" is what a host reports and does not count with until 'host accept'.
    A host that is up in two cells is named on standard error: it gets no servers. So are two machines with the name of one host.

    Example: superconductor host list --cell east --sort-column State
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cell", metavar="CELL", help="only the hosts of this cell (name or UUID)")
        parser.add_argument("--down-after", metavar="SECONDS", type=partial(at_least, 1), default=60, help="default: 60")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        mapped: dict[str, set[str]] = defaultdict(set)
        for mapping in self.deployment.api_database.read(host_mappings.list_all):
            mapped[mapping.cell_uuid].add(mapping.host)
        names = {cell.uuid: cell.name for cell in self.deployment.cell_registry.list_cells()}
        rows: list[Row] = []
        up: list[tuple[str, str]] = []
        for answer in fan_out(self._list_cells(parsed_args.cell), _read_report):
            mapped_hosts = mapped[answer.cell.uuid]
            if isinstance(answer, Unanswered):
                self.warn_user(f"{answer.reason}; its {len(mapped_hosts)} hosts are unknown")
                rows += (_unknown_row(host, answer.cell.name) for host in sorted(mapped_hosts))
            else:
                rows += _host_rows(answer, mapped_hosts, parsed_args.down_after)
                agents = answer.value.agents
                for agent in agents:
                    if agent.two_machines:
                        self.warn_user(f"Cell {answer.cell.name}: {agent.two_machines}")
                up += ((a.service.host, answer.cell.name) for a in agents if liveness.is_up(a, parsed_args.down_after))
        twins = in_two_cells(up)
        for host, cells in twins.items():
            self.warn_user(TWIN.format(host=host, cells=" and ".join(cells)))
        homes = {host: names.get(uuid, uuid) for uuid, hosts in mapped.items() for host in hosts}
        for host, cell in up:
            if host not in twins and homes.get(host, cell) != cell:
                self.warn_user(ASTRAY.format(host=host, cell=cell, home=homes[host]))
        columns = ("Host", "Cell", "Mapped", "State", "Status", "Last Seen", "vCPUs", "vCPUs Used")
        return (*columns, "RAM", "RAM Used", "Disk", "Disk Used", "Servers", "Waiting Builds", "Resources", "Waiting Size"), rows

    def _list_cells(self, cell_name: str | None) -> Sequence[Cell]:
        from cells import administration

        registry = self.deployment.cell_registry
        if cell_name is not None:
            return [registry.get(administration.find_cell(self.deployment.api_database, cell_name).uuid)]
        for reason in registry.reasons_by_uuid().values():
            self.warn_user(f"{reason}; its hosts are left out")
        return registry.list_cells()


def _read_report(tx: CellTransaction) -> HostsReport:
    return HostsReport(services.list_seen(tx, AGENT_BINARY), compute_nodes.list_all(tx), host_terms.list_waiting(tx))


def _host_rows(answer: Answered[HostsReport], mapped: set[str], down_after: int) -> Iterable[Row]:
    nodes: dict[str, list[ComputeNode]] = defaultdict(list)
    for node in answer.value.nodes:
        nodes[node.host].append(node)
    waiting: dict[str, list[str]] = defaultdict(list)
    for size in answer.value.waiting:
        waiting[size.host].append(size.describe_sizes)
    agents = {agent.service.host: agent for agent in answer.value.agents}
    for host in sorted({*mapped, *agents, *nodes}):
        yield (
            host,
            answer.cell.name,
            "yes" if host in mapped else "no",
            *_liveness_row(agents.get(host), down_after),
            *_capacity_row(nodes[host]),
            "; ".join(waiting[host]),
        )


def _liveness_row(agent: SeenService | None, down_after: int) -> Row:
    """State, status and when it was last seen."""
    if agent is None:
        return "unknown", None, None
    return liveness.agent_state(agent, down_after), liveness.agent_status(agent), liveness.format_moment(agent.service.last_seen)


def _capacity_row(nodes: Sequence[ComputeNode]) -> Row:
    """Offered and used by all nodes of a host, as its agent counts."""
    if not nodes:
        return (None,) * 9
    return (
        sum(node.vcpus for node in nodes),
        sum(node.vcpus_used for node in nodes),
        sum(node.memory_mb for node in nodes),
        sum(node.memory_mb_used for node in nodes),
        sum(node.disk_gb for node in nodes),
        sum(node.disk_gb_used for node in nodes),
        sum(node.running_vms for node in nodes),
        max(node.queued_builds for node in nodes),  # each node tells those of the whole agent
        _resources_text(nodes),
    )


def _resources_text(nodes: Sequence[ComputeNode]) -> str:
    offered, used = Counter[str](), Counter[str]()
    for node in nodes:
        offered.update(node.resources)
        used.update(node.resources_used)
    return ", ".join(f"{name} {used[name]}/{offered[name]}" for name in sorted({*offered, *used}))


def _unknown_row(host: str, cell: str) -> Row:
    return (host, cell, "yes", "unknown", *(None,) * 12)
