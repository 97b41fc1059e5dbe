"""Lists of servers over all cells, from the summaries in their mappings: filters, sort order and pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa

from db.api.rows import phases, regexes, spec_fields
from db.api.rows.tables import addresses, instance_mappings, request_specs
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable
from objects import errors, stored
from objects.base import Object
from objects.instance import Server
from objects.phase import ServerPhase
from objects.spec import Image
from objects.task import Power, StoredContent, TaskState

Value = str | int | float | None

_C = instance_mappings.c
_IMAGE = sa.func.coalesce(_C.image_id, spec_fields.of_server(request_specs.c.image_id))
_HOME = instance_mappings.alias("home")
_SERVER = sa.func.coalesce(_C.server_uuid, _C.instance_uuid)
"""The uuid that users know."""

_DESCRIPTION = spec_fields.description_of()
_KEY_NAME = spec_fields.key_name()
_HOSTNAME = sa.func.coalesce(_C.hostname, _C.name)
"""Its own, or the name in a row of an older release that the online migration has not reached."""


def _addresses_text(*, version: int) -> sa.ScalarSelect[Any]:
    """The addresses of the server of this IP version, in one text of lines; NULL: it has none."""
    of = addresses.c
    is_v6 = of.address.contains(":")
    of_server = (of.server_uuid == _SERVER, is_v6 if version == 6 else sa.not_(is_v6))
    return sa.select(sa.func.aggregate_strings(of.address, "\n")).where(*of_server).correlate(instance_mappings).scalar_subquery()


_HAS_CONFIG_DRIVE = sa.func.coalesce(spec_fields.of_server(request_specs.c.config_drive), sa.false())

SEARCH_TIME_S = 3.0
"""Seconds that one list may search for a regular expression."""
SEARCHED_SERVERS_LIMIT = 250_000
"""Servers that one list may search for a regular expression."""
_FIRST_SEARCH_PAGE, _SEARCH_PAGE = 1000, 20_000
"""Candidates that one statement of a search reads: the first statement, and each later one."""
_ROWS_PER_TIME_CHECK = 100
"""Candidates between two checks of the time."""
_TOO_MANY = (
    "This list searches for a regular expression in too many servers. Name a project, a state or a host, or give marker and limit."
)

_IP_V4, _IP_V6 = _addresses_text(version=4), _addresses_text(version=6)

SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "created_at": _C.created_at,
    "updated_at": _C.updated_at,
    "launched_at": _C.launched_at,
    "terminated_at": _C.terminated_at,
    "display_name": _C.name,
    "hostname": _HOSTNAME,
    "host": _C.host,
    "node": _C.node,
    "availability_zone": _C.availability_zone,
    "vm_state": phases.VM_STATE,
    "task_state": phases.TASK_STATE,
    "power_state": phases.POWER_STATE,
    "launch_index": _C.launch_index,
    "project_id": _C.project_id,
    "user_id": _C.user_id,
    "uuid": _SERVER,
    "image_ref": _IMAGE,
    "instance_type_id": spec_fields.of_server(request_specs.c.flavor_id),
    "key_name": _KEY_NAME,
    "display_description": _DESCRIPTION,
    "locked_by": _C.locked_by,
    "locked": sa.case((_C.locked_by.is_not(None), 1), else_=0),
    "config_drive": sa.case((sa.true() == _HAS_CONFIG_DRIVE, 1), else_=0),
}
"""Sort keys by their name in the Compute API."""

_NEVER_NULL = frozenset({"power_state", "config_drive", "locked"})


class ServerQuery(Object, frozen=True, kw_only=True):
    """The filters, order and page of a list. A server must pass all filters; times are seconds since the epoch.

    ``name``, ``hostname``, ``description``: regular expressions (``regexes.check_pattern``), found anywhere in the text. ``ip``,
    ``ip6``: the same, in one of the server's IPv4 or IPv6 addresses.
    ``batch_id``: the batch that the server was booted in, whichever body is shown.
    ``skip_soft_deleted``: they are listed only if deleted servers are.
    ``phases``: see ``objects.phase``; ``vm_states``, ``task_states``, ``power_states``: as the Compute API has them.
    ``locked``: whether anybody has locked the server.
    ``tags``: has all of them; ``tags_any``: has at least one; ``not_tags``: not all; ``not_tags_any``: none.
    ``sort``: pairs of a key of SORT_KEYS and "asc" or "desc".
    ``marker``: uuid of a server; the page begins after its current position.
    ``position``: sort values of the marker, one for each key, from when it was listed; replaces its current position.
    """

    project_id: str | None = None
    user_id: str | None = None
    batch_id: str | None = None
    name: str | None = None
    hostname: str | None = None
    description: str | None = None
    ip: str | None = None
    ip6: str | None = None
    phases: tuple[str, ...] = ()
    vm_states: tuple[str, ...] | None = None
    task_states: tuple[str, ...] | None = None
    power_states: tuple[int, ...] | None = None
    host: str | None = None
    node: str | None = None
    availability_zone: str | None = None
    changed_since: float | None = None
    changed_before: float | None = None
    include_deleted: bool = False
    skip_soft_deleted: bool = False
    only_deleted: bool = False
    uuids: tuple[str, ...] = ()
    launch_index: int | None = None
    flavor_id: str | None = None
    image_id: str | None = None
    key_name: str | None = None
    config_drive: bool | None = None
    locked: bool | None = None
    locked_by: str | None = None
    tags: tuple[str, ...] = ()
    tags_any: tuple[str, ...] = ()
    not_tags: tuple[str, ...] = ()
    not_tags_any: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    sort: tuple[tuple[str, str], ...] = (("created_at", "desc"),)
    limit: int = 1000
    marker: str | None = None
    position: tuple[Value, ...] | None = None


class _Key(Object, frozen=True, kw_only=True):
    """One sort key."""

    expression: Any
    descending: bool
    nullable: bool


class Listed(Object, frozen=True, kw_only=True):
    """A page. ``positions``: the sort values of its servers in the same order, for ``ServerQuery.position``."""

    servers: tuple[Server, ...]
    positions: tuple[tuple[Value, ...], ...]


def list_(tx: ApiTransaction, query: ServerQuery) -> list[Server]:
    """The servers of a page. Raises as ``list_page`` does."""
    return list(list_page(tx, query).servers)


def list_page(tx: ApiTransaction, query: ServerQuery) -> Listed:
    """A page of servers after the marker, in the query's order; the uuid breaks ties and NULL is the lowest value.

    Raises ``errors.NotFound`` for an unknown marker and ``errors.Invalid`` for an unknown sort key. Raises ``errors.TooCostly`` if
    a regular expression had to be searched for in too many servers.
    """
    keys = [_key_named(name, direction) for name, direction in query.sort]
    labels = [key.expression.label(f"sort_{number}") for number, key in enumerate(keys)]
    ordered = [*keys, _Key(expression=_C.instance_uuid, descending=bool(keys) and keys[-1].descending, nullable=False)]
    after: tuple[Value, ...] | None = None
    if query.marker is not None:
        body = tx.execute(_BODY, {"server": query.marker}).scalar() or query.marker
        position = query.position if query.position is not None else _marker_values(tx, query, body, labels)
        after = (*position, body)
    everything = _in_order(
        sa.select(instance_mappings, BOOT_BATCH, *labels).where(*_conditions_of(query)).limit(query.limit), ordered
    )
    width = len(labels)
    servers: list[tuple[Server, tuple[Value, ...]]] = []
    while True:
        statement = everything
        if _searched_texts(query):
            statement = statement.where(_C.instance_uuid.in_(_search_uuids(tx, query, ordered, after)))
        elif after is not None:
            statement = statement.where(_is_after(ordered, after))
        rows = tx.execute(statement).all()
        servers += convert_readable(rows, lambda row: (server_of(row), tuple(row[-width:]) if width else ()), instance_mappings)
        if len(rows) < query.limit or len(servers) >= query.limit:  # else rows that cannot be read have taken places of others
            break
        after = (*rows[-1][len(rows[-1]) - width :], rows[-1].instance_uuid)
    return Listed(servers=tuple(server for server, _ in servers), positions=tuple(position for _, position in servers))


def _in_order(statement: sa.Select[Any], keys: Sequence[_Key]) -> sa.Select[Any]:
    for key in keys:
        if key.nullable:  # database servers differ in where they sort NULL
            rank = sa.case((key.expression.is_(None), 0), else_=1)
            statement = statement.order_by(rank.desc() if key.descending else rank.asc())
        statement = statement.order_by(key.expression.desc() if key.descending else key.expression.asc())
    return statement


def _searched_texts(query: ServerQuery) -> list[tuple[str, sa.ColumnElement[Any]]]:
    """The regular expressions, each with what it is searched for in: lines of text."""
    texts = (
        (query.name, _C.name),
        (query.hostname, _HOSTNAME),
        (query.description, _DESCRIPTION),
        (query.ip, _IP_V4),
        (query.ip6, _IP_V6),
    )
    return [(pattern, text) for pattern, text in texts if pattern is not None]


def _search_uuids(tx: ApiTransaction, query: ServerQuery, keys: Sequence[_Key], after: tuple[Value, ...] | None) -> list[str]:
    """The uuids of the first ``query.limit`` servers after ``after`` that match the query's regular expressions.

    It reads candidates that pass all other filters in the list's order, page by page. Raises ``errors.TooCostly`` after
    SEARCH_TIME_S or SEARCHED_SERVERS_LIMIT candidates, to bound the time.
    """
    searched = _searched_texts(query)
    patterns = [pattern for pattern, _ in searched]
    texts = [text.label(f"text_{number}") for number, (_, text) in enumerate(searched)]
    labels = [key.expression.label(f"sort_{number}") for number, key in enumerate(keys)]
    # LIKE ignores case on SQLite: that leaves more candidates, never fewer
    likely = [text.contains(held, autoescape=True) for pattern, text in searched if (held := regexes.literal_part(pattern))]
    statement = _in_order(sa.select(*texts, *labels).where(*_conditions_of(query), *likely), keys)
    matches: list[str] = []
    end = time.monotonic() + SEARCH_TIME_S
    size, read = min(max(query.limit, _FIRST_SEARCH_PAGE), _SEARCH_PAGE), 0
    while True:
        rows = tx.execute((statement if after is None else statement.where(_is_after(keys, after))).limit(size)).all()
        for number, row in enumerate(rows):
            if number % _ROWS_PER_TIME_CHECK == 0 and time.monotonic() > end:
                raise errors.TooCostly(_TOO_MANY)
            if all(regexes.is_found(pattern, text) for pattern, text in zip(patterns, row[: len(texts)], strict=True)):
                matches.append(row[-1])
                if len(matches) == query.limit:
                    return matches
        read += len(rows)
        if len(rows) < size:
            return matches
        if read >= SEARCHED_SERVERS_LIMIT:
            raise errors.TooCostly(_TOO_MANY)
        after, size = tuple(rows[-1][len(texts) :]), _SEARCH_PAGE


BOOT_BATCH = (
    sa.select(_HOME.c.batch_id)
    .where(_HOME.c.instance_uuid == _C.server_uuid)
    .correlate(instance_mappings)
    .scalar_subquery()
    .label("boot_batch")
)
"""The batch that a server was booted in, of a row of a later body; NULL of others."""
_BODY = sa.select(_C.body_uuid).where(_C.instance_uuid == sa.bindparam("server"))
"""The body of a server, of which the list has the row; NULL: its first."""


def _marker_values(tx: ApiTransaction, query: ServerQuery, body: str, labels: Sequence[sa.Label[Any]]) -> tuple[Value, ...]:
    """The marker's current sort values. It need not pass the filters, because a server may leave the list between two pages."""
    marker_row = tx.execute(sa.select(_C.project_id, *labels).where(_C.instance_uuid == body)).one_or_none()
    if marker_row is None or query.project_id not in (None, marker_row.project_id):
        raise errors.NotFound(f"marker: server {query.marker} not found")
    return tuple(marker_row[1:])


