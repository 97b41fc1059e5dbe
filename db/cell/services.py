"""Services in a cell database: the heartbeats of its processes, and what an operator says about them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from db import outbox
from db.cell import compute_nodes, feed
from db.cell.tables import feed_head, services
from db.sql import by_name, clock, dialect
from db.sql.connection import CellTransaction
from db.sql.dialect import Upsert
from db.sql.readable import complain_of_odd, convert_readable
from objects import errors, notification, stored
from objects.base import Object
from objects.compute_node import Service
from objects.feed import EventKind
from objects.machine import REFUSAL_SHOWN_S, Machine, RefusedMachine, refusal_of, two_machines_text
from objects.messages_version import SPAN
from objects.notification import EventType
from objects.process import About

_COUNTED = {"report_count": services.c.report_count + sa.literal_column("1")}  # PyMySQL allows no parameter there
_BEAT = Upsert(services, key=("host", "binary"), replaced=("version", "stopping"), computed={**_COUNTED, "last_seen": clock.Now()})
_BEAT_AT = Upsert(services, key=("host", "binary"), replaced=("last_seen", "version", "stopping"), computed=_COUNTED)


class Beat(Object, frozen=True, kw_only=True):
    """One sign of life. ``stopping``: of a process that takes no more orders. ``machine``: the ID of its machine, if it says so."""

    host: str
    binary: str
    version: int = 1
    stopping: bool = False
    machine: str = ""


def record_heartbeats(tx: CellTransaction, beats: Sequence[Beat], now: float | None = None) -> None:
    """One statement: the report counts of these services rise, or the services appear. Nothing goes to the feed.

    They were last seen now, by the database's clock. Of a service that appears it is this machine's, until it is heard of again.
    ``now`` (seconds since the epoch) says otherwise. Two beats of one service in one call count once.
    """
    latest = {(beat.host, beat.binary): beat for beat in beats}
    rows = [
        {
            "uuid": str(uuid.uuid4()),
            "host": host,
            "binary": binary,
            "report_count": 1,
            "last_seen": time.time() if now is None else now,
            "disabled": False,
            "forced_down": False,
            "version": beat.version,
            "stopping": beat.stopping,
        }
        for (host, binary), beat in sorted(latest.items())
    ]
    known = {(service.host, service.binary) for service in list_all(tx)} if outbox.is_kept(tx) else latest
    (_BEAT if now is None else _BEAT_AT)(tx, rows)
    for host, binary in sorted(latest.keys() - known):
        _put_notice(tx, EventType.SERVICE_CREATE, get(tx, host, binary), time.time() if now is None else now)


class ArrivedBeat(Object, frozen=True, kw_only=True):
    """A heartbeat that waited to be written. ``at``: when it arrived, in seconds since the epoch by the cell's database."""

    beat: Beat
    at: float


_RENEW = (
    sa.update(services)
    .where(
        services.c.binary == sa.bindparam("of"),
        services.c.version == sa.bindparam("known_version"),
        services.c.stopping == sa.false(),
        services.c.host.in_(dialect.uuids_parameter("hosts")),
    )
    .values(report_count=services.c.report_count + sa.literal_column("1"), last_seen=clock.Now())
)
_RENEW_ADMITTED = _RENEW.where(sa.or_(services.c.machine.is_(None), services.c.machine.in_(dialect.uuids_parameter("machines"))))
"""Any of the machines will do: one that sends a heartbeat is alive, also if it is that of another host."""
_LAST_SEEN: sa.Select[Any] = (
    sa.select(services.c.host, services.c.last_seen, services.c.version, services.c.stopping, services.c.machine)
    .where(services.c.binary == sa.bindparam("of"), services.c.host.in_(dialect.uuids_parameter("hosts")))
    .order_by(services.c.host)
    .with_for_update()
)


