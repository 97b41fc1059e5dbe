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
        asked = [("flavor", flavor) for flavor in parsed_args.flavors]
        asked += [("without_cell", cell) for cell in parsed_args.without_cell]
        asked += [("without_host", host) for host in parsed_args.without_host]
        if parsed_args.after_losing:
            kind, name = parsed_args.after_losing
            if kind not in KINDS:
                raise errors.Invalid(f"--after-losing: {kind!r} is not one of {', '.join(KINDS)}")
            asked.append((f"lost_{kind}", name))
        told = self.client(parsed_args).get(f"superconductor/capacity?{urlencode(asked)}")["capacity"]
        self.status = int(bool(told["loss"] and told["loss"]["stranded"]))
        if parsed_args.formatter == "table" and not self.quiet:
            describe(console_on(self.app.stdout), told)
        return COLUMNS, list(_rows(told))


def describe(console: Console, told: dict[str, Any]) -> None:
    """What the table does not say: bounds of sets, what limits each flavor, and what is not known."""
    if loss := told["loss"]:
        _describe_loss(console, loss)
    for flavor in told["flavors"]:
        limits = ", ".join(f"{name} on {hosts}" for name, hosts in flavor["limits"].items())
        if limits:
            console.print(f"{flavor['flavor']}: limited by {limits} hosts.", markup=False)
        if not flavor["servers"]:
            steps = ", ".join(f"{each['after']} by {each['name']}" for each in flavor["filters"] if each["after"] < each["before"])
            console.print(f"{flavor['flavor']}: none fits. Of {told['hosts']} hosts were left: {steps or 'none'}.", markup=False)
        if flavor["servers"] >= told["host_limit"] > 0 and not limits and flavor["hosts"]:
            console.print(f"{flavor['flavor']}: {told['host_limit']} servers are counted on a host at most.", markup=False)
    if sets := told["sets"]:
        console.print(f"Sets of one server of each: {sets['least']} at least, {sets['most']} at most.", markup=False)
    if told["early"]:
        console.print("The scheduler has just started: hosts that it has not heard of yet are missing.", markup=False)
    if silent := sorted(name for name, age in told["cells"].items() if age is None):
        console.print(f"Never heard of since the scheduler started: cells {', '.join(silent)}.", markup=False)


def _describe_loss(console: Console, loss: dict[str, Any]) -> None:
    fate = f"Servers on them: {loss['servers']}, of which {loss['placed']} fit elsewhere, the largest placed first."
    console.print(f"Hosts lost: {loss['hosts']}. {fate}", markup=False)
    if stranded := loss["stranded"]:
        rows = [(each["name"], each["id"], each["host"], each["flavor"], each["reason"]) for each in stranded]
        console.print(table_of("Servers that fit nowhere else", ("Name", "ID", "Host", "Flavor", "Reason"), rows))


def _rows(told: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for flavor in told["flavors"]:
        yield flavor["flavor"], "all", "", flavor["servers"], flavor["hosts"]
        for kind in ("cell", "zone", "aggregate"):
            for place in flavor[f"{kind}s"]:
                yield flavor["flavor"], kind, place["name"], place["servers"], place["hosts"]
