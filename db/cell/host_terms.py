"""Terms of nodes in a cell database: accepted sizes and own allocation ratios.

A node that was on record before there were terms has no row: the size and the ratios on record are its terms. Whoever writes terms
holds the locks of the host's rows in ``compute_nodes``, and reads the terms after it got them.
"""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from db.cell.tables import compute_nodes, host_terms
from db.sql.connection import CellTransaction
from db.sql.dialect import Upsert
from db.sql.readable import convert_readable
from objects import host_terms as terms_of
from objects import stored
from objects.compute_node import ComputeNode
from objects.host_limits import HostLimits
from objects.host_terms import ALWAYS_COUNTED, MEDIAN_FACTOR, HostTerms, OwnRatios, Ratios, Sizes
from service.rate_limited_log import RateLimitedLog

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))

SAMPLE_SIZE = 500
"""Maximum number of nodes that the median host of a cell is taken from."""
LIST_LIMIT = 1000
"""Maximum number of waiting sizes that are listed."""

Nodes = Mapping[tuple[str, str], ComputeNode]
"""Those of one host, by host and node."""

_STORE = Upsert(host_terms, key=("host", "node"), replaced=("accepted", "waiting", "ratios"))
_READ = sa.select(host_terms).where(host_terms.c.host == sa.bindparam("of"), host_terms.c.node == sa.bindparam("called"))
_RATIOS = sa.select(host_terms.c.ratios).where(host_terms.c.host == sa.bindparam("of")).order_by(host_terms.c.node).limit(1)
_OTHER_HOSTS = (
    sa.select(compute_nodes.c.host, compute_nodes.c.stats)
    .where(compute_nodes.c.host != sa.bindparam("of"))
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
    .limit(SAMPLE_SIZE)
)
_WAITING = sa.select(host_terms).where(host_terms.c.waiting.is_not(None)).order_by(host_terms.c.host, host_terms.c.node)
_FORGET = sa.delete(host_terms).where(host_terms.c.host == sa.bindparam("of"))

WAITS: sa.ColumnElement[bool] = sa.exists().where(
    host_terms.c.host == compute_nodes.c.host, host_terms.c.node == compute_nodes.c.node, host_terms.c.waiting.is_not(None)
)
"""Whether the size of a row of ``compute_nodes`` waits."""


def counted_node(tx: CellTransaction, node: ComputeNode, known: Nodes, limits: HostLimits, *, waits: bool) -> ComputeNode:
    """The report with the size and the ratios that count. What waits for an operator is written and logged.

    ``known``: the host's nodes as they count now. ``waits``: whether a size of the node waits.
    """
    before, reported, ratios = known.get((node.host, node.node)), Sizes.of_node(node), limits.ratios
    if before is not None and not waits and reported == Sizes.of_node(before) and ratios == Ratios.of_node(before):
        return terms_of.with_ratios(node, ratios)  # usually: no terms are read
    written = _read(tx, node)
    terms = (written or _first_terms(tx, node, known)).after_report(reported)
    if not limits.sizes_wait:
        terms = msgspec.structs.replace(terms, accepted=reported, waiting=None)
    if terms != written:
        write(tx, node, terms)
    if terms.waiting is not None and (written is None or written.waiting is None):
        text = "host %s, node %s reports %s: if the machine has that, run 'superconductor host accept %s'"
        more = reported.describe_growth(terms.accepted)
        _COMPLAINTS(f"{node.host} {node.node}", logging.WARNING, text, node.host, node.node, more, node.host)
    return terms_of.with_ratios(terms_of.with_sizes(node, terms.counted_sizes(reported)), terms.ratios.over_configured(ratios))


def of_known(tx: CellTransaction, node: ComputeNode) -> HostTerms:
    """The terms of a node on record."""
    return _read(tx, node) or _on_record(node)


def write(tx: CellTransaction, node: ComputeNode, terms: HostTerms) -> None:
    waiting = None if terms.waiting is None else stored.dump_value(terms.waiting)
    values = {"accepted": stored.dump_value(terms.accepted), "waiting": waiting, "ratios": stored.dump_value(terms.ratios)}
    _STORE(tx, [{"host": node.host, "node": node.node} | values])


