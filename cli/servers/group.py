"""``superconductor server group``: server groups and their placement policies."""

from __future__ import annotations

import argparse
import uuid
from functools import partial

import msgspec

from cli.shared.base import ActionShow, Admin, AdminLister, AdminShow, Row, Table, at_least, checked_name
from db.api.claims import server_groups
from db.sql.connection import ApiTransaction
from objects import errors
from objects.group import GroupPolicy, ServerGroup

Shown = tuple[tuple[str, ...], Row]


class GroupCreate(ActionShow):
    """Create a server group. Servers join it when they are booted, with the hint "group".

    Example: superconductor server group create web --policy anti-affinity --project 7f1c --max-server-per-host 2
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", type=checked_name)
        parser.add_argument(
            "--policy", choices=[str(policy) for policy in GroupPolicy], required=True, help="where members may run"
        )
        parser.add_argument("--project", metavar="ID", type=checked_name, required=True, help="the project whose group it is")
        parser.add_argument("--user", metavar="ID", default="", help="the user who made it")
        most = "members that one host may run, for anti-affinity (default: 1)"
        parser.add_argument("--max-server-per-host", metavar="N", type=partial(at_least, 1), help=most)
        most = "members that one rack may run, for anti-affinity; aggregates with the property rack say where hosts are"
        parser.add_argument("--max-server-per-rack", metavar="N", type=partial(at_least, 1), help=most)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        policy = GroupPolicy(parsed_args.policy)
        limits = {"host": parsed_args.max_server_per_host, "rack": parsed_args.max_server_per_rack}
        for place, most in limits.items():
            if most is not None and policy is not GroupPolicy.ANTI_AFFINITY:
                raise errors.Invalid(
                    f"--max-server-per-{place} goes with the policy {GroupPolicy.ANTI_AFFINITY} only, not with {policy}"
                )
        group = ServerGroup(
            uuid=str(uuid.uuid4()),
            name=parsed_args.name,
            project_id=parsed_args.project,
            user_id=parsed_args.user,
            policy=policy,
            max_server_per_host=parsed_args.max_server_per_host or 1,
            max_server_per_rack=parsed_args.max_server_per_rack,
        )
        self.deployment.api_database.write(server_groups.create, group)
        return _show_group(group)


class GroupSet(ActionShow):
    """Rename a server group. Its policy and project cannot change, because members were placed by them.

    Example: superconductor server group set web --project 7f1c --name frontend
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("group", metavar="GROUP", help="UUID, or name")
        parser.add_argument("--project", metavar="ID", help="the project that has the name")
        parser.add_argument("--name", metavar="NAME", type=checked_name, required=True, help="its new name")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        database = self.deployment.api_database
        return _show_group(database.write(_rename_group, parsed_args.group, parsed_args.project, parsed_args.name))


class GroupList(AdminLister):
    """List the server groups of all projects, or of one.

    Example: superconductor server group list --project 7f1c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--project", metavar="ID", help="only of this project")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        groups = self.deployment.api_database.read(server_groups.list_all, parsed_args.project)
        return ("UUID", "Name", "Project", "Policy", "Max Per Host", "Max Per Rack"), [
            (g.uuid, g.name, g.project_id, str(g.policy), g.max_server_per_host, g.max_server_per_rack) for g in groups
        ]


class GroupShow(AdminShow):
    """Show one server group.

    Example: superconductor server group show web --project 7f1c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("group", metavar="GROUP", help="UUID, or name")
        parser.add_argument("--project", metavar="ID", help="the project that has the name")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return _show_group(self.deployment.api_database.read(_find_group, parsed_args.group, parsed_args.project))


class GroupDelete(Admin):
    """Delete server groups. Their members keep running.

    Example: superconductor server group delete web --project 7f1c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("groups", metavar="GROUP", nargs="+", help="UUID, or name")
        parser.add_argument("--project", metavar="ID", help="the project that has the names")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.do_each(parsed_args.groups, lambda reference: database.write(_delete, reference, parsed_args.project))


def _find_group(tx: ApiTransaction, reference: str, project_id: str | None) -> ServerGroup:
    """By UUID, or by a name that only one group has. Raises NotFound, and Conflict for a name of several."""
    matching = [group for group in server_groups.list_all(tx, project_id) if reference in (group.uuid, group.name)]
    if not matching:
        raise errors.NotFound(f"Server group '{reference}' not found")
    if len(matching) > 1:
        raise errors.Conflict(f"Several server groups are named '{reference}': give a UUID, or --project if they are of several")
    return matching[0]


def _rename_group(tx: ApiTransaction, reference: str, project_id: str | None, new_name: str) -> ServerGroup:
    group = msgspec.structs.replace(_find_group(tx, reference, project_id), name=new_name)
    server_groups.rename_group(tx, group)
    return group


def _delete(tx: ApiTransaction, reference: str, project_id: str | None) -> None:
    server_groups.delete(tx, _find_group(tx, reference, project_id).uuid)


def _show_group(group: ServerGroup) -> Shown:
    return ("uuid", "name", "project", "user", "policy", "max_server_per_host", "max_server_per_rack"), (
        group.uuid,
        group.name,
        group.project_id,
        group.user_id,
        str(group.policy),
        group.max_server_per_host,
        group.max_server_per_rack,
    )