def gathered_heartbeats(tx: CellTransaction, beats: Sequence[ArrivedBeat]) -> list[str]:
    """Heartbeats of processes that are not stopping, some time after they arrived: one statement for those that change nothing.

    A service may have announced its stop since, through another conductor. Such a row is later than the heartbeat, and stays.
    Those of machines that were not admitted change nothing. Returns their hosts.
    """
    foreign: list[str] = []
    kinds: dict[tuple[str, int, bool], dict[str, ArrivedBeat]] = {}
    for beat in sorted(beats, key=lambda beat: beat.at):
        kinds.setdefault((beat.beat.binary, beat.beat.version, bool(beat.beat.machine)), {})[beat.beat.host] = beat
    for (binary, version, has_machine), by_host in sorted(kinds.items()):
        for page in dialect.split_pages(sorted(by_host)):
            values: dict[str, Any] = {"of": binary, "hosts": page}
            machines = {"machines": sorted({by_host[host].beat.machine for host in page})} if has_machine else {}
            renew = _RENEW_ADMITTED if has_machine else _RENEW
            if tx.execute(renew, values | machines | {"known_version": version}).rowcount < len(page):
                rows: dict[str, sa.Row[Any]] = {row.host: row for row in tx.execute(_LAST_SEEN, values)}
                odd = {host for host in page if _is_foreign(rows.get(host), by_host[host].beat)}
                changed = [host for host in page if host not in odd and _is_changed(rows.get(host), by_host[host])]
                record_heartbeats(tx, [by_host[host].beat for host in changed])
                foreign += sorted(odd)
    return foreign


_MACHINES: sa.Select[Any] = sa.select(services.c.host, services.c.machine).where(
    services.c.binary == sa.bindparam("of"), services.c.host.in_(dialect.uuids_parameter("hosts")), services.c.machine.is_not(None)
)


def admitted_heartbeats(tx: CellTransaction, beats: Sequence[Beat]) -> list[Beat]:
    """Heartbeats that cannot wait. Those of machines that were not admitted change nothing, and are returned."""
    rows: dict[tuple[str, str], sa.Row[Any]] = {}
    for binary in sorted({beat.binary for beat in beats if beat.machine}):
        hosts = sorted({beat.host for beat in beats if beat.machine and beat.binary == binary})
        for page in dialect.split_pages(hosts):
            for row in tx.execute(_MACHINES, {"of": binary, "hosts": page}):
                rows[row.host, binary] = row
    foreign = [beat for beat in beats if _is_foreign(rows.get((beat.host, beat.binary)), beat)]
    record_heartbeats(tx, [beat for beat in beats if beat not in foreign])
    return foreign


def _is_foreign(row: sa.Row[Any] | None, beat: Beat) -> bool:
    """Whether another machine than that of the heartbeat was admitted."""
    return row is not None and bool(beat.machine) and row.machine not in (None, beat.machine)


def _is_changed(row: sa.Row[Any] | None, arrived: ArrivedBeat) -> bool:
    """Whether the heartbeat says something that the row does not, and is later than the row."""
    if row is None:
        return True
    says_more = row.stopping or row.version != arrived.beat.version
    return bool(says_more and row.last_seen < arrived.at)


_ITS_ROW = (services.c.host == sa.bindparam("of"), services.c.binary == sa.bindparam("kind"))
_INTRODUCE = sa.update(services).where(*_ITS_ROW).values(last_seen=clock.Now(), started_at=clock.Now() - sa.bindparam("uptime"))
_ADMITTED = (
    sa.select(services.c.machine, services.c.machine_name, services.c.refused, services.c.last_seen, clock.Now().label("now"))
    .where(*_ITS_ROW)
    .with_for_update()
)
_SET_MACHINE = sa.update(services).where(*_ITS_ROW)


class HostAdmission(NamedTuple):
    """Whether a machine was admitted as a host. ``other``: the name of the machine that the host had before, or has.

    ``is_new``: of a refusal, that the machine was not refused before.
    """

    is_admitted: bool
    other: str | None = None
    is_new: bool = False


def admit(tx: CellTransaction, beat: Beat, machine: Machine, down_time: float) -> HostAdmission:
    """Whether the machine may run as the host (``objects.machine.refusal_of``). A refusal is written.

    Call ``introduce_service`` afterwards if it may, in the same transaction. ``down_time``: seconds of silence.
    """
    if not machine.id:
        return HostAdmission(is_admitted=True)
    which = {"of": beat.host, "kind": beat.binary}
    row = tx.execute(_ADMITTED, which).first()
    if row is None:  # of two machines that come at once, the second one waits here for the first one's row
        record_heartbeats(tx, [beat])
        row = tx.execute(_ADMITTED, which).one()
    before = stored.load_or_none(row.refused, RefusedMachine)
    refused = refusal_of(row.machine, row.last_seen, before, machine, row.now, down_time)
    other = row.machine_name or "" if row.machine not in (None, machine.id) else None
    if refused is None:
        return HostAdmission(is_admitted=True, other=other)
    tx.execute(_SET_MACHINE.values(refused=sa.bindparam("written")), which | {"written": stored.dump_value(refused)})
    return HostAdmission(is_admitted=False, other=other, is_new=before is None or before.id != machine.id)


