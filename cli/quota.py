"""``superconductor quota``: how much each project may have at once."""

from __future__ import annotations

import argparse
from functools import partial

from api import opts
from cli.base import ActionShow, AdminLister, AdminShow, Row, Table, at_least, name
from db.api import quotas
from db.audit import quotas as quota_audit
from objects import errors
from objects.quota import RESOURCES, UNLIMITED, OwnLimits, Quota, QuotaLimits, QuotaUsage

WHAT = {"instances": "servers", "cores": "virtual CPUs", "ram": "MiB of memory"}


class QuotaSet(ActionShow):
    """Set quota limits of a project. Limits that are not given do not change.

    Example: superconductor quota set 7f1c --instances 50 --cores 200 --ram -1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("project", metavar="PROJECT", type=name)
        for resource in RESOURCES:
            text = f"most {WHAT[resource]} at once, {UNLIMITED} for any number"
            parser.add_argument(f"--{resource}", metavar="N", type=partial(at_least, UNLIMITED), help=text)
        parser.add_argument("--force", action="store_true", help="also below what the project has: it then gets nothing more")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        changes = OwnLimits(**{resource: getattr(parsed_args, resource) for resource in RESOURCES})
        if changes == OwnLimits():
            raise errors.Invalid(f"Nothing to set: give {_options()}")
        defaults = opts.default_limits(self.deployment.conf)
        changed = self.deployment.api_database.write(quotas.change, parsed_args.project, changes, force=parsed_args.force)
        return _shown(changed, defaults)


class QuotaUnset(ActionShow):
    """Remove a project's own limits, all of them or those named: the defaults of [quota] apply again.

    Example: superconductor quota unset 7f1c --cores
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("project", metavar="PROJECT", type=name)
        for resource in RESOURCES:
            parser.add_argument(f"--{resource}", action="store_true", help=f"only that of {WHAT[resource]}, and others so named")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        named = [resource for resource in RESOURCES if getattr(parsed_args, resource)]
        defaults = opts.default_limits(self.deployment.conf)
        return _shown(self.deployment.api_database.write(quotas.forget, parsed_args.project, named or RESOURCES), defaults)


class QuotaShow(AdminShow):
    """Show quota and usage of a project. Defaults come from [quota] in the configuration that this command reads.

    Example: superconductor quota show 7f1c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("project", metavar="PROJECT", type=name)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        defaults = opts.default_limits(self.deployment.conf)
        return _shown(self.deployment.api_database.read(quotas.get, parsed_args.project), defaults)


class QuotaList(AdminLister):
    """List quota and usage of every project that ever had a server or its own limits. -1: no limit.

    Example: superconductor quota list -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        defaults = opts.default_limits(self.deployment.conf)
        columns = ("Project", "Instances", "Max Instances", "Cores", "Max Cores", "RAM", "Max RAM")
        return columns, [_row(quota, defaults) for quota in self.deployment.api_database.read(quotas.list_all)]


class QuotaAudit(AdminLister):
    """Compare the recorded usage of projects with their servers, and show the differences. Exit status 1 if any remain.

    Example: superconductor quota audit --repair
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--repair", action="store_true", help="charge them for what they have; work may go on meanwhile")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        database = self.deployment.api_database
        drifts = database.read(quota_audit.differences)
        if parsed_args.repair:
            repaired = [database.write(quota_audit.repair, drift.project_id) for drift in drifts]
            drifts = [drift for drift in repaired if drift is not None]
        self.status = int(bool(drifts) and not parsed_args.repair)
        columns = ("Project", "Charged Instances", "Instances", "Charged Cores", "Cores", "Charged RAM", "RAM")
        return columns, [(drift.project_id, *_paired(drift.used, drift.counted)) for drift in drifts]


def _row(quota: Quota, defaults: QuotaLimits) -> Row:
    return (quota.project_id, *_paired(quota.used, quota.own.over(defaults)))


def _paired(one: QuotaUsage, other: QuotaUsage | QuotaLimits) -> list[int]:
    return [getattr(amounts, resource) for resource in RESOURCES for amounts in (one, other)]


def _shown(quota: Quota, defaults: QuotaLimits) -> tuple[tuple[str, ...], Row]:
    own = ", ".join(resource for resource in RESOURCES if getattr(quota.own, resource) is not None)
    columns = ("project", "instances", "max_instances", "cores", "max_cores", "ram", "max_ram", "own_limits")
    return columns, (*_row(quota, defaults), own)


def _options() -> str:
    return " or ".join(f"--{resource}" for resource in RESOURCES)
