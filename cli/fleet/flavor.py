"""``superconductor flavor``: named sizes."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Collection, Sequence
from functools import partial

import msgspec

from cli.shared.base import (
    ActionShow,
    Admin,
    AdminLister,
    AdminShow,
    Row,
    Table,
    add_properties,
    at_least,
    checked_name,
    format_properties,
    safe_text,
)
from db.api.projects import flavors
from db.sql.connection import ApiTransaction
from objects import errors
from objects import flavor as records
from objects.flavor import Flavor
from objects.ids import checked_identifier


class FlavorCreate(ActionShow):
    """Create a flavor.

    Example: superconductor flavor create m1.small --vcpus 1 --ram 2048 --disk 20
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        size = partial(at_least, 0)
        parser.add_argument("name", metavar="NAME", type=checked_name)
        parser.add_argument("--id", metavar="ID", type=checked_name, help="its id (default: a new UUID)")
        parser.add_argument("--vcpus", metavar="N", type=partial(at_least, 1), required=True, help="virtual CPUs")
        parser.add_argument("--ram", metavar="MIB", type=partial(at_least, 1), required=True, help="memory in MiB")
        parser.add_argument("--disk", metavar="GIB", type=size, default=0, help="root disk in GiB (default: 0)")
        parser.add_argument("--ephemeral", metavar="GIB", type=size, default=0, help="second disk in GiB (default: 0)")
        parser.add_argument("--swap", metavar="MIB", type=size, default=0, help="swap disk in MiB (default: 0)")
        factor = "bandwidth factor, which is kept and not used (default: 1.0)"
        parser.add_argument("--rxtx-factor", metavar="FACTOR", type=float, default=1.0, help=factor)
        parser.add_argument("--description", metavar="TEXT", type=safe_text)
        parser.add_argument("--private", action="store_true", help="do not offer it to every project")
        projects = "a project that may use it, with --private; may be repeated (default: none)"
        parser.add_argument(
            "--project", metavar="ID", dest="projects", type=checked_name, action="append", default=[], help=projects
        )
        add_properties(parser, "extra spec that filters read")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        if parsed_args.projects and not parsed_args.private:
            raise errors.Invalid("--project: every project may use a public flavor; give --private too")
        flavor = Flavor(
            flavor_id=parsed_args.id or str(uuid.uuid4()),
            name=parsed_args.name,
            vcpus=parsed_args.vcpus,
            memory_mb=parsed_args.ram,
            root_gb=parsed_args.disk,
            ephemeral_gb=parsed_args.ephemeral,
            swap_mb=parsed_args.swap,
            is_public=not parsed_args.private,
            description=parsed_args.description,
            extra_specs=dict(parsed_args.properties),
            rxtx_factor=parsed_args.rxtx_factor,
        )
        records.check_flavor(flavor)
        self.deployment.api_database.write(_create, flavor, parsed_args.projects)
        return _show_flavor(flavor, sorted(set(parsed_args.projects)))


class FlavorSet(ActionShow):
    """Change a flavor's description, extra specs, state or projects. Its sizes cannot change: servers were created with them.

    Example: superconductor flavor set m1.small --property trait:ssd=required
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavor", metavar="FLAVOR", help="name or id")
        parser.add_argument("--description", metavar="TEXT", type=safe_text)
        add_properties(parser, "set this extra spec")
        parser.add_argument("--unset", metavar="KEY", action="append", default=[], help="remove this extra spec; may be repeated")
        grant = "let this project use it, if it is not public; may be repeated"
        parser.add_argument("--project", metavar="ID", dest="projects", type=checked_name, action="append", default=[], help=grant)
        revoke = "let this project use it no longer; may be repeated"
        parser.add_argument(
            "--no-project", metavar="ID", dest="former", type=checked_name, action="append", default=[], help=revoke
        )
        state = parser.add_mutually_exclusive_group()
        state.add_argument("--enable", dest="disabled", action="store_false", default=None, help="offer it again")
        state.add_argument("--disable", dest="disabled", action="store_true", default=None, help="boot no new servers of it")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        return _show_flavor(*self.deployment.api_database.write(_change_flavor, parsed_args))


class FlavorList(AdminLister):
    """List the flavors.

    Example: superconductor flavor list -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        listed = self.deployment.api_database.read(flavors.list_all)
        return ("ID", "Name", "vCPUs", "RAM", "Disk", "Ephemeral", "Swap", "Public", "Disabled"), [
            (f.flavor_id, f.name, f.vcpus, f.memory_mb, f.root_gb, f.ephemeral_gb, f.swap_mb, f.is_public, f.disabled)
            for f in sorted(listed, key=lambda f: (f.vcpus, f.memory_mb, f.disk_gb, f.name))
        ]