def accept_machine(tx: CellTransaction, host: str, binary: str) -> RefusedMachine:
    """Let the machine that was refused take over with its next attempt. Returns it. Raises NotFound."""
    which = {"of": host, "kind": binary}
    refused = stored.load_or_none(get(tx, host, binary).refused, RefusedMachine)
    if refused is None:
        raise errors.NotFound(f"No other machine has asked to run as host '{host}'")
    accepted = msgspec.structs.replace(refused, accepted=True)
    tx.execute(_SET_MACHINE.values(refused=sa.bindparam("written")), which | {"written": stored.dump_value(accepted)})
    return accepted


def introduce_service(tx: CellTransaction, beat: Beat, about: About, uptime: float, *, identified: bool = False) -> None:
    """A process of a service says what it is, and for how many seconds it has run; a heartbeat, too.

    ``identified``: it is shown to be the host's. The first time, the feed tells of its nodes again, for who left them aside.
    """
    record_heartbeats(tx, [beat])
    before = get(tx, beat.host, beat.binary)
    if identified and not before.identified:
        compute_nodes.retell_nodes(tx, beat.host, time.time())
    values = {"release": about.release, "messages": about.messages, "pid": about.pid, "uptime": uptime, "identified": identified}
    if beat.machine:
        refused = stored.load_or_none(before.refused, RefusedMachine)
        is_other = refused is not None and refused.id != beat.machine
        values |= {"machine": beat.machine, "machine_name": about.machine, "refused": before.refused if is_other else None}
    tx.execute(_INTRODUCE, {"of": beat.host, "kind": beat.binary} | values)


SAME_START_S = 0.5
"""Two introductions are of one start of a process if the starts differ by so many seconds at most: messages take their time."""
_STARTED_AFTER = services.c.started_at - (clock.Now() - sa.bindparam("uptime"))
_INTRODUCED = sa.select(sa.literal(1)).where(
    services.c.host == sa.bindparam("of"),
    services.c.binary == sa.bindparam("kind"),
    services.c.release == sa.bindparam("its_release"),
    services.c.messages == sa.bindparam("its_messages"),
    services.c.pid == sa.bindparam("its_pid"),
    services.c.version == sa.bindparam("its_version"),
    services.c.identified == sa.bindparam("is_identified"),
    services.c.stopping == sa.false(),
    _STARTED_AFTER.between(-SAME_START_S, SAME_START_S),
)
_INTRODUCED_BY_MACHINE = _INTRODUCED.where(services.c.machine == sa.bindparam("its_machine"))


def is_introduced(tx: CellTransaction, beat: Beat, about: About, uptime: float, *, identified: bool = False) -> bool:
    """Whether ``introduce_service`` has said this of the same start of the process already."""
    values = {
        "of": beat.host,
        "kind": beat.binary,
        "uptime": uptime,
        "its_release": about.release,
        "its_messages": about.messages,
        "its_pid": about.pid,
        "its_version": beat.version,
        "is_identified": identified,
    }
    if beat.machine:
        return tx.execute(_INTRODUCED_BY_MACHINE, values | {"its_machine": beat.machine}).first() is not None
    return tx.execute(_INTRODUCED, values).first() is not None


def get(tx: CellTransaction, host: str, binary: str) -> Service:
    """Raises NotFound."""
    query = sa.select(services).where(services.c.host == host, services.c.binary == binary)
    return _service_from_row(by_name.require_row(tx.execute(query).first(), _describe_service(host, binary)))


def list_all(tx: CellTransaction) -> list[Service]:
    """By host and binary."""
    return [_service_from_row(row) for row in tx.execute(sa.select(services).order_by(services.c.host, services.c.binary))]


def list_hosts(tx: CellTransaction, binary: str) -> list[str]:
    """The hosts that have a service of this kind."""
    return list(tx.execute(sa.select(services.c.host).where(services.c.binary == binary).order_by(services.c.host)).scalars())


_IDENTIFIED = sa.select(services.c.host).where(
    services.c.binary == sa.bindparam("of"),
    services.c.identified == sa.true(),
    services.c.host.in_(dialect.uuids_parameter("hosts")),
)


