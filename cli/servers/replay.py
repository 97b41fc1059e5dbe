"""``replay DECISION``: take a stored scheduling decision again."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from rich.console import Console

from cli.shared.base import AdminShow
from cli.shared.console import console_on, table_of
from objects import errors

if TYPE_CHECKING:  # imported where they are used: a usage error or a help text should not wait for NumPy
    from objects.decision import Decision
    from scheduler.framework.settings import SchedulerSettings
    from scheduler.what_if.replay import Replay


class ReplayDecision(AdminShow):
    """Take a stored scheduling decision again, from what its record keeps: as it was configured, or as another configuration says.

    The record keeps the hosts that mattered, as they were. Without --config each server must get the same host again. With --config
    the [scheduler] options of that file hold, and defaults for the others; the differences are named with the filter or weigher.
    Nothing is changed. 'explain' shows the ids of decisions.

    Exit status: 0 decided again, 1 refused, or without --config a server got another host.

    Examples:
      superconductor replay 7d0bd3ea-52a4-4a3c-9f0a-0b0c2b6b7f4e
      superconductor replay 7d0bd3ea-52a4-4a3c-9f0a-0b0c2b6b7f4e --config spread.conf -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("decision", metavar="DECISION", help="id of a decision")
        parser.add_argument("--config", metavar="FILE", help="configuration file whose [scheduler] options hold")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from scheduler.what_if.replay import replay_decision

        settings = _read_settings(parsed_args.config) if parsed_args.config else None
        decision, spec = self._read_decision(parsed_args.decision)
        database = self.deployment.api_database
        uuids = {mapping.name: mapping.uuid for mapping in database.read(_list_cells)}
        if settings is None:
            replayed = replay_decision(decision, spec, uuids)
        else:
            replayed = replay_decision(
                decision, spec, uuids, settings, self._read_attributes(decision), database.read(_list_aggregates)
            )
        self.status = int(settings is None and not replayed.is_same)
        document = _replay_document(replayed, parsed_args.config)
        return tuple(document), tuple(document.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Text for people; the other formats are for programs and get everything."""
        if parsed_args.formatter != "table":
            return super().produce_output(parsed_args, column_names, data)
        _describe_replay(console_on(self.app.stdout), dict(zip(column_names, data, strict=True)))
        return 0

    def _read_decision(self, decision_id: str) -> tuple[Decision, Any]:
        """The decision, and the request that it was about."""
        from db.api.claims import decisions
        from db.api.servers import mappings

        try:
            key = str(UUID(decision_id))
        except ValueError:
            raise errors.Invalid(f"{decision_id[:80]!r} is not the id of a decision: 'explain' shows the ids.") from None
        decision = self.deployment.api_database.read(decisions.get, key)
        spec = self.deployment.api_database.read(mappings.specs_by_batch, [decision.batch_id]).get(decision.batch_id)
        if spec is None:
            raise errors.NotFound(f"Decision {key} cannot be replayed: the request of its batch is deleted.")
        return decision, spec

    def _read_attributes(self, decision: Decision) -> dict[tuple[str, str], dict[str, Any]]:
        """What the drivers of the kept hosts report now. A cell that does not answer is warned of."""
        from db.cell import compute_nodes

        named = [(one.host, one.cell) for one in decision.candidates]
        named += [(host, cell) for host, _, cell in (decision.basis.further if decision.basis else ())]
        attributes: dict[tuple[str, str], dict[str, Any]] = {}
        for cell in self.deployment.cell_registry.list_cells():
            hosts = {host for host, name in named if name == cell.name}
            if not hosts:
                continue
            try:
                nodes = cell.read(compute_nodes.of_hosts, hosts)
            except errors.SuperconductorError as error:
                self.warn_user(f"cell {cell.name}: filters that were not in force know no attributes of its hosts: {error}")
                continue
            attributes |= {(node.host, node.node): dict(node.attributes) for node in nodes}
        return attributes


def _list_cells(tx: Any) -> list[Any]:
    from db.api.deployment import cell_mappings

    return cell_mappings.list_all(tx)


def _list_aggregates(tx: Any) -> list[Any]:
    from db.api.deployment import aggregates

    return aggregates.list_all(tx)


def _read_settings(path: str) -> SchedulerSettings:
    """The [scheduler] options of a file."""
    from scheduler import opts
    from service import config

    return opts.read_settings(config.load_options(["--config-file", path], opts.list_opts()))


def _replay_document(replayed: Replay, config: str | None) -> dict[str, Any]:
    decision, basis = replayed.decision, replayed.decision.basis
    return {
        "decision": decision.id,
        "batch_id": decision.batch_id,
        "at": decision.at,
        "config": config,
        "same": replayed.is_same,
        "servers": [msgspec.to_builtins(server) for server in replayed.servers],
        "settings": {name: {"then": then, "now": now} for name, then, now in replayed.settings},
        "reasons": list(replayed.reasons),
        "notes": list(replayed.notes),
        "hosts_kept": len(basis.hosts) if basis else 0,
        "hosts": decision.hosts,
        "ledger": {str(writer): sequence for writer, sequence in basis.ledger} if basis else {},
        "epochs": basis.epochs if basis else {},
    }


def _describe_replay(console: Console, document: dict[str, Any]) -> None:
    at = datetime.fromtimestamp(document["at"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    configuration = f"with {document['config']}" if document["config"] else "as it was configured"
    console.print(f"Decision {document['decision']} of {at}, taken again {configuration}.", style="bold", markup=False)
    _print_lines(console, document["notes"])
    rows = [(item["instance_uuid"], item["then"], item["now"] or "none", _same_word(item)) for item in document["servers"]]
    console.print(table_of("Servers", ("Server", "Host Then", "Host Now", "Same"), rows))
    _print_lines(console, (f"{name}: {item['then']} then, {item['now']} now." for name, item in document["settings"].items()))
    _print_lines(console, document["reasons"])
    console.print(
        f"The record keeps {document['hosts_kept']} of {document['hosts']} hosts; others are not considered.", markup=False
    )


def _same_word(server: dict[str, Any]) -> str:
    if not server["certain"]:
        return "not kept"
    return "yes" if server["then"] == server["now"] else "no"


def _print_lines(console: Console, texts: Iterable[str]) -> None:
    for text in texts:
        console.print(text, markup=False)
