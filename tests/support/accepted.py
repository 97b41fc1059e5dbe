"""Batches that are accepted without an API."""

from __future__ import annotations

from collections.abc import Sequence

from db.api.queue import accepting
from db.api.queue.accepting import Accepted, ClientToken, NewBatch, NewServer
from db.sql.connection import ApiTransaction
from objects.network import PortRequest
from objects.quota import ANY, Admission
from objects.spec import RequestSpec


def accept_batch(
    tx: ApiTransaction,
    spec: RequestSpec,
    servers: Sequence[NewServer],
    *,
    now: float,
    deadline: float,
    token: str | None = None,
    digests: Sequence[str] = (),
    admission: Admission = ANY,
    sealed: str | None = None,
    ports: Sequence[PortRequest] = (),
    held_until: float | None = None,
) -> Accepted:
    """Accept this batch alone. The parameters are fields of ``NewBatch`` and of its token."""
    client_token = ClientToken(value=token, digests=tuple(digests)) if token is not None else None
    batch = NewBatch(
        spec=spec,
        servers=tuple(servers),
        deadline=deadline,
        token=client_token,
        admission=admission,
        sealed=sealed,
        ports=tuple(ports),
        held_until=held_until,
    )
    [accepted] = accepting.accept_batch(tx, [batch], now)
    return accepted