class FlavorShow(AdminShow):
    """Show one flavor.

    Example: superconductor flavor show m1.small
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavor", metavar="FLAVOR", help="name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        return _show_flavor(*self.deployment.api_database.read(_find_flavor, parsed_args.flavor))


class FlavorDelete(Admin):
    """Delete flavors. Servers made with them are untouched: each holds a copy.

    Example: superconductor flavor delete m1.tiny m1.old
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavors", metavar="FLAVOR", nargs="+", help="name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.do_each(parsed_args.flavors, lambda reference: database.write(_delete, reference))


def _create(tx: ApiTransaction, flavor: Flavor, projects: Collection[str]) -> None:
    flavors.create(tx, flavor)
    for project_id in set(projects):
        flavors.grant_access(tx, flavor.flavor_id, checked_identifier("--project", project_id))


def _change_flavor(tx: ApiTransaction, parsed_args: argparse.Namespace) -> tuple[Flavor, list[str]]:
    def edit_flavor(flavor: Flavor) -> Flavor:
        specs = {key: value for key, value in flavor.extra_specs.items() if key not in parsed_args.unset}
        changed = msgspec.structs.replace(
            flavor,
            extra_specs=specs | dict(parsed_args.properties),
            description=flavor.description if parsed_args.description is None else parsed_args.description,
            disabled=flavor.disabled if parsed_args.disabled is None else parsed_args.disabled,
        )
        records.check_flavor(changed)
        return changed

    changed = flavors.change_flavor(tx, flavors.find_flavor(tx, parsed_args.flavor).flavor_id, edit_flavor)
    if parsed_args.projects and changed.is_public:
        raise errors.Invalid("--project: every project may use a public flavor")
    for project_id in parsed_args.projects:
        flavors.grant_access(tx, changed.flavor_id, checked_identifier("--project", project_id))
    for project_id in parsed_args.former:
        flavors.revoke_access(tx, changed.flavor_id, project_id)
    return changed, flavors.list_projects(tx, changed.flavor_id)


def _find_flavor(tx: ApiTransaction, reference: str) -> tuple[Flavor, list[str]]:
    flavor = flavors.find_flavor(tx, reference)
    return flavor, flavors.list_projects(tx, flavor.flavor_id)


def _delete(tx: ApiTransaction, reference: str) -> None:
    flavors.delete(tx, flavors.find_flavor(tx, reference).flavor_id)


def _show_flavor(flavor: Flavor, projects: Sequence[str]) -> tuple[tuple[str, ...], Row]:
    sizes = ("vcpus", "ram", "disk", "ephemeral", "swap", "rxtx_factor")
    return ("id", "name", *sizes, "public", "projects", "disabled", "description", "properties"), (
        flavor.flavor_id,
        flavor.name,
        flavor.vcpus,
        flavor.memory_mb,
        flavor.root_gb,
        flavor.ephemeral_gb,
        flavor.swap_mb,
        flavor.rxtx_factor,
        flavor.is_public,
        ", ".join(projects),
        flavor.disabled,
        flavor.description,
        format_properties(flavor.extra_specs),
    )
