"""``server boot|create|list|show|delete``: servers, through the API."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cliff.columns import FormattableColumn
from cliff.lister import Lister
from cliff.show import ShowOne

from cli.servers import dry_run, hold
from cli.shared.base import at_least, checked_name, key_value, parse_duration
from cli.shared.console import console_on
from cli.shared.http import ApiClient, HttpCommand
from cli.shared.progress import WaitProgress
from cli.shared.references import flavor_named, image_id, network_id
from cli.shared.waiting import ends_in_time, late_text, wait_for_end
from objects import errors

COLUMNS = ("ID", "Name", "Status", "Zone", "Host")
LONG_COLUMNS = (*COLUMNS, "Node", "Flavor", "Project", "Task", "Created", "Launched")

COUNT = partial(at_least, 1)

Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]


IMPORTANT = (
    *("name", "id", "status", "fault", "OS-EXT-STS:task_state", "OS-EXT-SRV-ATTR:host", "OS-EXT-AZ:availability_zone"),
    *("addresses", "flavor", "image", "created", "OS-SRV-USG:launched_at", "key_name", "metadata", "tags", "description"),
    *("locked", "locked_reason", "tenant_id", "user_id"),
)
"""What 'server show' shows of a server, in this order, where it has a value."""


class Nested(FormattableColumn[Any]):
    """A value with parts: on one line for people, as it is for programs."""

    def human_readable(self) -> str:
        parts = self._value
        if isinstance(parts, dict):
            if parts and all(isinstance(piece, list) for piece in parts.values()):  # addresses, by network
                return "; ".join(f"{name}: {', '.join(str(a.get('addr', a)) for a in piece)}" for name, piece in parts.items())
            if set(parts) <= {"id", "links"}:
                return str(parts.get("id", ""))
            return ", ".join(f"{key}={value}" for key, value in parts.items() if key != "links")
        return ", ".join(str(part) for part in parts)


class ShortFlavor(Nested):
    """A flavor as a server has it: its name and sizes for people."""

    def human_readable(self) -> str:
        if not {"vcpus", "ram", "disk"} <= set(self._value):
            return super().human_readable()
        sizes = f"{self._value['vcpus']} vCPU, {self._value['ram']} MiB, {self._value['disk']} GiB"
        return f"{self._value.get('original_name', '')} ({sizes})"


class ShortFault(Nested):
    """Why a server is in ERROR: the message for people."""

    def human_readable(self) -> str:
        return str(self._value.get("message", ""))


class ServerBoot(HttpCommand, Lister):
    """Boot one server, or several identical ones.

    Example: superconductor server boot web --flavor m1.small --image 70a599e0-31e7-49b7-b260-868f441e862b --max 3 --wait
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "name", metavar="NAME", type=checked_name, help="name of the server; of several servers, the prefix of their names"
        )
        parser.add_argument("--flavor", required=True, help="id or name of a flavor")
        parser.add_argument("--image", required=True, metavar="IMAGE", help="id or name of an image")
        parser.add_argument("--min", type=COUNT, metavar="N", help="servers to boot at least (default: 1)")
        parser.add_argument("--max", type=COUNT, metavar="N", help="servers to boot at most, as many as fit (default: --min)")
        parser.add_argument(
            "--all-or-nothing", action="store_true", help="if one of them fails before all are ACTIVE, roll the others back"
        )
        parser.add_argument("--zone", help="availability zone; zone:host:node forces a host")
        parser.add_argument("--group", help="uuid of a server group")
        parser.add_argument(
            "--hint", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="scheduler hint; may be repeated"
        )
        parser.add_argument(
            "--property", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="metadata; may be repeated"
        )
        parser.add_argument("--tag", action="append", default=[], help="tag; may be repeated")
        networks = "id or name of a network, auto (the only one) or none (default); may be repeated"
        parser.add_argument("--network", metavar="NETWORK", action="append", default=[], help=networks)
        parser.add_argument("--description", help="a description")
        parser.add_argument("--user-data", type=Path, metavar="FILE", help="file that the guest gets as user data")
        parser.add_argument("--key-name", help="key pair of yours whose public key the guest gets")
        parser.add_argument("--config-drive", action="store_true", help="give the guest a config drive")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--wait", action="store_true", help="wait until each server is ACTIVE or in ERROR; fail on ERROR")
        text = "boot nothing; show the hosts that the servers would get now, or why they would get none (administrators)"
        how.add_argument("--dry-run", action="store_true", help=text)
        text = "keep the hosts for so long, such as 10m, and boot nothing; 'hold boot' boots then (administrators)"
        how.add_argument("--hold", type=parse_duration, metavar="TIME", help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        client = self.api_client(parsed_args)
        body = _boot_body(parsed_args)
        body["server"] |= {
            "imageRef": image_id(client, parsed_args.image),
            "networks": _network_references(client, parsed_args.network),
        }
        if parsed_args.dry_run:
            return self._dry_run(client, body, parsed_args)
        if parsed_args.hold:
            return self._hold_hosts(client, body, parsed_args)
        with flavor_named(parsed_args.flavor):
            reservation = client.post_json("servers", body)["reservation_id"]
        servers = _of_reservation(client, reservation)
        if parsed_args.wait:
            servers = self._wait_built(client, reservation, servers, all_or_nothing=parsed_args.all_or_nothing)
            self.status = int(any(server["status"] != "ACTIVE" for server in servers))
        return (*COLUMNS, "Fault"), [(*_server_row(server), server.get("fault", {}).get("message", "")) for server in servers]

    def _dry_run(self, client: ApiClient, body: dict[str, Any], parsed_args: argparse.Namespace) -> Rows:
        with flavor_named(parsed_args.flavor):
            result = client.post_json("superconductor/dry-run", body)["dry_run"]
        self.status = int(result["outcome"] != "placed")
        for_people = parsed_args.formatter == "table"
        if for_people and not self.is_quiet:
            dry_run.describe_dry_run(console_on(self.app.stdout), result)
        else:
            for refusal in (*result["refusals"], *([result["waits"]] if result["waits"] else ())):
                self.warn_user(refusal)
        return dry_run.server_rows(result, placed_only=for_people)

    def _hold_hosts(self, client: ApiClient, body: dict[str, Any], parsed_args: argparse.Namespace) -> Rows:
        """Hold hosts, and wait until they are chosen. A hold without a host is released."""
        with flavor_named(parsed_args.flavor):
            held = client.post_json(f"superconductor/holds?seconds={parsed_args.hold}", body)["hold"]
        held = self._wait_placed(client, held)
        self.status = int(not held["servers"] or not all(server["held"] for server in held["servers"]))
        if held["state"] == "refused":
            client.delete(f"superconductor/holds/{held['id']}")
            self.warn_user("nothing is held: the request was refused")
        elif parsed_args.formatter == "table" and not self.is_quiet:
            text = f"Held until {held['expires_at']}. To boot: superconductor hold boot {held['id']}"
            console_on(self.app.stdout).print(text, markup=False, soft_wrap=True)
        return hold.servers_of(held)

    def _wait_placed(self, client: ApiClient, held: dict[str, Any]) -> dict[str, Any]:
        """The hold, once each of its servers has a host or a fault."""
        latest = held

        def is_placed() -> bool:
            nonlocal latest
            latest = client.get(f"superconductor/holds/{held['id']}")["hold"]
            return bool(latest["state"] != "placing")

        if not ends_in_time(is_placed):
            self.warn_user(late_text("The choice of hosts", f"hold show {held['id']}"))
        return latest

    def _wait_built(
        self, client: ApiClient, reservation: str, servers: list[dict[str, Any]], *, all_or_nothing: bool
    ) -> list[dict[str, Any]]:
        """Look again and again until nothing is under way. Returns the servers as they are then."""
        progress = WaitProgress(self.app.stderr, len(servers), quiet=self.is_quiet)
        latest = servers

        def are_built() -> bool:
            nonlocal latest
            latest = _of_reservation(client, reservation)
            progress.show_statuses(server["status"] for server in latest)
            return not _under_way(latest, all_or_nothing=all_or_nothing)

        try:
            in_time = ends_in_time(are_built)
        finally:
            progress.end_line()
        if not in_time:
            self.warn_user(late_text("The boot"))
        return latest


class ServerList(HttpCommand, Lister):
    """List servers, the newest first.

    Example: superconductor server list --all-projects --status ERROR --long
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all-projects", action="store_true", help="of all projects")
        parser.add_argument("--status", type=str.upper, help="with this status: BUILD, ACTIVE, ERROR, SOFT_DELETED")
        parser.add_argument("--host", help="on this host")
        parser.add_argument("--name", metavar="REGEX", help="whose names match")
        parser.add_argument("--limit", type=COUNT, metavar="N", help="not more than this many (default: all)")
        parser.add_argument("--long", action="store_true", help="show more columns")

    def take_action(self, parsed_args: argparse.Namespace) -> Rows:
        servers = self.api_client(parsed_args).list_items(
            *("servers/detail", "servers", parsed_args.limit),
            all_tenants="1" if parsed_args.all_projects else None,
            status=parsed_args.status,
            host=parsed_args.host,
            name=parsed_args.name,
        )
        if parsed_args.long:
            return LONG_COLUMNS, [_long_row(server) for server in servers]
        return COLUMNS, [_server_row(server) for server in servers]


class ServerShow(HttpCommand, ShowOne):
    """Show what matters most of a server, or all of it with --all. The formats for programs always have all.

    Example: superconductor server show web-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--all", action="store_true", help="show every field that the API has")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        client = self.api_client(parsed_args)
        server = client.get(f"servers/{client.find_server(parsed_args.server)}")["server"]
        server.pop("links")
        shown = {field: server[field] for field in IMPORTANT if field in server}
        if parsed_args.all or parsed_args.columns or parsed_args.formatter != "table":
            shown |= server
        else:
            shown = {field: value for field, value in shown.items() if value not in (None, "", [], {}, False)}
        return tuple(shown), tuple(_field_cell(field, value) for field, value in shown.items())


class ServerDelete(HttpCommand):
    """Delete servers. One that is still building is deleted as well.

    Where [api] reclaim_instance_interval is set, 'server restore' brings them back until that time is over.

    Examples:
      superconductor server delete web-1 web-2
      superconductor server delete web-1 --force
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("servers", nargs="+", metavar="SERVER", help="id or name")
        parser.add_argument("--force", action="store_true", help="also soft-deleted ones, and so that none can be restored")
        parser.add_argument("--wait", action="store_true", help="wait until the API no longer knows them, or they are soft-deleted")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        deleted = []
        for reference in parsed_args.servers:
            try:
                deleted.append(client.find_server(reference, soft_deleted="true" if parsed_args.force else None))
                if parsed_args.force:
                    client.post_json(f"servers/{deleted[-1]}/action", {"forceDelete": None})
                else:
                    client.delete(f"servers/{deleted[-1]}")
            except (errors.NotFound, errors.Conflict, errors.Forbidden, errors.Invalid) as refusal:
                self.status = 1
                self.warn_user(str(refusal))
        if parsed_args.wait:
            for uuid in deleted:
                wait_for_end(f"The delete of server {uuid}", partial(_is_gone, client, uuid))


class ServerCreate(ServerBoot):
    """Boot one server, or several identical ones: the same as 'server boot'.

    Example: superconductor server create web --flavor m1.small --image debian-12 --max 3 --wait
    """


def _field_cell(field: str, value: Any) -> Any:
    """A value of a server's field, for the column of values."""
    if field == "flavor" and isinstance(value, dict):
        return ShortFlavor(value)
    if field == "fault" and isinstance(value, dict):
        return ShortFault(value)
    return Nested(value) if isinstance(value, dict | list) else value


def _boot_body(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """The body of the request, without image and networks."""
    server: dict[str, Any] = {
        "name": parsed_args.name,
        "flavorRef": parsed_args.flavor,
        "min_count": parsed_args.min or 1,
        "max_count": parsed_args.max or parsed_args.min or 1,
        "return_reservation_id": True,
        "metadata": dict(parsed_args.property),
        "tags": parsed_args.tag,
    }
    if parsed_args.zone:
        server["availability_zone"] = parsed_args.zone
    if parsed_args.description:
        server["description"] = parsed_args.description
    if parsed_args.user_data:
        server["user_data"] = encode_file(parsed_args.user_data)
    if parsed_args.key_name:
        server["key_name"] = parsed_args.key_name
    if parsed_args.config_drive:
        server["config_drive"] = True
    hints: dict[str, list[str]] = {}
    for key, value in parsed_args.hint + ([("group", parsed_args.group)] if parsed_args.group else []):
        hints.setdefault(key, []).append(value)
    if parsed_args.all_or_nothing:
        hints["all_or_nothing"] = ["true"]
    return {"server": server, "os:scheduler_hints": hints}


def _network_references(client: ApiClient, references: Sequence[str]) -> str | list[dict[str, str]]:
    words = [reference for reference in references if reference in ("auto", "none")]
    if words and len(references) > 1:
        raise errors.Invalid(f"--network: {words[0]} goes with no other network")
    return words[0] if words else [{"uuid": network_id(client, reference)} for reference in references] or "none"


def _under_way(servers: Sequence[dict[str, Any]], *, all_or_nothing: bool) -> bool:
    """Of a batch that stands or falls as a whole, what is ACTIVE is yet to be rolled back once another is in ERROR."""
    statuses = {server["status"] for server in servers}
    return "BUILD" in statuses or (all_or_nothing and len(statuses) > 1)


def encode_file(path: Path) -> str:
    """The content of a file of user data, as the API takes it. Raises errors.Invalid if it cannot be read."""
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise errors.Invalid(f"--user-data: {path} cannot be read: {error.strerror}") from error


def _of_reservation(client: ApiClient, reservation: str) -> list[dict[str, Any]]:
    """The servers of one request, in the order of their numbers. Any of them that was deleted meanwhile is missing."""
    servers = client.list_items("servers/detail", "servers", reservation_id=reservation)
    return sorted(servers, key=lambda server: int(server.get("OS-EXT-SRV-ATTR:launch_index", 0)))


def _is_gone(client: ApiClient, uuid: str) -> bool:
    try:
        return bool(client.get(f"servers/{uuid}")["server"]["status"] == "SOFT_DELETED")
    except errors.NotFound:
        return True


def _server_row(server: dict[str, Any]) -> tuple[Any, ...]:
    host = server.get("OS-EXT-SRV-ATTR:host") or ""
    return server["id"], server["name"], server["status"], server["OS-EXT-AZ:availability_zone"], host


def _long_row(server: dict[str, Any]) -> tuple[Any, ...]:
    return (
        *_server_row(server),
        server.get("OS-EXT-SRV-ATTR:hypervisor_hostname") or "",
        server["flavor"].get("original_name", ""),
        server["tenant_id"],
        server["OS-EXT-STS:task_state"] or "",
        server["created"],
        server["OS-SRV-USG:launched_at"] or "",
    )