def forget_host(tx: CellTransaction, host: str) -> None:
    """The host is gone."""
    tx.execute(_FORGET, {"of": host})


class WaitingSize(NamedTuple):
    """A node whose reported size waits for an operator."""

    host: str
    node: str
    terms: HostTerms

    @property
    def describe_sizes(self) -> str:
        """What it reports and what counts."""
        return self.terms.waiting.describe_growth(self.terms.accepted) if self.terms.waiting is not None else ""


def list_waiting(tx: CellTransaction, host: str | None = None, limit: int = LIST_LIMIT) -> list[WaitingSize]:
    """Of this host or of the cell, by host and node."""
    query = _WAITING if host is None else _WAITING.where(host_terms.c.host == host)
    return convert_readable(tx.execute(query.limit(limit)), _waiting_size, host_terms)


def _waiting_size(row: sa.Row[Any]) -> WaitingSize:
    """Raises one of UNREADABLE."""
    accepted, waiting, ratios = (
        stored.load_text(row.accepted, Sizes),
        stored.load_text(row.waiting, Sizes),
        stored.load_text(row.ratios, OwnRatios),
    )
    return WaitingSize(row.host, row.node, HostTerms(accepted=accepted, waiting=waiting, ratios=ratios))


def _read(tx: CellTransaction, node: ComputeNode) -> HostTerms | None:
    """None: there is no readable row."""
    row = tx.execute(_READ, {"of": node.host, "called": node.node}).first()
    return None if row is None else _terms_from_row(row)


def _terms_from_row(row: sa.Row[Any]) -> HostTerms | None:
    accepted, ratios = stored.load_or_none(row.accepted, Sizes), stored.load_or_none(row.ratios, OwnRatios)
    if accepted is None or ratios is None:
        return None
    return HostTerms(accepted=accepted, waiting=stored.load_or_none(row.waiting, Sizes), ratios=ratios)


def _first_terms(tx: CellTransaction, node: ComputeNode, known: Nodes) -> HostTerms:
    """The terms of a node that has no row."""
    before = known.get((node.host, node.node))
    if before is not None:
        return _on_record(before)
    reported = Sizes.of_node(node)
    accepted = reported.limited_to(_allowed_amounts(tx, reported, node.host, list(known.values())))
    ratios = stored.load_or_none(tx.execute(_RATIOS, {"of": node.host}).scalar(), OwnRatios) if known else None
    waiting = reported if reported != accepted else None
    return HostTerms(accepted=accepted, waiting=waiting, ratios=ratios or OwnRatios())


def _on_record(node: ComputeNode) -> HostTerms:
    return HostTerms(accepted=Sizes.of_node(node), ratios=OwnRatios(**msgspec.structs.asdict(Ratios.of_node(node))))


def _allowed_amounts(tx: CellTransaction, reported: Sizes, host: str, siblings: Sequence[ComputeNode]) -> dict[str, int]:
    """The most of each amount that a new node counts with beside the other nodes of its host.

    The first host of a cell, and the first one with a custom resource class, counts as reported.
    """
    own_amounts = Counter[str]()
    for node in siblings:
        own_amounts.update(Sizes.of_node(node).amounts_by_name)
    usual = {name: most - own_amounts[name] for name, most in ALWAYS_COUNTED.items()}
    if not any(amount > usual.get(name, 0) for name, amount in reported.amounts_by_name.items()):
        return usual
    hosts: dict[str, Counter[str]] = {}
    for other, text in tx.execute(_OTHER_HOSTS, {"of": host}):
        sizes = stored.load_or_none(text, Sizes)
        if sizes is not None:
            hosts.setdefault(other, Counter()).update(sizes.amounts_by_name)
    most = dict[str, int]()
    for name, amount in reported.amounts_by_name.items():
        amounts = [amounts_of_host[name] for amounts_of_host in hosts.values() if name in amounts_of_host]
        limit = int(MEDIAN_FACTOR * statistics.median(amounts)) if amounts else own_amounts[name] + amount
        most[name] = max(0, usual.get(name, 0), limit - own_amounts[name])
    return most
