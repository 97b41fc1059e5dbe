"""Compute nodes in a cell database: what each node offers and uses, as its agent last said."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect, feed
from db.tables.cell import compute_nodes
from db.upsert import Upsert
from objects import stored
from objects.compute_node import ComputeNode
from objects.feed import EventKind

_STORE = Upsert(compute_nodes, key=("host", "node"), replaced=("stats", "updated_at"))
_NODES_OF = sa.select(compute_nodes.c.host, compute_nodes.c.node, compute_nodes.c.stats).where(
    compute_nodes.c.host.in_(dialect.uuids("hosts"))
)


def store(tx: Connection, node: ComputeNode, now: float) -> bool:
    """Store what an agent reported. Only a change is written, and told to the feed. Return whether there was one."""
    return store_all(tx, [node], now) == 1


def store_all(tx: Connection, nodes: Sequence[ComputeNode], now: float) -> int:
    """The same for reports of several nodes, in one read and, if anything changed, one write and one append to the feed.

    Of two reports on one node the later in ``nodes`` counts. Returns how many nodes changed.
    """
    latest = {(node.host, node.node): node for node in nodes}
    known = _stored(tx, sorted({node.host for node in nodes}))
    changed = [node for key, node in sorted(latest.items()) if not _same(known.get(key), node)]
    if not changed:
        return 0
    pairs = [(node, stored.dump(node)) for node in changed]
    _STORE(tx, [{"host": node.host, "node": node.node, "stats": text, "updated_at": now} for node, text in pairs])
    events = [feed.NewEvent(kind=EventKind.HOST, key=node.host, version=0, payload=text) for node, text in pairs]
    feed.append(tx, events, now)
    return len(changed)


def list_all(tx: Connection) -> list[ComputeNode]:
    """By host and node."""
    rows = tx.execute(sa.select(compute_nodes.c.stats).order_by(compute_nodes.c.host, compute_nodes.c.node))
    return [stored.load(stats, ComputeNode) for (stats,) in rows]


def _stored(tx: Connection, hosts: Sequence[str]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for start in range(0, len(hosts), dialect.IN_LIST):
        rows = tx.execute(_NODES_OF, {"hosts": hosts[start : start + dialect.IN_LIST]})
        found |= {(host, node): stats for host, node, stats in rows}
    return found


def _same(text: str | None, node: ComputeNode) -> bool:
    """Text of another version may differ where the objects do not."""
    return text is not None and (text == stored.dump(node) or stored.load(text, ComputeNode) == node)