def _conditions_of(query: ServerQuery) -> list[sa.ColumnElement[bool]]:
    return [_C.hidden == sa.false(), *_life_conditions(query), *_summary_conditions(query), *_asked_for(query)]


def _life_conditions(query: ServerQuery) -> list[sa.ColumnElement[bool]]:
    """Filters by state. A deleted server counts as deleted even before its cell confirms the delete."""
    live, deleted = _C.deleted == sa.false(), _C.deleted == sa.true()  # MariaDB uses no index for IS
    in_state = sa.and_(live, *_state_conditions(query))
    if query.only_deleted:
        return [deleted]
    if not query.include_deleted:
        return [in_state, phases.IS_NOT_SOFT_DELETED] if query.skip_soft_deleted else [in_state]
    if not query.phases:
        return []
    return [sa.or_(in_state, deleted) if "deleted" in query.phases else in_state]


_STATES_OF: dict[str, tuple[str, ...]] = {
    ServerPhase.BUILDING: ("building", "error"),
    ServerPhase.SHELVED_OFFLOADED: ("shelved",),
    ServerPhase.ERROR: ("error", "active"),
}
"""The states of mappings that a phase is possible in; of all other phases of live servers it is active."""


def _state_conditions(query: ServerQuery) -> list[sa.ColumnElement[bool]]:
    """What live servers are at. The states are redundant, but have an index."""
    conditions: list[sa.ColumnElement[bool]] = []
    if query.phases:
        live_phases = [phase for phase in query.phases if phase != ServerPhase.DELETED]
        states = {state for phase in live_phases for state in _STATES_OF.get(phase, ("active",))}
        conditions += [_C.state.in_(sorted(states)), phases.PHASE.in_(live_phases)]
    shown = ((phases.VM_STATE, query.vm_states), (phases.TASK_STATE, query.task_states), (phases.POWER_STATE, query.power_states))
    return conditions + [expression.in_(values) for expression, values in shown if values is not None]


