"""Tokens that open remote consoles, by their digests. One is good until it expires or its server is deleted or leaves its host."""

from __future__ import annotations

import sqlalchemy as sa

from db.api.rows.tables import console_tokens
from db.api.servers import mappings
from db.sql import clock
from db.sql.connection import ApiTransaction
from objects.console import ConsoleListener, ConsolePlace, ConsoleToken

SERVER_LIMIT = 32
"""Tokens of one server and type. One more replaces that which expires first."""

_FIND = sa.select(console_tokens).where(
    console_tokens.c.digest == sa.bindparam("digest_"), console_tokens.c.expires_at > clock.Now()
)
_OF_SERVER = (
    sa.select(console_tokens.c.digest)
    .where(console_tokens.c.server_uuid == sa.bindparam("server"), console_tokens.c.console_type == sa.bindparam("type"))
    .order_by(console_tokens.c.expires_at.desc(), console_tokens.c.digest)
)


def add_token(tx: ApiTransaction, token: ConsoleToken, lifetime: float) -> None:
    """Store a new token for ``lifetime`` seconds."""
    digests = tx.execute(_OF_SERVER, {"server": token.server_uuid, "type": token.console_type}).scalars().all()
    if surplus := digests[SERVER_LIMIT - 1 :]:
        tx.execute(sa.delete(console_tokens).where(console_tokens.c.digest.in_(surplus)))
    row = {
        "digest": token.digest,
        "server_uuid": token.server_uuid,
        "body_uuid": token.place.body_uuid,
        "console_type": token.console_type,
        "host": token.place.host,
        "address": token.place.listener.address,
        "port": token.place.listener.port,
        "expires_at": clock.read(tx) + lifetime,
    }
    tx.execute(sa.insert(console_tokens), row)


def find_token(tx: ApiTransaction, digest: str) -> ConsoleToken | None:
    """The token with this digest, if it is good now."""
    row = tx.execute(_FIND, {"digest_": digest}).one_or_none()
    if row is None:
        return None
    server = mappings.get(tx, row.server_uuid)
    if server is None or server.deleted or server.body_uuid != row.body_uuid:
        return None
    listener = ConsoleListener(address=row.address, port=row.port)
    place = ConsolePlace(host=row.host, body_uuid=row.body_uuid, listener=listener)
    return ConsoleToken(digest=row.digest, server_uuid=row.server_uuid, console_type=row.console_type, place=place)


def forget_expired(tx: ApiTransaction) -> int:
    """Remove those that have expired; return how many there were."""
    return tx.execute(sa.delete(console_tokens).where(console_tokens.c.expires_at <= clock.Now())).rowcount
