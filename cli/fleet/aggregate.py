"""``superconductor aggregate``: named sets of hosts, and the availability zones that some of them make."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cli.shared.base import ActionShow, Admin, AdminLister, AdminShow, Row, Table, add_properties, checked_name, format_properties
from db.api.deployment import aggregates, host_mappings
from db.sql.connection import ApiTransaction
from objects.aggregate import ZONE, Aggregate

Shown = tuple[tuple[str, ...], Row]


def zone_name(text: str) -> str:
    """The name of a zone; a colon would be taken for the end of it in ZONE:HOST."""
    if ":" in checked_name(text):
        raise argparse.ArgumentTypeError(f"{text!r}: the name of a zone holds no ':'")
    return text


class _AggregateHosts(ActionShow):
    """Hosts are taken as they are named, since an aggregate may be made before its hosts report; unknown ones are told."""

    def warn_of_unknown(self, hosts: Sequence[str]) -> None:
        known = {mapping.host for mapping in self.deployment.api_database.read(host_mappings.list_all)} if hosts else set()
        for host in hosts:
            if host not in known:
                self.warn_user(f"Host {host!r} is not mapped to a cell yet; the aggregate applies once it is")


class AggregateCreate(_AggregateHosts):
    """Create a host aggregate. With --zone it makes an availability zone; a host can be in one zone only.

    Example: superconductor aggregate create rack-1 --zone north --host node-1 --host node-2 --property ssd=true
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", type=checked_name)
        parser.add_argument("--zone", metavar="ZONE", type=zone_name, help="availability zone that its hosts belong to")
        parser.add_argument(
            "--host", dest="hosts", metavar="HOST", type=checked_name, action="append", default=[], help="may be repeated"
        )
        add_properties(parser, "metadata that filters and weighers read")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        metadata = dict(parsed_args.properties)
        if parsed_args.zone is not None:
            metadata[ZONE] = parsed_args.zone
        hosts = list(dict.fromkeys(parsed_args.hosts))
        created = self.deployment.api_database.write(_create, parsed_args.name, metadata, hosts)
        self.warn_of_unknown(hosts)
        return _show_aggregate(created)


class AggregateSet(ActionShow):
    """Change an aggregate's name, zone or properties.

    Example: superconductor aggregate set rack-1 --zone south --unset ssd
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("aggregate", metavar="AGGREGATE", help="name or id")
        parser.add_argument("--name", metavar="NAME", type=checked_name, help="its new name")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--zone", metavar="ZONE", type=zone_name, help="put its hosts into this availability zone")
        group.add_argument("--no-zone", action="store_true", help="remove its availability zone")
        add_properties(parser, "set this metadata")
        parser.add_argument("--unset", metavar="KEY", action="append", default=[], help="remove this metadata; may be repeated")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        changes: dict[str, str | None] = dict.fromkeys(parsed_args.unset)
        changes |= dict(parsed_args.properties)
        if parsed_args.zone is not None or parsed_args.no_zone:
            changes[ZONE] = parsed_args.zone
        return _show_aggregate(
            self.deployment.api_database.write(_change_aggregate, parsed_args.aggregate, parsed_args.name, changes)
        )


class AggregateList(AdminLister):
    """List the aggregates.

    Example: superconductor aggregate list -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        listed = self.deployment.api_database.read(aggregates.list_all)
        return ("ID", "Name", "Availability Zone", "Hosts"), [(a.id, a.name, a.availability_zone, len(a.hosts)) for a in listed]


class AggregateShow(AdminShow):
    """Show one aggregate with its hosts.

    Example: superconductor aggregate show rack-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("aggregate", metavar="AGGREGATE", help="name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return _show_aggregate(self.deployment.api_database.read(_find_aggregate, parsed_args.aggregate))


class AggregateDelete(Admin):
    """Delete aggregates. They must be empty.

    Example: superconductor aggregate delete rack-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("aggregates", metavar="AGGREGATE", nargs="+", help="name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.do_each(parsed_args.aggregates, lambda reference: database.write(_delete, reference))


class AggregateAddHost(_AggregateHosts):
    """Put hosts into an aggregate: all of them, or none where one is refused.

    Example: superconductor aggregate add host rack-1 node-3 node-4
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("aggregate", metavar="AGGREGATE", help="name or id")
        parser.add_argument("hosts", metavar="HOST", type=checked_name, nargs="+")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        changed = self.deployment.api_database.write(_add_hosts, parsed_args.aggregate, parsed_args.hosts)
        self.warn_of_unknown(parsed_args.hosts)
        return _show_aggregate(changed)


class AggregateRemoveHost(ActionShow):
    """Take hosts out of an aggregate: all of them, or none where one is not in it.

    Example: superconductor aggregate remove host rack-1 node-3
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("aggregate", metavar="AGGREGATE", help="name or id")
        parser.add_argument("hosts", metavar="HOST", nargs="+")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return _show_aggregate(self.deployment.api_database.write(_remove_hosts, parsed_args.aggregate, parsed_args.hosts))


def _find_aggregate(tx: ApiTransaction, reference: str) -> Aggregate:
    """By name, or else by id. Raises NotFound."""
    for aggregate in aggregates.list_all(tx):
        if reference == aggregate.name:
            return aggregate
    return aggregates.get(tx, int(reference)) if reference.isdecimal() else aggregates.find_by_name(tx, reference)


def _create(tx: ApiTransaction, name: str, metadata: dict[str, str], hosts: Sequence[str]) -> Aggregate:
    created = aggregates.create(tx, name, metadata)
    return _with_hosts(tx, created.id, hosts)


def _change_aggregate(tx: ApiTransaction, reference: str, name: str | None, changes: dict[str, str | None]) -> Aggregate:
    aggregate = _find_aggregate(tx, reference)
    if name is not None:
        aggregates.rename_aggregate(tx, aggregate.id, name)
    if changes:
        aggregates.set_metadata(tx, aggregate.id, changes)
    return aggregates.get(tx, aggregate.id)


def _delete(tx: ApiTransaction, reference: str) -> None:
    aggregates.delete(tx, _find_aggregate(tx, reference).id)


def _add_hosts(tx: ApiTransaction, reference: str, hosts: Sequence[str]) -> Aggregate:
    return _with_hosts(tx, _find_aggregate(tx, reference).id, hosts)


def _remove_hosts(tx: ApiTransaction, reference: str, hosts: Sequence[str]) -> Aggregate:
    aggregate = _find_aggregate(tx, reference)
    for host in hosts:
        aggregates.remove_host(tx, aggregate.id, host)
    return aggregates.get(tx, aggregate.id)


def _with_hosts(tx: ApiTransaction, aggregate_id: int, hosts: Sequence[str]) -> Aggregate:
    for host in hosts:
        aggregates.add_host(tx, aggregate_id, host)
    return aggregates.get(tx, aggregate_id)


def _show_aggregate(aggregate: Aggregate) -> Shown:
    properties = {key: value for key, value in aggregate.metadata.items() if key != ZONE}
    return ("id", "name", "availability_zone", "hosts", "properties"), (
        aggregate.id,
        aggregate.name,
        aggregate.availability_zone,
        ", ".join(aggregate.hosts),
        format_properties(properties),
    )