def _summary_conditions(query: ServerQuery) -> list[sa.ColumnElement[bool]]:
    """Filters on columns of the mapping."""
    equal = {
        _C.project_id: query.project_id,
        _C.user_id: query.user_id,
        _C.host: query.host,
        _C.node: query.node,
        _C.availability_zone: query.availability_zone,
        _C.launch_index: query.launch_index,
        _C.locked_by: query.locked_by,
    }
    conditions: list[sa.ColumnElement[bool]] = [column == value for column, value in equal.items() if value is not None]
    if query.batch_id is not None:
        of_boot = (_HOME.c.batch_id == query.batch_id, _HOME.c.server_uuid.is_(None))
        bodies = sa.select(sa.func.coalesce(_HOME.c.body_uuid, _HOME.c.instance_uuid)).where(*of_boot)
        conditions.append(_C.instance_uuid.in_(bodies))
    if query.locked is not None:
        conditions.append(_C.locked_by.is_not(None) if query.locked else _C.locked_by.is_(None))
    if query.changed_since is not None:
        conditions.append(_C.updated_at >= query.changed_since)
    if query.changed_before is not None:
        conditions.append(_C.updated_at <= query.changed_before)
    if query.uuids:
        bodies = sa.select(_HOME.c.body_uuid).where(_HOME.c.instance_uuid.in_(query.uuids))
        conditions.append(sa.or_(_C.instance_uuid.in_(query.uuids), _C.instance_uuid.in_(bodies)))
    return conditions


