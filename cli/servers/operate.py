"""``server start|stop|reboot|pause|...|resize|migrate|evacuate``: operations on servers, through the API."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from cli.servers.server import encode_file
from cli.shared.http import ApiClient, HttpCommand
from cli.shared.references import flavor_named, image_id
from cli.shared.waiting import wait_for_end
from objects import errors

REFUSALS = (errors.NotFound, errors.Conflict, errors.Forbidden, errors.Invalid)

CROSS_CELL = "superconductor:cross_cell"
VERIFY = "superconductor:verify"


class ActionCommand(HttpCommand):
    """An action on each of the servers named. One that is refused does not keep the others from it."""

    action = ""
    named_in_status: str | None = None
    """The status of servers that are named; None: any but SOFT_DELETED."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("servers", nargs="+", metavar="SERVER", help="id or name")
        parser.add_argument("--wait", action="store_true", help="wait until nothing is under way; fail if a server ends in ERROR")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        value = self.action_value(parsed_args, client)
        accepted: list[str] = []
        for reference in parsed_args.servers:
            try:
                uuid = client.find_server(reference, status=self.named_in_status)
                with flavor_named(getattr(parsed_args, "flavor", "")):
                    answer = client.post_json(f"servers/{uuid}/action", {self.action: value})
                self.show_answer(reference, answer)
                accepted.append(uuid)
            except REFUSALS as refusal:
                self.status = 1
                self.warn_user(str(refusal))
        if getattr(parsed_args, "wait", False):
            for uuid in accepted:
                self._wait_idle(client, uuid)

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any] | None:
        """What the body says of the action."""
        return None

    def show_answer(self, reference: str, answer: Any) -> None:
        """What the API answers about one server."""

    def _wait_idle(self, client: ApiClient, uuid: str) -> None:
        wait_for_end(f"What was asked of server {uuid}", partial(_is_idle, client, uuid))
        failure = _failure_of(client, uuid)
        if failure:
            self.status = 1
            self.warn_user(f"{client.get(f'servers/{uuid}')['server']['name']} ({uuid}): {failure}")


def _is_idle(client: ApiClient, uuid: str) -> bool:
    return client.get(f"servers/{uuid}")["server"]["OS-EXT-STS:task_state"] is None


def _failure_of(client: ApiClient, uuid: str) -> str:
    """Why the newest action on the server failed; empty: it did not."""
    newest = client.get(f"servers/{uuid}/os-instance-actions")["instanceActions"][0]
    return newest["message"] or ""


class ServerStart(ActionCommand):
    """Start servers that are stopped.

    Example: superconductor server start web-1 --wait
    """

    action = "os-start"


class ServerStop(ActionCommand):
    """Stop servers: their systems are asked to shut down.

    Example: superconductor server stop web-1 --wait
    """

    action = "os-stop"


class ServerPause(ActionCommand):
    """Pause servers: they keep their memory and do not run.

    Example: superconductor server pause web-1
    """

    action = "pause"


class ServerUnpause(ActionCommand):
    """Let paused servers run again.

    Example: superconductor server unpause web-1
    """

    action = "unpause"


class ServerSuspend(ActionCommand):
    """Suspend servers: their memory goes to disk.

    Example: superconductor server suspend web-1
    """

    action = "suspend"


class ServerResume(ActionCommand):
    """Let suspended servers run again.

    Example: superconductor server resume web-1
    """

    action = "resume"


class ServerReboot(ActionCommand):
    """Reboot servers.

    Example: superconductor server reboot web-1 --hard
    """

    action = "reboot"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--hard", action="store_true", help="without asking their systems, like a power cut")

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        return {"type": "HARD" if parsed_args.hard else "SOFT"}


