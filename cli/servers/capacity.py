"""``capacity FLAVOR...``: how many more servers fit."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from cliff.lister import Lister
from rich.console import Console

from cli.shared.base import Table
from cli.shared.console import console_on, table_of
from cli.shared.http import HttpCommand
from objects import errors

KINDS = ("zone", "rack", "host", "cell")
COLUMNS = ("Flavor", "Where", "Name", "Servers", "Hosts")


class ShowCapacity(HttpCommand, Lister):
    """Show how many more servers of each flavor fit, in all and by cell, zone and aggregate (administrators).

    The number of a flavor is exact for servers of the project without a group and without hints, if no others are created. For
    several flavors it also says how many sets of one server of each fit: at least and at most. 'Hosts' take at least one server.

    Examples:
      superconductor capacity m1.large
      superconductor capacity m1.large m1.small --without-cell west --without-host h7
      superconductor capacity m1.small --after-losing host h7
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavors", nargs="+", metavar="FLAVOR", help="id or name")
        text = "count as if this cell took no servers; may be repeated"
        parser.add_argument("--without-cell", metavar="CELL", action="append", default=[], help=text)
        text = "count as if this host took no servers; may be repeated"
        parser.add_argument("--without-host", metavar="HOST", action="append", default=[], help=text)
        text = "count as if this zone, rack, host or cell were lost and its servers placed elsewhere; say which of them fit nowhere"
        parser.add_argument("--after-losing", nargs=2, metavar=("zone|rack|host|cell", "NAME"), help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        query = [("flavor", flavor) for flavor in parsed_args.flavors]
        query += [("without_cell", cell) for cell in parsed_args.without_cell]
        query += [("without_host", host) for host in parsed_args.without_host]
        if parsed_args.after_losing:
            kind, name = parsed_args.after_losing
            if kind not in KINDS:
                raise errors.Invalid(f"--after-losing: {kind!r} is not one of {', '.join(KINDS)}")
            query.append((f"lost_{kind}", name))
        capacity = self.api_client(parsed_args).get(f"superconductor/capacity?{urlencode(query)}")["capacity"]
        self.status = int(bool(capacity["loss"] and capacity["loss"]["stranded"]))
        if parsed_args.formatter == "table" and not self.is_quiet:
            describe_capacity(console_on(self.app.stdout), capacity)
        return COLUMNS, list(_capacity_rows(capacity))


def describe_capacity(console: Console, capacity: dict[str, Any]) -> None:
    """What the table does not say: bounds of sets, what limits each flavor, and what is not known."""
    if loss := capacity["loss"]:
        _describe_loss(console, loss)
    for flavor in capacity["flavors"]:
        limits = ", ".join(f"{name} on {hosts}" for name, hosts in flavor["limits"].items())
        if limits:
            console.print(f"{flavor['flavor']}: limited by {limits} hosts.", markup=False)
        if not flavor["servers"]:
            steps = ", ".join(f"{step['after']} by {step['name']}" for step in flavor["filters"] if step["after"] < step["before"])
            console.print(
                f"{flavor['flavor']}: none fits. Of {capacity['hosts']} hosts were left: {steps or 'none'}.", markup=False
            )
        if flavor["servers"] >= capacity["host_limit"] > 0 and not limits and flavor["hosts"]:
            console.print(f"{flavor['flavor']}: {capacity['host_limit']} servers are counted on a host at most.", markup=False)
    if sets := capacity["sets"]:
        console.print(f"Sets of one server of each: {sets['least']} at least, {sets['most']} at most.", markup=False)
    if capacity["early"]:
        console.print("The scheduler has just started: hosts that it has not heard of yet are missing.", markup=False)
    if silent := sorted(name for name, age in capacity["cells"].items() if age is None):
        console.print(f"Never heard of since the scheduler started: cells {', '.join(silent)}.", markup=False)


def _describe_loss(console: Console, loss: dict[str, Any]) -> None:
    fate = f"Servers on them: {loss['servers']}, of which {loss['placed']} fit elsewhere, the largest placed first."
    console.print(f"Hosts lost: {loss['hosts']}. {fate}", markup=False)
    if stranded := loss["stranded"]:
        rows = [(server["name"], server["id"], server["host"], server["flavor"], server["reason"]) for server in stranded]
        console.print(table_of("Servers that fit nowhere else", ("Name", "ID", "Host", "Flavor", "Reason"), rows))


def _capacity_rows(capacity: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for flavor in capacity["flavors"]:
        yield flavor["flavor"], "all", "", flavor["servers"], flavor["hosts"]
        for kind in ("cell", "zone", "aggregate"):
            for place in flavor[f"{kind}s"]:
                yield flavor["flavor"], kind, place["name"], place["servers"], place["hosts"]
