"""Guests that agents hold and that the cell's records do not account for, as each agent said last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db.cell.tables import unknown_guests
from db.sql import clock
from db.sql.connection import CellTransaction
from db.sql.readable import convert_readable
from objects import stored
from objects.base import Object
from objects.text import clean_text
from objects.unknown_guest import PORTS_LIMIT, REASON_SIZE, REPORTED_LIMIT, UnknownGuest

UUID = re.compile(r"[A-Za-z0-9._-]{1,36}", re.ASCII)
"""The form of a guest's uuid. A guest with another uuid comes from a faulty agent and is not stored."""

OWNER_SIZE = 255
"""Maximum bytes of the name of a project or of a user."""

LIST_LIMIT = 10_000
"""Maximum number of guests listed of one cell."""

_T = unknown_guests.c
_FORGET = sa.delete(unknown_guests).where(_T.host == sa.bindparam("of"))
_ALL = sa.select(unknown_guests).order_by(_T.uuid, _T.host).limit(LIST_LIMIT)


class Reported(Object, frozen=True, kw_only=True):
    """A guest with the host whose agent reported it, and when, in seconds since the epoch by the database's clock."""

    host: str
    guest: UnknownGuest
    reported_at: float


def replace_guests(tx: CellTransaction, host: str, guests: Sequence[UnknownGuest]) -> None:
    """These are the unknown guests of the host, ``REPORTED_LIMIT`` of them at most, and there are no others."""
    tx.execute(_FORGET, {"of": host})
    now = clock.read(tx)
    by_uuid = {guest.uuid: guest for guest in guests[:REPORTED_LIMIT] if UUID.fullmatch(guest.uuid)}
    rows = [
        {"host": host, "uuid": uuid, "guest": stored.dump_value(_clean_guest(guest)), "reported_at": now}
        for uuid, guest in sorted(by_uuid.items())
    ]
    if rows:
        tx.execute(sa.insert(unknown_guests), rows)


def forget_guests(tx: CellTransaction, host: str) -> None:
    """The host's agent has started again, or the host is gone: what was reported before is no longer known."""
    tx.execute(_FORGET, {"of": host})


def remove_guest(tx: CellTransaction, uuid: str) -> None:
    """The guest is on record now. If the records still do not account for it, its agent reports it again."""
    tx.execute(sa.delete(unknown_guests).where(_T.uuid == uuid))


def list_all(tx: CellTransaction, uuids: Iterable[str] | None = None) -> list[Reported]:
    """By uuid and host: all of the cell, or those of these uuids."""
    query = _ALL if uuids is None else _ALL.where(_T.uuid.in_(sorted(uuids)))
    return convert_readable(tx.execute(query), _reported_from_row, unknown_guests)


def on_hosts(tx: CellTransaction, hosts: Iterable[str]) -> list[Reported]:
    """Those of these hosts, at most a page of them."""
    return convert_readable(tx.execute(_ALL.where(_T.host.in_(sorted(hosts)))), _reported_from_row, unknown_guests)


def _reported_from_row(row: sa.Row[Any]) -> Reported:
    return Reported(host=row.host, guest=stored.load_text(row.guest, UnknownGuest), reported_at=row.reported_at)


def _clean_guest(guest: UnknownGuest) -> UnknownGuest:
    return msgspec.structs.replace(
        guest,
        name=clean_text(guest.name, REASON_SIZE),
        reason=clean_text(guest.reason, REASON_SIZE),
        power=clean_text(guest.power, OWNER_SIZE),
        server_uuid=guest.server_uuid if UUID.fullmatch(guest.server_uuid) else "",
        project_id=clean_text(guest.project_id, OWNER_SIZE),
        user_id=clean_text(guest.user_id, OWNER_SIZE),
        ports=guest.ports[:PORTS_LIMIT],
    )
