"""``superconductor quota``: how much each project may have at once, and users in it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import msgspec

from api import opts
from api.lookup.quota_limits import configured_limits as configured_limits
from cli.shared.base import ActionShow, AdminLister, AdminShow, Row, Table, at_least, checked_name
from cli.shared.deployment import Deployment
from db.api.projects import quota_limits, quotas, user_quotas
from db.audit import quotas as quota_audit
from db.sql.connection import ApiTransaction
from objects import errors
from objects.quota import RESOURCES, UNLIMITED, OwnLimits, Quota, QuotaLimits, QuotaUsage, UserQuota

OTHERS = ("key_pairs", "metadata_items", "server_groups", "server_group_members")
"""Quotas without usage of a project. Only the API sets them."""
USED = ("project", "instances", "max_instances", "cores", "max_cores", "ram", "max_ram")
RESOURCE_NOUNS = {"instances": "servers", "cores": "virtual CPUs", "ram": "MiB of memory"}


class QuotaSet(ActionShow):
    """Set quota limits of a project, or of a user in it. Limits that are not given do not change.

    Example: superconductor quota set 7f1c --instances 50 --cores 200 --ram -1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_owner(parser)
        for resource in RESOURCES:
            text = f"most {RESOURCE_NOUNS[resource]} at once, {UNLIMITED} for any number"
            parser.add_argument(f"--{resource}", metavar="N", type=partial(at_least, UNLIMITED), help=text)
        parser.add_argument(
            "--force", action="store_true", help="also below what the project or user has: it then gets nothing more"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        changes = OwnLimits(**{resource: getattr(parsed_args, resource) for resource in RESOURCES})
        if changes == OwnLimits():
            raise errors.Invalid(f"Nothing to set: give {_option_names()}")
        database, project, force = self.deployment.api_database, parsed_args.project, parsed_args.force
        if parsed_args.user is None:
            return _show_quota(self.deployment, database.write(quotas.change_limits, project, changes, force=force))
        defaults = _default_limits(self.deployment)
        quota, user = database.write(quotas.change_user, project, parsed_args.user, changes, defaults, force=force)
        return _shown_user(self.deployment, quota, user)


class QuotaUnset(ActionShow):
    """Remove a project's own limits, all of them or those named: the defaults of [quota] apply again.

    All of them include those of its users. With --user the limits of that user: the project's apply.

    Example: superconductor quota unset 7f1c --cores
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_owner(parser)
        for resource in RESOURCES:
            parser.add_argument(
                f"--{resource}", action="store_true", help=f"only that of {RESOURCE_NOUNS[resource]}, and others so named"
            )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        named = [resource for resource in RESOURCES if getattr(parsed_args, resource)]
        database, project = self.deployment.api_database, parsed_args.project
        if parsed_args.user is None:
            return _show_quota(self.deployment, database.write(_forget_limits, project, named))
        return _shown_user(self.deployment, *database.write(_forget_user, project, parsed_args.user, named))


class QuotaShow(AdminShow):
    """Show quota and usage of a project, or of a user in it.

    Defaults come from the API, else from [quota] in this command's configuration. own_limits names the limits that were set for
    this project or user, class_limits those of the default class, set over the API for all.

    Example: superconductor quota show 7f1c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_owner(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        database, project = self.deployment.api_database, parsed_args.project
        if parsed_args.user is None:
            return _show_quota(self.deployment, database.read(quotas.get, project))
        quota, user, _ = database.read(quotas.of_user, project, parsed_args.user)
        return _shown_user(self.deployment, quota, user)


class QuotaList(AdminLister):
    """List quota and usage of every project that ever had a server or its own limits. -1: no limit.

    Example: superconductor quota list -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--users", action="store_true", help="the users with limits of servers of their own, in each project")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        defaults = _default_limits(self.deployment)
        columns: tuple[str, ...] = ("Instances", "Max Instances", "Cores", "Max Cores", "RAM", "Max RAM")
        if parsed_args.users:
            limited = self.deployment.api_database.read(user_quotas.list_all)
            return ("Project", "User", *columns), [(u.project_id, u.user_id, *_own_paired(u)) for u in limited]
        columns = ("Project", *columns)
        return columns, [_quota_row(quota, defaults) for quota in self.deployment.api_database.read(quotas.list_all)]


class QuotaAudit(AdminLister):
    """Compare the recorded usage of projects with their servers, and show the differences. Exit status 1 if any remain.

    Example: superconductor quota audit --repair
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--repair", action="store_true", help="charge them for what they have; work may go on meanwhile")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        database = self.deployment.api_database
        drifts = database.read(quota_audit.list_differences)
        if parsed_args.repair:
            projects = sorted({drift.project_id for drift in drifts})
            drifts = [drift for project_id in projects for drift in database.write(quota_audit.repair_charges, project_id)]
        self.status = int(bool(drifts) and not parsed_args.repair)
        columns = ("Project", "User", "Charged Instances", "Instances", "Charged Cores", "Cores", "Charged RAM", "RAM")
        return columns, [(drift.project_id, drift.user_id or "", *_pair_amounts(drift.used, drift.counted)) for drift in drifts]


def _add_owner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("project", metavar="PROJECT", type=checked_name)
    parser.add_argument("--user", metavar="USER", type=checked_name, help="only of this user in the project, by ID")


def _default_limits(deployment: Deployment) -> QuotaLimits:
    """Those of [quota] in the configuration, replaced by those of /os-quota-class-sets/default."""
    configured = msgspec.structs.asdict(opts.default_limits(deployment.loaded_conf))
    class_limits = deployment.api_database.read(quota_limits.limits_of, quota_limits.DEFAULTS)
    return QuotaLimits(**{name: class_limits.get(name, limit) for name, limit in configured.items()})


def _forget_limits(tx: ApiTransaction, project_id: str, names: Sequence[str]) -> Quota:
    """Without names all limits, also those that only the API sets, and those of users."""
    if not names:
        quota_limits.forget_limits(tx, project_id)
        quota_limits.forget_users(tx, project_id)
        quotas.forget_users(tx, project_id)
    return quotas.forget_limits(tx, project_id, names or RESOURCES)


def _forget_user(tx: ApiTransaction, project_id: str, user_id: str, names: Sequence[str]) -> tuple[Quota, UserQuota]:
    if not names:
        quota_limits.forget_users(tx, project_id, user_id)
    quotas.forget_user(tx, project_id, user_id, names or RESOURCES)
    quota, user, _ = quotas.of_user(tx, project_id, user_id)
    return quota, user


def _quota_row(quota: Quota, defaults: QuotaLimits) -> Row:
    return (quota.project_id, *_pair_amounts(quota.used, quota.own.over_defaults(defaults)))


def _own_paired(user: UserQuota) -> list[int | str]:
    """-1 for no limit, empty where the project's applies."""
    values = [(getattr(user.used, resource), getattr(user.own, resource)) for resource in RESOURCES]
    return [value for used, limit in values for value in (used, "" if limit is None else limit)]


def _pair_amounts(one: QuotaUsage, other: QuotaUsage | QuotaLimits) -> list[int]:
    return [getattr(amounts, resource) for resource in RESOURCES for amounts in (one, other)]


def _show_quota(deployment: Deployment, quota: Quota) -> tuple[tuple[str, ...], Row]:
    database = deployment.api_database
    of_class, of_project = (database.read(quota_limits.limits_of, owner) for owner in (quota_limits.DEFAULTS, quota.project_id))
    limits = configured_limits(opts.read_settings(deployment.loaded_conf)) | of_class | of_project
    own_limits = [resource for resource in RESOURCES if getattr(quota.own, resource) is not None]
    shown = dict(zip(USED, _quota_row(quota, _default_limits(deployment)), strict=True))
    shown |= {f"max_{name}": limits[name] for name in OTHERS}
    shown["own_limits"] = ", ".join([*own_limits, *sorted(of_project)])
    shown["class_limits"] = ", ".join(sorted(of_class))
    return tuple(shown), tuple(shown.values())


def _shown_user(deployment: Deployment, quota: Quota, user: UserQuota) -> tuple[tuple[str, ...], Row]:
    """The project's limits apply where the user has none."""
    database = deployment.api_database
    of_user = database.read(quota_limits.of_user, user.project_id, user.user_id)
    shown = dict(zip(*_show_quota(deployment, quota), strict=True)) | {"user": user.user_id}
    of_servers = user.own.over_defaults(quota.own.over_defaults(_default_limits(deployment)))
    shown |= dict(zip(USED[1:], _pair_amounts(user.used, of_servers), strict=True))
    shown |= {f"max_{name}": of_user[name] for name in OTHERS if name in of_user}
    own_limits = [resource for resource in RESOURCES if getattr(user.own, resource) is not None]
    shown["own_limits"] = ", ".join([*own_limits, *sorted(of_user)])
    return tuple(shown), tuple(shown.values())


def _option_names() -> str:
    return " or ".join(f"--{resource}" for resource in RESOURCES)