def list_identified(tx: CellTransaction, binary: str, hosts: Iterable[str]) -> set[str]:
    """Those of these hosts whose agents were shown to be theirs when they started."""
    identified_hosts: set[str] = set()
    for page in dialect.split_pages(sorted(hosts)):
        identified_hosts.update(tx.execute(_IDENTIFIED, {"of": binary, "hosts": page}).scalars())
    return identified_hosts


class SeenService(NamedTuple):
    """A service, and how many seconds ago it was last heard of by the database's clock."""

    service: Service
    age: float

    @property
    def refused(self) -> RefusedMachine | None:
        """Another machine with the host's name that was refused lately."""
        refused = stored.load_or_none(self.service.refused, RefusedMachine)
        now = self.service.last_seen + self.age
        return refused if refused is not None and now - refused.last <= REFUSAL_SHOWN_S else None

    @property
    def two_machines(self) -> str:
        """That two machines have the host's name; empty if they do not."""
        if (refused := self.refused) is None:
            return ""
        return two_machines_text(self.service.host, self.service.machine_name or "", refused.name)


_AGE = (clock.Now() - services.c.last_seen).label("age")
_SEEN = sa.select(services, _AGE).where(services.c.binary == sa.bindparam("of")).order_by(services.c.host)


def list_seen(tx: CellTransaction, binary: str, host: str | None = None) -> list[SeenService]:
    """The services of this kind by host, or the one of this host if there is one."""
    query = _SEEN if host is None else _SEEN.where(services.c.host == host)
    return convert_readable(tx.execute(query, {"of": binary}), _seen_from_row, services)


def _seen_from_row(row: sa.Row[Any]) -> SeenService:
    values = dict(row._mapping)
    return SeenService(age=max(0.0, values.pop("age")), service=Service(**values))


_IS_OF_KIND = services.c.binary == sa.bindparam("of")
_IS_RECENT = services.c.last_seen >= clock.Now() - sa.bindparam("window")
_FLAGS = ("disabled", "forced_down", "stopping")