def _asked_for(query: ServerQuery) -> list[sa.ColumnElement[bool]]:
    """Filters on columns of the request spec, tags and metadata."""
    columns = spec_fields
    conditions: list[sa.ColumnElement[bool]] = []
    if query.flavor_id is not None:
        conditions.append(columns.of_server(request_specs.c.flavor_id) == query.flavor_id)
    if query.key_name is not None:
        conditions.append(_KEY_NAME.in_([query.key_name]))
    if query.image_id is not None:
        conditions.append(_IMAGE.in_([query.image_id]))
    if query.config_drive is not None:
        conditions.append((sa.true() if query.config_drive else sa.false()) == _HAS_CONFIG_DRIVE)
    if query.tags:
        conditions.append(columns.count_tags(query.tags) == len(set(query.tags)))
    if query.tags_any:
        conditions.append(columns.count_tags(query.tags_any) > 0)
    if query.not_tags:
        conditions.append(columns.count_tags(query.not_tags) < len(set(query.not_tags)))
    if query.not_tags_any:
        conditions.append(columns.count_tags(query.not_tags_any) == 0)
    if query.metadata:
        pairs = dict(query.metadata)
        conditions.append(columns.count_metadata(pairs) == len(pairs))
    return conditions


def _key_named(name: str, direction: str) -> _Key:
    if name not in SORT_KEYS:
        raise errors.Invalid(f"sort_key: {name[:40]!r} is not one of {', '.join(sorted(SORT_KEYS))}")
    expression = SORT_KEYS[name]
    nullable = name not in _NEVER_NULL and getattr(expression, "nullable", True)
    return _Key(expression=expression, descending=direction == "desc", nullable=nullable)


