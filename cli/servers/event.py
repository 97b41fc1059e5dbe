"""``server event list|show``: what was asked of a server, and how it went, stage by stage and attempt by attempt."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cliff.lister import Lister

from cli.shared.http import HttpCommand

Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]

ACTIONS = ("Request", "Action", "Started", "Finished", "Result", "Attempts", "Message")
EVENTS = ("Event", "Try", "Host", "Started", "Finished", "Result", "Error", "Message")
BUILD = "compute__do_build_and_run_instance"
ORDER = "conductor_build_instances"


class EventCommand(HttpCommand, Lister):
    """Both take a server; a deleted one by its id."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="SERVER", help="id or name of the server; of a deleted one, its id")
        return parser


class ServerEventList(EventCommand):
    """List the requests for a server, the latest first, and how each ended.

    Example: superconductor server event list web-1
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        client = self.api_client(parsed_args)
        path = f"servers/{client.find_server(parsed_args.server)}/os-instance-actions"
        actions = client.get(path)["instanceActions"]
        return ACTIONS, [_action_row(client.get(f"{path}/{a['request_id']}")["instanceAction"]) for a in actions if a["request_id"]]


class ServerEventShow(EventCommand):
    """Show the stages and attempts of one request for a server, in their order: who did what, when, and what went wrong.

    An administrator sees hosts and errors, too.

    Example: superconductor server event show web-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        text = "id of the request, as 'server event list' has it (default: the one that asked for the server)"
        parser.add_argument("--request", metavar="ID", help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        client = self.api_client(parsed_args)
        path = f"servers/{client.find_server(parsed_args.server)}/os-instance-actions"
        request = parsed_args.request or client.get(path)["instanceActions"][-1]["request_id"]
        return EVENTS, _event_rows(client.get(f"{path}/{request}")["instanceAction"]["events"])


def _action_row(action: dict[str, Any]) -> tuple[Any, ...]:
    events = action["events"]
    tries = [event for event in events if event["event"] == BUILD]
    last = events[0] if events else {"finish_time": None, "result": None}
    return (
        action["request_id"],
        action["action"],
        action["start_time"],
        last["finish_time"] or "",
        "Error" if action["message"] else last["result"] or "",
        len(tries),
        action["message"] or "",
    )


def _event_rows(events: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """In the order in which they began. An order and the build that it leads to are the same try."""
    rows: list[tuple[Any, ...]] = []
    tries = 0
    for event in reversed(events):
        tries += event["event"] == ORDER
        error, _, message = (event.get("traceback") or "").partition(": ")
        rows.append(
            (
                event["event"],
                tries or "",
                event.get("host") or "",
                event["start_time"],
                event["finish_time"] or "",
                event["result"] or "",
                error,
                message,
            )
        )
    return rows
