"""Compute nodes in a cell database: what each node offers and uses, as its agent last said."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from db.cell import feed
from db.cell.tables import compute_nodes
from db.sql import dialect
from db.sql.connection import CellTransaction
from db.sql.upsert import Upsert
from objects import errors, stats, stored
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from objects.host_limits import HostLimits

Nodes = dict[tuple[str, str], ComputeNode]
"""By host and node."""

LOG = logging.getLogger(__name__)

_STORE = Upsert(compute_nodes, key=("host", "node"), replaced=("stats", "updated_at"))
_NODES_OF = (
    sa.select(compute_nodes.c.host, compute_nodes.c.node, compute_nodes.c.stats)
    .where(compute_nodes.c.host.in_(dialect.uuids("hosts")))
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
    .with_for_update()
)


def store(tx: CellTransaction, node: ComputeNode, now: float, limits: HostLimits | None = None) -> bool | None:
    """Store what an agent reported; a change is told to the feed. Return whether there was one; None: newer stats are known.

    Raises Invalid where the host would offer more than ``limits`` with it.
    """
    known = _stored(tx, [node.host])
    if limits is not None:
        limits.check(node, [other for key, other in known.items() if key != (node.host, node.node)])
    return _write(tx, [node], known, now) == 1 if _is_newest(node, known) else None


def store_all(tx: CellTransaction, nodes: Sequence[ComputeNode], now: float) -> int:
    """The same for reports of several nodes, in one read and, if anything changed, one write and one append to the feed.

    Of two reports on one node the later in ``nodes`` counts, and none that is older than what is known. Returns how many nodes
    changed.
    """
    latest = {(node.host, node.node): node for node in nodes}
    known = _stored(tx, sorted({node.host for node in nodes}))
    return _write(tx, [node for _, node in sorted(latest.items()) if _is_newest(node, known)], known, now)


def retell(tx: CellTransaction, host: str, now: float) -> None:
    """Tell the feed what the nodes of a host offer, as if it had changed."""
    known = of_hosts(tx, [host])
    feed.append(tx, [feed.NewEvent(kind=EventKind.HOST, key=host, version=0, payload=stored.dump(node)) for node in known], now)


def _is_newest(node: ComputeNode, known: Nodes) -> bool:
    before = known.get((node.host, node.node))
    return before is None or stats.overtakes(node, before)


def _write(tx: CellTransaction, nodes: Sequence[ComputeNode], known: Nodes, now: float) -> int:
    """Return how many changed by more than when they were reported."""
    pairs = [(node, known.get((node.host, node.node))) for node in nodes]
    rows = [_row(node, now) for node, before in pairs if node != before]
    if rows:
        _STORE(tx, rows)
    changed = [node for node, before in pairs if before is None or not stats.same(node, before)]
    if changed:
        events = [feed.NewEvent(kind=EventKind.HOST, key=node.host, version=0, payload=stored.dump(node)) for node in changed]
        feed.append(tx, events, now)
    return len(changed)


def _row(node: ComputeNode, now: float) -> dict[str, object]:
    return {"host": node.host, "node": node.node, "stats": stored.dump(node), "updated_at": now}


def list_all(tx: CellTransaction) -> list[ComputeNode]:
    """By host and node, without those that cannot be read."""
    rows = tx.execute(sa.select(compute_nodes.c.stats).order_by(compute_nodes.c.host, compute_nodes.c.node)).scalars()
    return [node for node in map(readable, rows) if node is not None]


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
FIRST = ("", "")
"""What the first page comes after."""


_OF_HOSTS = (
    sa.select(compute_nodes.c.stats)
    .where(compute_nodes.c.host.in_(dialect.uuids("hosts")))
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
)


def of_hosts(tx: CellTransaction, hosts: Collection[str]) -> list[ComputeNode]:
    """Those of these hosts, likewise."""
    ordered, found = sorted(hosts), list[ComputeNode]()
    for start in range(0, len(ordered), dialect.IN_LIST):
        texts = tx.execute(_OF_HOSTS, {"hosts": ordered[start : start + dialect.IN_LIST]}).scalars()
        found += [node for node in map(readable, texts) if node is not None]
    return found


_KNOWN = sa.select(compute_nodes.c.host).distinct().where(compute_nodes.c.host.in_(dialect.uuids("hosts")))


def known(tx: CellTransaction, hosts: Collection[str]) -> set[str]:
    """Those of these hosts that have nodes, whether these can be read or not."""
    ordered, found = sorted(hosts), set[str]()
    for start in range(0, len(ordered), dialect.IN_LIST):
        found.update(tx.execute(_KNOWN, {"hosts": ordered[start : start + dialect.IN_LIST]}).scalars())
    return found


class NodePage(NamedTuple):
    """``last``: the host and node that the next page comes after; None: there is none."""

    nodes: list[ComputeNode]
    last: tuple[str, str] | None


def list_after(tx: CellTransaction, after: tuple[str, str], most: int) -> NodePage:
    """The next nodes by host and node after this one, ``most`` at most, without those that cannot be read."""
    rows = tx.execute(_PAGE, {"host": after[0], "node": after[1], "most": most}).all()
    nodes = [node for node in (readable(row.stats) for row in rows) if node is not None]
    return NodePage(nodes, (rows[-1].host, rows[-1].node) if len(rows) == most else None)


def readable(text: str) -> ComputeNode | None:
    """What was stored or told to the feed. None, and a line in the log, for what cannot be: one host must not hold up its cell."""
    try:
        node = stored.load(text, ComputeNode)
        stats.check(node)
    except (*stored.UNREADABLE, errors.Invalid) as error:
        LOG.warning("stats that cannot be read are ignored, until their host reports anew: %s: %.200s", error, text)
        return None
    return node


def _stored(tx: CellTransaction, hosts: Sequence[str]) -> Nodes:
    """Locked: of two reports that come at once, the older must not be written last."""
    found: Nodes = {}
    for start in range(0, len(hosts), dialect.IN_LIST):
        for host, node, text in tx.execute(_NODES_OF, {"hosts": hosts[start : start + dialect.IN_LIST]}):
            known = readable(text)
            if known is not None:
                found[host, node] = known
    return found
