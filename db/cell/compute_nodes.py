"""Compute nodes in a cell database: the capacity and usage of each node, as its agent last reported them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from db.cell import feed, host_terms
from db.cell.tables import compute_nodes
from db.sql import dialect
from db.sql.connection import CellTransaction
from db.sql.dialect import Upsert
from db.sql.galera import compare_locks
from objects import errors, stats, stored
from objects import host_terms as terms_of
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from objects.host_limits import HostLimits
from objects.host_terms import Ratios, Sizes

Nodes = dict[tuple[str, str], ComputeNode]
"""By host and node."""

LOG = logging.getLogger(__name__)

_STORE = Upsert(compute_nodes, key=("host", "node"), replaced=("stats", "updated_at"))
_OTHER_HOST = (
    sa.select(compute_nodes.c.host)
    .where(compute_nodes.c.node == sa.bindparam("node"), compute_nodes.c.host != sa.bindparam("host"))
    .limit(1)
)
_NODES_OF = (
    sa.select(compute_nodes.c.host, compute_nodes.c.node, compute_nodes.c.stats, host_terms.WAITS.label("waits"))
    .where(compute_nodes.c.host.in_(dialect.uuids_parameter("hosts")))
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
    .with_for_update()
)


def store_node(tx: CellTransaction, node: ComputeNode, now: float, limits: HostLimits | None = None) -> bool | None:
    """Store an agent's report and append a change to the feed. Return whether it changed; None: newer stats are stored already.

    With ``limits``, the node counts with the size and the ratios of its terms. Without, it counts as reported.
    Raises Invalid if the host would then offer more than ``limits``, or if the node is another host's: of those that name it the
    first has it, until it is removed.
    """
    key = node.host, node.node
    known, waiting = _lock_stored(tx, [node.host])
    if key not in known:
        _refuse_if_taken(tx, node)
    if limits is not None:
        compare_locks(tx, "host", [node.host])  # a report leaves the other nodes of its host as they are
        limits.check_node(node, [other for key_of_other, other in known.items() if key_of_other != key])
    if not _is_newest(node, known):
        return None
    if limits is not None:
        node = host_terms.counted_node(tx, node, known, limits, waits=key in waiting)
    return _write(tx, [node], known, now) == 1


def accept_sizes(tx: CellTransaction, host: str, now: float) -> dict[str, Sizes]:
    """The nodes of a host count with the sizes that it reported last, and may grow from there. The feed tells.

    Return the sizes by node. Raises NotFound if the host has no nodes.
    """
    known, counted = _lock_nodes(tx, host), list[ComputeNode]()
    for node in known.values():
        terms = host_terms.of_known(tx, node)
        sizes = terms.waiting or Sizes.of_node(node)
        host_terms.write(tx, node, msgspec.structs.replace(terms, accepted=sizes, waiting=None))
        counted.append(terms_of.with_sizes(node, sizes))
    _write(tx, counted, known, now)
    return {node.node: Sizes.of_node(node) for node in counted}


def set_ratios(tx: CellTransaction, host: str, ratios: Mapping[str, float | None], now: float) -> None:
    """Set allocation ratios of a host, by the names of ``OwnRatios``. The feed tells.

    None: from its next report on, that of the conductors' configuration. Raises NotFound if the host has no nodes.
    """
    known, counted = _lock_nodes(tx, host), list[ComputeNode]()
    for node in known.values():
        terms = host_terms.of_known(tx, node)
        terms = msgspec.structs.replace(terms, ratios=msgspec.structs.replace(terms.ratios, **ratios))
        host_terms.write(tx, node, terms)
        counted.append(terms_of.with_ratios(node, terms.ratios.over_configured(Ratios.of_node(node))))
    _write(tx, counted, known, now)


def _lock_nodes(tx: CellTransaction, host: str) -> Nodes:
    """The nodes of a host, locked. Raises NotFound if it has none."""
    known, _ = _lock_stored(tx, [host])
    if not known:
        raise errors.NotFound(f"Host '{host[:80]}' has reported no size that can be read: its agent does so when it runs")
    compare_locks(tx, "host", [host])
    return known


def store_all(tx: CellTransaction, nodes: Sequence[ComputeNode], now: float) -> int:
    """Store reports of several nodes with one read and, if anything changed, one write and one append to the feed.

    Of two reports on one node, the later one in ``nodes`` counts. Reports older than the stored stats are ignored. Returns how many
    nodes changed.
    """
    latest = {(node.host, node.node): node for node in nodes}
    known, _ = _lock_stored(tx, sorted({node.host for node in nodes}))
    return _write(tx, [node for _, node in sorted(latest.items()) if _is_newest(node, known)], known, now)


def retell_nodes(tx: CellTransaction, host: str, now: float) -> None:
    """Append the nodes of a host to the feed, as if they had changed."""
    known = of_hosts(tx, [host])
    feed.append_events(
        tx, [feed.NewEvent(kind=EventKind.HOST, key=host, version=0, payload=stored.dump_value(node)) for node in known], now
    )


def _refuse_if_taken(tx: CellTransaction, node: ComputeNode) -> None:
    owner = tx.execute(_OTHER_HOST, {"host": node.host, "node": node.node}).scalar()
    if owner is not None:
        raise errors.Invalid(
            f"stats of {node.host}, {node.node}: node {node.node} was reported by host {owner} first. Give the node of {node.host} "
            f"another name, or remove host {owner} with 'superconductor host delete {owner}' if this machine took its place"
        )


def _is_newest(node: ComputeNode, known: Nodes) -> bool:
    before = known.get((node.host, node.node))
    return before is None or stats.is_current(node, before)


def _write(tx: CellTransaction, nodes: Sequence[ComputeNode], known: Nodes, now: float) -> int:
    """Write the nodes; return how many changed in more than the time of the report."""
    pairs = [(node, known.get((node.host, node.node))) for node in nodes]
    rows = [_node_row(node, now) for node, before in pairs if node != before]
    if rows:
        _STORE(tx, rows)
    changed = [node for node, before in pairs if before is None or not stats.is_unchanged(node, before)]
    if changed:
        events = [feed.NewEvent(kind=EventKind.HOST, key=node.host, version=0, payload=stored.dump_value(node)) for node in changed]
        feed.append_events(tx, events, now)
    return len(changed)


def _node_row(node: ComputeNode, now: float) -> dict[str, object]:
    return {"host": node.host, "node": node.node, "stats": stored.dump_value(node), "updated_at": now}


def list_all(tx: CellTransaction) -> list[ComputeNode]:
    """All nodes by host and node, without unreadable ones."""
    rows = tx.execute(sa.select(compute_nodes.c.stats).order_by(compute_nodes.c.host, compute_nodes.c.node)).scalars()
    return [node for node in map(decode_node, rows) if node is not None]


_PAGE = (
    sa.select(compute_nodes.c.host, compute_nodes.c.node, compute_nodes.c.stats)
    .where(
        sa.or_(
            compute_nodes.c.host > sa.bindparam("host"),
            sa.and_(compute_nodes.c.host == sa.bindparam("host"), compute_nodes.c.node > sa.bindparam("node")),
        )
    )
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
    .limit(sa.bindparam("most"))
)
BEFORE_FIRST_PAGE = ("", "")
"""The key before the first page."""


_OF_HOSTS = (
    sa.select(compute_nodes.c.stats)
    .where(compute_nodes.c.host.in_(dialect.uuids_parameter("hosts")))
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
)


def of_hosts(tx: CellTransaction, hosts: Collection[str]) -> list[ComputeNode]:
    """The nodes of these hosts, by host and node in chunks of sorted hosts, without unreadable ones."""
    nodes_read: list[ComputeNode] = []
    for page in dialect.split_pages(sorted(hosts)):
        texts = tx.execute(_OF_HOSTS, {"hosts": page}).scalars()
        nodes_read += [node for node in map(decode_node, texts) if node is not None]
    return nodes_read


_KNOWN = sa.select(compute_nodes.c.host).distinct().where(compute_nodes.c.host.in_(dialect.uuids_parameter("hosts")))


def list_known(tx: CellTransaction, hosts: Collection[str]) -> set[str]:
    """The hosts among these that have nodes, readable or not."""
    known_hosts: set[str] = set()
    for page in dialect.split_pages(sorted(hosts)):
        known_hosts.update(tx.execute(_KNOWN, {"hosts": page}).scalars())
    return known_hosts


class NodePage(NamedTuple):
    """A page of nodes. ``last``: the host and node after which the next page begins; None: this is the last page."""

    nodes: list[ComputeNode]
    last: tuple[str, str] | None


def list_after(tx: CellTransaction, after: tuple[str, str], most: int) -> NodePage:
    """At most ``most`` nodes after ``after``, by host and node, without unreadable ones."""
    rows = tx.execute(_PAGE, {"host": after[0], "node": after[1], "most": most}).all()
    nodes = [node for node in (decode_node(row.stats) for row in rows) if node is not None]
    return NodePage(nodes, (rows[-1].host, rows[-1].node) if len(rows) == most else None)


def decode_node(text: str) -> ComputeNode | None:
    """Decode stored stats or a feed payload. Unreadable text is logged and gives None, so that one host does not block its cell."""
    try:
        node = stored.load_text(text, ComputeNode)
        stats.check_stats(node, decoded=True)
    except (*stored.UNREADABLE, errors.Invalid) as error:
        LOG.warning("unreadable stats are ignored until their host reports again: %s: %.200s", error, text)
        return None
    return node


class _OnRecord(NamedTuple):
    """Nodes on record, and those of them whose reported size waits for an operator."""

    nodes: Nodes
    waiting: set[tuple[str, str]]


def _lock_stored(tx: CellTransaction, hosts: Sequence[str]) -> _OnRecord:
    """The nodes of these hosts, locked, so that of two concurrent reports the older one is not written last."""
    record = _OnRecord({}, set())
    for page in dialect.split_pages(hosts):
        for host, node, text, waits in tx.execute(_NODES_OF, {"hosts": page}):
            known = decode_node(text)
            if known is not None:
                record.nodes[host, node] = known
            if waits:
                record.waiting.add((host, node))
    return record
