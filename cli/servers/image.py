"""``server image create``, ``server backup create``: images of servers, in the image store."""

from __future__ import annotations

import argparse
from typing import Any

from cli.servers.operate import ActionCommand
from cli.shared.base import key_value
from cli.shared.http import ApiClient


class _NewImage(ActionCommand):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--name", required=True, help="name of the image")
        parser.add_argument(
            "--property", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="of the image; may be repeated"
        )

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        return {"name": parsed_args.name, "metadata": dict(parsed_args.property)}

    def show_answer(self, reference: str, answer: Any) -> None:
        print(f"{reference}: image {answer['image_id']}", file=self.app.stdout)


class ServerImageCreate(_NewImage):
    """Make images of servers' disks. The servers run on, so an image looks as after a power cut.

    The image can be used once it is complete: give --wait, or look at 'superconductor image list'.

    Example: superconductor server image create web-1 --name web-golden --wait
    """

    action = "createImage"


class ServerBackupCreate(_NewImage):
    """Make backups of servers: images, of which only the newest of a type are kept for each server.

    Example: superconductor server backup create web-1 --name web-1-monday --type daily --rotate 7
    """

    action = "createBackup"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--type", default="daily", help="of the backup, such as daily or weekly (default: daily)")
        parser.add_argument("--rotate", type=int, default=1, metavar="COUNT", help="backups of this type to keep (default: 1)")

    def action_value(self, parsed_args: argparse.Namespace, client: ApiClient) -> dict[str, Any]:
        backup_fields = {"backup_type": parsed_args.type, "rotation": parsed_args.rotate}
        return super().action_value(parsed_args, client) | backup_fields