def _is_after(keys: Sequence[_Key], values: Sequence[Value]) -> sa.ColumnElement[bool]:
    """Rows that sort after these values: after the first, or equal there and after the next, and so on."""
    clauses: list[sa.ColumnElement[bool]] = []
    equal: list[sa.ColumnElement[bool]] = []
    for key, value in zip(keys, values, strict=True):
        column = key.expression
        if value is None:
            beyond: sa.ColumnElement[bool] = sa.false() if key.descending else column.is_not(None)
            same = column.is_(None)
        else:
            beyond = column > value
            if key.descending:
                beyond = sa.or_(column < value, column.is_(None)) if key.nullable else column < value
            same = column == value
        clauses.append(sa.and_(*equal, beyond))
        equal = [*equal, same]
    first = keys[0]
    behind = sa.or_(*clauses)
    if first.nullable or values[0] is None:
        return behind
    # redundant, but lets the database start its index scan where the page begins
    bound = first.expression <= values[0] if first.descending else first.expression >= values[0]
    return sa.and_(cast("sa.ColumnElement[bool]", bound), behind)


_POWERS = {power.value: power for power in Power}
_TASK_STATES = {state.value: state for state in TaskState}


def image_of_rebuild(row: Any) -> Image | None:
    """The image of the last rebuild; None: there was none. Of one by an older release only its ID and hash are known."""
    if row.image_id is None:
        return None
    image = stored.load_or_none(row.rebuilt_from, Image)
    return image if image is not None and image.id == row.image_id else Image(id=row.image_id, hash_value=row.image_hash or "")


def server_of(row: sa.Row[Any]) -> Server:
    """Convert a row of ``instance_mappings``, which may have ``BOOT_BATCH`` beside it."""
    return Server(
        boot_batch_id=getattr(row, "boot_batch", None) if row.server_uuid else None,
        uuid=row.server_uuid or row.instance_uuid,
        own_uuid=row.instance_uuid if row.server_uuid else None,
        turn=row.turn,
        power=_POWERS.get(row.power, Power.HELD),
        task_number=row.task_number,
        task_state=_TASK_STATES.get(row.task_state, TaskState.FAILED),
        task_fault=row.task_fault,
        task_stored=stored.load_or_none(row.task_stored, StoredContent),
        locked_by=row.locked_by,
        locked_reason=row.locked_reason,
        description=row.description,
        metadata=stored.load_or_none(row.metadata, dict[str, str]),
        tags=stored.load_or_none(row.tags, tuple[str, ...]),
        user_version=row.user_version,
        hostname=row.hostname,
        access_ip_v4=row.access_ip_v4,
        access_ip_v6=row.access_ip_v6,
        auto_disk_config=row.auto_disk_config,
        key_name=row.key_name,
        public_key=row.public_key,
        image_id=row.image_id,
        image_hash=row.image_hash,
        rebuilt_from=image_of_rebuild(row),
        batch_id=row.batch_id,
        project_id=row.project_id,
        user_id=row.user_id,
        name=row.name,
        state=row.state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        cell_uuid=row.cell_uuid,
        deleted=row.deleted,
        launch_index=row.launch_index,
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        mapped_at=row.mapped_at,
        deleted_at=row.deleted_at,
        deleted_by=row.deleted_by,
        deleted_by_user=row.deleted_by_user,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=row.fault,
    )
