"""``hold list|show|boot|release``: hosts that are kept for servers which are booted later, through the API."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cliff.lister import Lister

from cli.shared.http import HttpCommand
from objects import errors

COLUMNS = ("ID", "State", "Project", "Servers", "Expires")
SERVER_COLUMNS = ("ID", "Name", "Held", "Cell", "Host", "Node", "Fault")

Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]
REFUSALS = (errors.NotFound, errors.Conflict, errors.Forbidden, errors.Invalid)


class HoldList(HttpCommand, Lister):
    """List holds, the oldest first: hosts that are kept for servers. 'server boot --hold' makes one.

    Example: superconductor hold list
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        return COLUMNS, [_hold_row(hold) for hold in self.api_client(parsed_args).get("superconductor/holds")["holds"]]


class HoldShow(HttpCommand, Lister):
    """List the servers of a hold with their hosts.

    Example: superconductor hold show 5d0c8f6e-3c8e-4f0e-a9a4-0e6a7f0f4b1d
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("hold", metavar="HOLD", help="id of the hold")

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        return servers_of(self.api_client(parsed_args).get(f"superconductor/holds/{parsed_args.hold}")["hold"])


class HoldBoot(HttpCommand, Lister):
    """Boot the servers of a hold. A host that does not take its server any more is replaced, if there is another.

    Example: superconductor hold boot 5d0c8f6e-3c8e-4f0e-a9a4-0e6a7f0f4b1d
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("hold", metavar="HOLD", help="id of the hold")

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        return servers_of(
            self.api_client(parsed_args).send_request("POST", f"superconductor/holds/{parsed_args.hold}/boot")["hold"]
        )


class HoldRelease(HttpCommand):
    """Release holds: their servers are deleted, and their hosts are free again.

    Example: superconductor hold release 5d0c8f6e-3c8e-4f0e-a9a4-0e6a7f0f4b1d
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("holds", metavar="HOLD", nargs="+", help="id of the hold")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        for hold in parsed_args.holds:
            try:
                client.delete(f"superconductor/holds/{hold}")
            except REFUSALS as refusal:
                self.status = 1
                self.warn_user(str(refusal))


def servers_of(hold: dict[str, Any]) -> Rows:
    return SERVER_COLUMNS, [[_shown_value(server.get(column.lower())) for column in SERVER_COLUMNS] for server in hold["servers"]]


def _hold_row(hold: dict[str, Any]) -> Sequence[Any]:
    return hold["id"], hold["state"], hold["project_id"], len(hold["servers"]), hold["expires_at"]


def _shown_value(value: Any) -> Any:
    return "" if value is None else value
