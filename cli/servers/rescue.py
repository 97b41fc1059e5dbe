"""``server rescue``, ``server unrescue``, ``server password``, ``server dump create``: help for a guest that does not work."""

from __future__ import annotations

import argparse
from typing import Any

from cli.servers.operate import ActionCommand
from cli.shared.base import secret_text
from cli.shared.http import ApiClient
from cli.shared.references import image_id


class ServerRescue(ActionCommand):
    """Boot servers from a rescue image. Their own root disks are the second ones, so that they can be repaired.

    The password of the rescue system, if the API makes one, is printed once.

    Examples:
      superconductor server rescue web-1 --wait
      superconductor server rescue web-1 --image rescue-12 --password @password.txt
    """

    action = "rescue"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--image", metavar="IMAGE", help="id or name of the rescue image (default: the server's own image)")
        text = "password of the rescue system; @FILE: read it there (default: the API makes one)"
        parser.add_argument("--password", type=secret_text, help=text)

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any] | None:
        value: dict[str, Any] = {}
        if parsed_args.image:
            value["rescue_image_ref"] = image_id(client, parsed_args.image)
        if parsed_args.password:
            value["adminPass"] = parsed_args.password
        return value or None

    def show_answer(self, reference: str, answer: Any) -> None:
        if password := (answer or {}).get("adminPass"):
            print(f"{reference}: password {password}", file=self.app.stdout)


class ServerUnrescue(ActionCommand):
    """Boot rescued servers from their own disks again.

    Example: superconductor server unrescue web-1 --wait
    """

    action = "unrescue"


class ServerPasswordChange(ActionCommand):
    """Change the password of servers' administrators, through the guest agents in their systems.

    Example: superconductor server password web-1 --password @password.txt --wait
    """

    action = "changePassword"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--password", type=secret_text, required=True, help="the new password; @FILE: read it there")

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        return {"adminPass": parsed_args.password}


class ServerDumpCreate(ActionCommand):
    """Interrupt servers with an NMI, so that their systems dump their memory, if they are set up for that.

    Example: superconductor server dump create web-1
    """

    action = "trigger_crash_dump"