def _select_signs(which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The services in arrays of some each, with the feed's head, which comes also if there are none.

    On SQLite, for three services in arrays of two::

        SELECT sequence, ... FROM feed_head LEFT JOIN (
            SELECT json_group_array(host), ... FROM (
                SELECT host, ..., (row_number() OVER () - 1) / 2 AS number FROM services WHERE ...
            ) GROUP BY number
        ) ON true WHERE id = 1
        -- 7 | ["a","b"] | ...
        -- 7 | ["c"]     | ...
    """
    place = sa.func.row_number().over() - 1
    flags = (sa.cast(services.c[name], sa.Integer).label(name) for name in _FLAGS)
    raw_columns = (services.c.host, services.c.report_count, services.c.last_seen, *(services.c[name] for name in _FLAGS))
    odd = dialect.OddColumn(*raw_columns).label(dialect.ODD)
    columns = (services.c.host, services.c.report_count, _AGE, *flags, (place // dialect.JSON_ARRAY_SIZE).label("number"), odd)
    numbered = sa.select(*columns).where(which).subquery("numbered")
    arrays = (dialect.JsonArray(numbered.c[name]).label(name) for name in ("host", "report_count", "age", *_FLAGS))
    odd_rows = dialect.OddRows(numbered.c.host, numbered.c.odd).label(dialect.ODD)
    pages = sa.select(*arrays, odd_rows).group_by(numbered.c.number).subquery("pages")
    heads = feed_head.outerjoin(pages, sa.true())
    return sa.select(feed_head.c.sequence, pages).select_from(heads).where(feed_head.c.id == 1)


_SIGNS = _select_signs(_IS_OF_KIND)
_RECENT_SIGNS = _select_signs(sa.and_(_IS_OF_KIND, _IS_RECENT))


class Signs(NamedTuple):
    """What there is of services' signs of life, by column. ``ages``: seconds since the last, by the database.

    ``head``: the number of the newest event of the cell's feed (``db/cell/feed.py``).
    """

    hosts: list[str]
    report_counts: list[int]
    ages: list[float]
    disabled: list[bool]
    forced_down: list[bool]
    stopping: list[bool]
    head: int


def read_signs(tx: CellTransaction, binary: str, window: float | None = None) -> Signs:
    """Of all services of this kind; in no order. ``window``: only those heard of in so many last seconds; None: all.

    Asked every few seconds, so it is no more than is looked at then. With the feed's head, one statement shows an idle cell.
    """
    rows = tx.execute(_SIGNS, {"of": binary}) if window is None else tx.execute(_RECENT_SIGNS, {"of": binary, "window": window})
    signs_read = Signs([], [], [], [], [], [], 0)
    for head, hosts, counts, ages, *flags, odd in rows:
        complain_of_odd(services, odd)
        signs_read.hosts.extend(dialect.json_array(hosts, str))
        signs_read.report_counts.extend(dialect.json_array(counts, int))
        signs_read.ages.extend(dialect.json_array(ages, float))
        for column, text in zip((signs_read.disabled, signs_read.forced_down, signs_read.stopping), flags, strict=True):
            column.extend(map(bool, dialect.json_array(text, int)))
        signs_read = signs_read._replace(head=head)
    return signs_read


_FORCED_DOWN = (
    sa.select(services.c.host)
    .where(services.c.binary == sa.bindparam("of"), services.c.forced_down == sa.true())
    .order_by(services.c.host)
)


def forced_down(tx: CellTransaction, binary: str) -> list[str]:
    """The hosts that an operator calls dead."""
    return list(tx.execute(_FORCED_DOWN, {"of": binary}).scalars())


def set_disabled(tx: CellTransaction, host: str, binary: str, disabled: bool, reason: str | None, now: float) -> bool:
    """Take a host out of scheduling, or back in; the feed tells. Return whether that changed anything. Raises NotFound."""
    return _set_values(tx, host, binary, {"disabled": disabled, "disabled_reason": reason if disabled else None}, now)


def set_forced_down(tx: CellTransaction, host: str, binary: str, forced_down: bool, now: float) -> bool:
    """Call a host dead whatever its agent says, or end that; the feed tells. Returns and raises as ``set_disabled``."""
    return _set_values(tx, host, binary, {"forced_down": forced_down}, now)


_OLDER = sa.select(services.c.host, services.c.messages).where(
    services.c.binary == sa.bindparam("of"), sa.or_(services.c.messages.is_(None), services.c.messages != str(SPAN))
)


def list_older(tx: CellTransaction, binary: str) -> dict[str, str | None]:
    """``messages`` by host of the services of this kind whose messages are not those of this release."""
    return {row.host: row.messages for row in tx.execute(_OLDER, {"of": binary})}


def delete(tx: CellTransaction, host: str, binary: str) -> None:
    """Forget a service, such as one of a host that is gone for good; the feed tells. Raises NotFound."""
    gone = get(tx, host, binary)
    statement = sa.delete(services).where(services.c.host == host, services.c.binary == binary)
    by_name.delete(tx, statement, _describe_service(host, binary))
    _append_event(tx, gone, time.time())
    _put_notice(tx, EventType.SERVICE_DELETE, gone, gone.last_seen)


def _put_notice(tx: CellTransaction, event: EventType, service: Service, now: float) -> None:
    if outbox.is_kept(tx):
        outbox.put_notices(tx, "cell", [notification.of_service(event, service, now)])


def _set_values(tx: CellTransaction, host: str, binary: str, values: dict[str, Any], now: float) -> bool:
    before = get(tx, host, binary)
    after = msgspec.structs.replace(before, **values)
    if after == before:
        return False
    tx.execute(sa.update(services).where(services.c.uuid == before.uuid), values)
    _append_event(tx, after, now)
    _put_notice(tx, EventType.SERVICE_UPDATE, after, now)
    return True


def _append_event(tx: CellTransaction, service: Service, now: float) -> None:
    event = feed.NewEvent(kind=EventKind.SERVICE, key=service.host, version=0, payload=stored.dump_value(service))
    feed.append_events(tx, [event], now)


def _service_from_row(row: sa.Row[Any]) -> Service:
    return Service(**row._mapping)


def _describe_service(host: str, binary: str) -> str:
    return f"Service '{binary}' on host '{host}'"


class ServiceCount(Object, frozen=True, kw_only=True):
    """How many services of a kind there are, and how many of them are up."""

    up: int
    all: int


def count_services(tx: CellTransaction, binary: str, heard_since: float) -> ServiceCount:
    """Up is who was heard of since then (seconds since the epoch), does not stop and is not called dead."""
    alive = sa.and_(services.c.last_seen >= heard_since, services.c.forced_down == sa.false(), services.c.stopping == sa.false())
    counts = sa.select(sa.func.count(), sa.func.sum(sa.case((alive, 1), else_=0))).where(services.c.binary == binary)
    every, up = tx.execute(counts).one()
    return ServiceCount(up=int(up or 0), all=every)
