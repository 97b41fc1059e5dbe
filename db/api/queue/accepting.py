"""Accept batches into the durable queue and charge their projects. One transaction accepts one or several whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db import secrets
from db.api.claims import server_groups
from db.api.projects import quotas
from db.api.queue import batches
from db.api.rows import spec_fields
from db.api.rows.tables import build_requests, client_tokens, instance_mappings, request_specs
from db.api.servers import addresses, hostnames
from db.api.servers import names as server_names
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.keyed import KeyedDelete
from objects import errors, server_name, stored
from objects.base import Object
from objects.network import PortRequest
from objects.quota import ANY, UNLIMITED, Admission, QuotaUsage, shares
from objects.spec import RequestSpec


class NewServer(Object, frozen=True, kw_only=True):
    uuid: str
    name: str
    launch_index: int = 0


class NewBatch(Object, frozen=True, kw_only=True):
    """A batch to accept. ``sealed``: its sealed secrets, if it has any. ``ports``: the network interfaces of each server.

    ``held_until``: the end of its hold, in seconds since the epoch; None: it is built at once.
    """

    spec: RequestSpec
    servers: tuple[NewServer, ...]
    deadline: float
    admission: Admission = ANY
    sealed: str | None = None
    ports: tuple[PortRequest, ...] = ()
    held_until: float | None = None

    def __repr__(self) -> str:
        return f"NewBatch({self.spec.batch_id}, {len(self.servers)} servers)"


class Accepted(Object, frozen=True, kw_only=True):
    """An accepted batch. ``replayed``: the client token was used before; these are the servers of the first request."""

    batch_id: str
    uuids: tuple[str, ...]
    replayed: bool = False


_INSERT_SPEC = sa.insert(request_specs)
_INSERT_REQUESTS = sa.insert(build_requests)
_INSERT_MAPPINGS = sa.insert(instance_mappings)
_CUT_REQUESTS = KeyedDelete(build_requests.c.instance_uuid, returning=[build_requests.c.instance_uuid])
_CUT_MAPPINGS = KeyedDelete(instance_mappings.c.instance_uuid, returning=[instance_mappings.c.instance_uuid])
_RENAME = (
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))
    .values(name=sa.bindparam("to_name"), hostname=sa.bindparam("to_hostname"))
)


def accept(
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
    """Store the whole batch and charge its project. For a client token that was used before, return what was accepted then.

    ``digests``: the digest of the request that carries the token, as ``KEY.DIGEST``, one per known key; the first one is stored.
    ``sealed``: the batch's sealed secrets, if it has any. ``ports``: the network interfaces of each server. ``held_until``: the end
    of its hold, for which the caller adds the row (``holds.begin``); None: it is built at once.
    Raises ``epochs.Superseded`` if the batch was judged by rows that have changed.
    Raises ``errors.Conflict`` if a uuid or a name is taken, the servers of the token were purged, or a network has too few
    addresses. Raises ``errors.KeyReused`` if the token was used for another request, and ``errors.OverQuota`` if the quota has no
    room.
    """
    if token is not None and (earlier := _replay(tx, spec, token, digests, now)) is not None:
        return earlier
    arrival = NewBatch(
        spec=spec,
        servers=tuple(servers),
        deadline=deadline,
        admission=admission,
        sealed=sealed,
        ports=tuple(ports),
        held_until=held_until,
    )
    _insert(tx, [arrival], now)
    # Last, to lock the project's row for a short time: other transactions that accept for this project wait for it.
    count = quotas.charge(tx, spec, len(servers), admission)
    if count < len(servers):
        servers = _cut(tx, arrival, count)
        if ports:
            addresses.give_back(tx, [server.uuid for server in arrival.servers[count:]], now)
    _refuse_crowds(tx, [arrival])
    return Accepted(batch_id=spec.batch_id, uuids=tuple(s.uuid for s in servers))


def foresee(tx: ApiTransaction, arrival: NewBatch) -> tuple[int, list[str]]:
    """How many servers of the batch ``accept`` would take now, and why it would take none. Writes and locks nothing.

    If it would take none, the number is that of all servers.
    """
    spec, count, refusals = arrival.spec, len(arrival.servers), []
    try:
        count = quotas.admitted(tx, spec, count, arrival.admission)
    except errors.OverQuota as refusal:
        refusals.append(str(refusal))
    try:
        groups = [spec.group.uuid] if spec.group else []
        server_groups.refuse_crowds(tx, groups, arrival.admission.group_members, count)
        server_groups.refuse_crowds(tx, groups, arrival.admission.user_group_members, count, user_id=spec.user_id)
    except errors.OverQuota as refusal:
        refusals.append(str(refusal))
    try:
        addresses.refuse_shortage(tx, arrival.ports, len(arrival.servers))
    except (errors.Conflict, errors.Invalid) as refusal:
        refusals.append(str(refusal))
    try:
        server_names.refuse_taken(tx, _keys([arrival], count))
    except errors.Conflict as refusal:
        refusals.append(str(refusal))
    return count, refusals


def accept_all(tx: ApiTransaction, arrivals: Sequence[NewBatch], now: float) -> list[Accepted]:
    """Accept several batches without client tokens, if the quotas have room for all of their servers.

    Raises ``errors.OverQuota`` if they have not, although a single batch may fit, ``errors.Conflict``, and ``epochs.Superseded`` if
    one of them was judged by rows that have changed. After any the caller must roll back and accept each batch alone.
    """
    _insert(tx, arrivals, now)
    judged_by = {arrival.admission.judged_by for arrival in arrivals}
    more = shares((a.spec.project_id, a.spec.user_id, QuotaUsage.of(a.spec.flavor, len(a.servers))) for a in arrivals)
    for project_id, by_user in more.items():
        quotas.charge_all(tx, project_id, by_user, arrivals[0].admission.limits, judged_by)
    _refuse_crowds(tx, arrivals)
    return [Accepted(batch_id=a.spec.batch_id, uuids=tuple(server.uuid for server in a.servers)) for a in arrivals]


def _keys(arrivals: Sequence[NewBatch], count: int | None = None) -> dict[str, str]:
    """The names of the servers by their keys; none if names need not be unique. ``count``: only so many servers of each batch.

    Raises errors.Conflict if two of the servers have one name.
    """
    found: dict[str, str] = {}
    for arrival in arrivals:
        names = [server.name for server in arrival.servers[:count]]
        if count == 1 < len(arrival.servers):
            names = [arrival.spec.name]
        for name in names:
            key = server_name.name_key(arrival.admission.unique_names, arrival.spec.project_id, name)
            if key is None:
                continue
            if key in found:
                raise server_name.taken(name)
            found[key] = name
    return found


def _refuse_crowds(tx: ApiTransaction, arrivals: Sequence[NewBatch]) -> None:
    """Raises errors.OverQuota if a server group has too many members now. Batches at the same moment may exceed the limit."""
    groups = [arrival.spec.group.uuid for arrival in arrivals if arrival.spec.group is not None]
    server_groups.refuse_crowds(tx, groups, arrivals[0].admission.group_members)
    for arrival in arrivals:
        if arrival.spec.group is not None and arrival.admission.user_group_members != UNLIMITED:
            spec, most = arrival.spec, arrival.admission.user_group_members
            server_groups.refuse_crowds(tx, [arrival.spec.group.uuid], most, user_id=spec.user_id)


def _insert(tx: ApiTransaction, arrivals: Sequence[NewBatch], now: float) -> None:
    specs: list[dict[str, Any]] = []
    requests: list[dict[str, Any]] = []
    mappings: list[dict[str, Any]] = []
    if keys := _keys(arrivals):
        server_names.refuse_taken(tx, keys)
    for arrival in arrivals:
        spec = arrival.spec
        specs.append({"batch_id": spec.batch_id, "spec": stored.dump(spec), "created_at": now, **spec_fields.columns(spec)})
        common = {"batch_id": spec.batch_id, "created_at": now}
        request = common | {"state": "queued", "lease_until": 0.0, "fence": 0, "deadline": arrival.deadline, "priority": 0}
        request["held_until"] = arrival.held_until
        mapping = common | {
            "deleted": False,
            "fence": 0,
            "seen": 0,
            "project_id": spec.project_id,
            "user_id": spec.user_id,
            "state": "building",
            "availability_zone": spec.availability_zone,
            "updated_at": now,
            "vcpus": spec.flavor.vcpus,
            "memory_mb": spec.flavor.memory_mb,
        }
        requests += [request | {"instance_uuid": s.uuid} for s in arrival.servers]
        for server in arrival.servers:
            row = mapping | {"instance_uuid": server.uuid, "name": server.name, "launch_index": server.launch_index}
            row["hostname"] = hostnames.of(spec, server.name, server.uuid)
            if keys:
                row["name_key"] = server_name.name_key(arrival.admission.unique_names, spec.project_id, server.name)
            mappings.append(row)
    try:
        with server_names.meeting():
            for statement, rows in ((_INSERT_SPEC, specs), (_INSERT_REQUESTS, requests), (_INSERT_MAPPINGS, mappings)):
                tx.execute(statement, rows)
    except DuplicateEntry as error:
        named = ", ".join(arrival.spec.batch_id for arrival in arrivals)
        raise errors.Conflict(f"batch {named}: its uuid, or that of one of its servers, is taken") from error
    spec_fields.label(tx, {arrival.spec.batch_id: arrival.spec for arrival in arrivals})
    secrets.keep_requests(tx, {a.spec.batch_id: a.sealed for a in arrivals if a.sealed is not None}, now)
    for arrival in arrivals:
        if arrival.spec.all_or_nothing and len(arrival.servers) > 1:
            batches.begin(tx, arrival.spec.batch_id, now)
    wanted = [addresses.Wanted(servers=tuple(s.uuid for s in a.servers), ports=a.ports) for a in arrivals if a.ports]
    if wanted:
        addresses.claim(tx, wanted)


def _cut(tx: ApiTransaction, arrival: NewBatch, count: int) -> Sequence[NewServer]:
    """Delete the rows just written for all but the first ``count`` servers; return the servers that stay."""
    spec, servers = arrival.spec, arrival.servers
    surplus = sorted(server.uuid for server in servers[count:])
    for delete in (_CUT_REQUESTS, _CUT_MAPPINGS):
        delete(tx, surplus)
    smaller = stored.dump(msgspec.structs.replace(spec, num_instances=count))
    tx.execute(sa.update(request_specs).where(request_specs.c.batch_id == spec.batch_id).values(spec=smaller))
    if count == 1:  # a single server gets the plain name, without a number
        hostname = hostnames.of(spec, spec.name, servers[0].uuid)
        tx.execute(_RENAME, {"uuid": servers[0].uuid, "to_name": spec.name, "to_hostname": hostname})
        before, after = (
            server_name.name_key(arrival.admission.unique_names, spec.project_id, name) for name in (servers[0].name, spec.name)
        )
        server_names.rename(tx, servers[0].uuid, before, after, spec.name)
    return servers[:count]


def _replay(tx: ApiTransaction, spec: RequestSpec, token: str, digests: Sequence[str], now: float) -> Accepted | None:
    digest = digests[0] if digests else None
    row = {"project_id": spec.project_id, "token": token, "batch_id": spec.batch_id, "created_at": now, "digest": digest}
    if dialect.insert_new(tx, client_tokens, [row]):
        return None
    used = tx.execute(
        sa.select(client_tokens.c.batch_id, client_tokens.c.digest).where(
            client_tokens.c.project_id == spec.project_id, client_tokens.c.token == token
        )
    ).one()
    if not _is_digest_of(used.digest, digests):
        raise errors.KeyReused("Idempotency-Key: was used for another request; use a new key for each request.")
    query = sa.select(instance_mappings.c.instance_uuid).where(instance_mappings.c.batch_id == used.batch_id)
    uuids = tuple(tx.execute(query.order_by(instance_mappings.c.launch_index)).scalars())
    if not uuids:
        raise errors.Conflict(
            "Idempotency-Key: the servers of this key were deleted and are no longer on record; use a new key to boot others."
        )
    return Accepted(batch_id=used.batch_id, uuids=uuids, replayed=True)


def _is_digest_of(used: str | None, digests: Sequence[str]) -> bool:
    """Whether the request is the same one. Also true if that is unknown, because the key of the digest is gone."""
    by_key = {digest.partition(".")[0]: digest for digest in digests}
    return used is None or by_key.get(used.partition(".")[0], used) == used