class ServerShelve(ActionCommand):
    """Shelve servers: their disks are kept in the image store, and they leave their hosts. Their quota stays charged.

    Examples:
      superconductor server shelve web-1 --wait
      superconductor server shelve web-1 --offload
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--offload", action="store_true", help="servers that are shelved on their hosts leave them now")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.action = "shelveOffload" if parsed_args.offload else "shelve"
        super().take_action(parsed_args)


class ServerRestore(ActionCommand):
    """Bring soft-deleted servers back before they are reclaimed. They are started on their hosts.

    Example: superconductor server restore web-1 --wait
    """

    action = "restore"
    named_in_status = "SOFT_DELETED"


class ServerUnshelve(ActionCommand):
    """Bring shelved servers back, on any host that can take them.

    Example: superconductor server unshelve web-1 --wait
    """

    action = "unshelve"


class ServerRebuild(ActionCommand):
    """Give servers new disks from an image. What is on the old ones is lost. A server keeps its key and its user data.

    A password that the API makes for a server is printed once.

    Examples:
      superconductor server rebuild web-1 --image 70a599e0-31e7-49b7-b260-868f441e862b --wait
      superconductor server rebuild web-1 --image debian-12 --key-name new --user-data web.yaml
    """

    action = "rebuild"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--image", metavar="IMAGE", required=True, help="id or name of an image")
        key = parser.add_mutually_exclusive_group()
        key.add_argument("--key-name", help="key pair of yours whose public key the guests get")
        key.add_argument("--no-key-name", action="store_true", help="the guests get no public key")
        user_data = parser.add_mutually_exclusive_group()
        user_data.add_argument("--user-data", type=Path, metavar="FILE", help="file that the guests get as user data")
        user_data.add_argument("--no-user-data", action="store_true", help="the guests get no user data")

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        value: dict[str, Any] = {"imageRef": image_id(client, parsed_args.image)}
        if parsed_args.key_name or parsed_args.no_key_name:
            value["key_name"] = parsed_args.key_name
        if parsed_args.user_data or parsed_args.no_user_data:
            value["user_data"] = encode_file(parsed_args.user_data) if parsed_args.user_data else None
        return value

    def show_answer(self, reference: str, answer: Any) -> None:
        if password := answer["server"].get("adminPass"):
            print(f"{reference}: password {password}", file=self.app.stdout)


class ServerResize(ActionCommand):
    """Give servers another flavor, or decide about servers that were resized and wait for that.

    Examples:
      superconductor server resize web-1 --flavor m1.large --wait
      superconductor server resize web-1 --confirm
      superconductor server resize web-1 --revert
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        either = parser.add_mutually_exclusive_group(required=True)
        either.add_argument("--flavor", help="id or name of the new flavor")
        either.add_argument("--confirm", action="store_true", help="keep the new flavor")
        either.add_argument("--revert", action="store_true", help="back to the old flavor; what was written since is lost")
        parser.add_argument("--cross-cell", action="store_true", help="the server may go to another cell")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.action = "confirmResize" if parsed_args.confirm else "revertResize" if parsed_args.revert else "resize"
        super().take_action(parsed_args)

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any] | None:
        if parsed_args.flavor is None:
            return None
        return {"flavorRef": parsed_args.flavor} | ({CROSS_CELL: True} if parsed_args.cross_cell else {})


class _Move(ActionCommand):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--to", metavar="HOST", help="to this host; it must pass all filters")
        parser.add_argument("--cross-cell", action="store_true", help="the servers may go to another cell")

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        return ({"host": parsed_args.to} if parsed_args.to else {}) | ({CROSS_CELL: True} if parsed_args.cross_cell else {})


class ServerMigrate(_Move):
    """Move servers to other hosts. They are off while their disks are copied, unless --live is given.

    With --verify they can go back: see 'server resize --confirm' and '--revert'.

    Example: superconductor server migrate web-1 --to east-h2 --wait
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--verify", action="store_true", help="wait in VERIFY_RESIZE until it is confirmed or reverted")
        either.add_argument("--live", action="store_true", help="while they run, if the drivers of both hosts can")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.action = "os-migrateLive" if parsed_args.live else "migrate"
        super().take_action(parsed_args)

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        live = {"host": parsed_args.to, "block_migration": "auto"}
        return super().action_value(parsed_args, client) | (live if parsed_args.live else {VERIFY: parsed_args.verify})


class ServerEvacuate(_Move):
    """Build servers of dead hosts again elsewhere. What is on a disk of their host alone is lost.

    Example: superconductor server evacuate web-1 --wait
    """

    action = "evacuate"
