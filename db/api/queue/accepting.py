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
from db.api.servers import addresses
from db.api.servers import names as server_names
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.keyed import KeyedDelete
from objects import errors, server_name, stored
from objects.base import Object
from objects.network import PortRequest
from objects.quota import ANY, UNLIMITED, Admission, QuotaUsage, sum_shares
from objects.spec import RequestSpec
from objects.text import hostname_of


class NewServer(Object, frozen=True, kw_only=True):
    uuid: str
    name: str
    launch_index: int = 0


class ClientToken(Object, frozen=True, kw_only=True):
    """A client's key for its request.

    ``digests``: of the request, as ``KEY.DIGEST``, one per known key; the first one is stored.
    """

    value: str
    digests: tuple[str, ...] = ()


class NewBatch(Object, frozen=True, kw_only=True):
    """A batch to accept.

    ``deadline``: when its builds must have ended, in seconds since the epoch.
    ``token``: names the request; a batch with a token is accepted alone. None: every request is a new one.
    ``sealed``: its sealed secrets, if it has any.
    ``ports``: the network interfaces of each server.
    ``held_until``: the end of its hold, in seconds since the epoch, for which the caller adds the row (``holds.begin``);
    None: it is built at once.
    """

    spec: RequestSpec
    servers: tuple[NewServer, ...]
    deadline: float
    token: ClientToken | None = None
    admission: Admission = ANY
    sealed: str | None = None
    ports: tuple[PortRequest, ...] = ()
    held_until: float | None = None

    def __repr__(self) -> str:
        return f"NewBatch({self.spec.batch_id}, {len(self.servers)} servers)"


class Accepted(Object, frozen=True, kw_only=True):
    """An accepted batch.

    ``replayed``: the client token was used before; these are the servers of the first request. ``sealed``: its sealed secrets then,
    while they are stored.
    """

    batch_id: str
    uuids: tuple[str, ...]
    replayed: bool = False
    sealed: str | None = None

    def __repr__(self) -> str:
        return f"Accepted({self.batch_id}, {self.uuids}, replayed={self.replayed})"


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


def accept_batch(tx: ApiTransaction, batches: Sequence[NewBatch], now: float) -> list[Accepted]:
    """Store these batches and charge their projects. Of a batch that is alone, the quota may admit some of the servers.

    For a client token that was used before, return what was accepted then. Raises:

    - ``epochs.Superseded`` if a batch was judged by rows that have changed.
    - ``errors.OverQuota`` if the quotas have no room for all of several batches, although one alone may fit, or for ``at_least``
      servers of a single batch.
    - ``errors.Conflict`` if a uuid or a name is taken, the servers of the token were purged, or a network has too few addresses.
    - ``errors.KeyReused`` if the token was used for another request.

    After any the caller must roll back, and accept each of several batches alone.
    """
    first = batches[0]
    if first.token is not None and (earlier := _replay_token(tx, first.spec, first.token, now)) is not None:
        return [earlier]
    _insert_batches(tx, batches, now)
    # Last, to lock the rows of projects for a short time: other transactions that accept for them wait.
    count = len(first.servers)
    if len(batches) == 1:
        count = quotas.charge_project(tx, first.spec, count, first.admission)
        if count < len(first.servers):
            _cut_batch(tx, first, count, now)
    else:
        judged_by = {batch.admission.judged_by for batch in batches}
        usage = sum_shares(
            (b.spec.project_id, b.spec.user_id, QuotaUsage.of_flavor(b.spec.flavor, len(b.servers))) for b in batches
        )
        for project_id, by_user in usage.items():
            quotas.charge_all(tx, project_id, by_user, first.admission.limits, judged_by)
    if grouped := [batch for batch in batches if batch.spec.group is not None]:
        _refuse_crowds(tx, grouped)
    servers = [first.servers[:count], *(batch.servers for batch in batches[1:])]
    return [
        Accepted(batch_id=batch.spec.batch_id, uuids=tuple(server.uuid for server in its))
        for batch, its in zip(batches, servers, strict=True)
    ]


def foresee_accept(tx: ApiTransaction, arrival: NewBatch) -> tuple[int, list[str]]:
    """How many servers of the batch ``accept_batch`` would take now, and why it would take none. Writes and locks nothing.

    If it would take none, the number is that of all servers.
    """
    spec, count, refusals = arrival.spec, len(arrival.servers), []
    try:
        count = quotas.admitted_count(tx, spec, count, arrival.admission)
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
        server_names.refuse_taken(tx, _name_keys([arrival], count))
    except errors.Conflict as refusal:
        refusals.append(str(refusal))
    return count, refusals


def _name_keys(arrivals: Sequence[NewBatch], count: int | None = None) -> dict[str, str]:
    """The names of the servers by their keys; none if names need not be unique. ``count``: only so many servers of each batch.

    Raises errors.Conflict if two of the servers have one name.
    """
    name_by_key: dict[str, str] = {}
    for arrival in arrivals:
        names = [server.name for server in arrival.servers[:count]]
        if count == 1 < len(arrival.servers):
            names = [arrival.spec.name]
        for name in names:
            key = server_name.name_key(arrival.admission.unique_names, arrival.spec.project_id, name)
            if key is None:
                continue
            if key in name_by_key:
                raise server_name.name_conflict(name)
            name_by_key[key] = name
    return name_by_key


def _refuse_crowds(tx: ApiTransaction, arrivals: Sequence[NewBatch]) -> None:
    """Raises errors.OverQuota if a group of these has too many members now. Batches at the same moment may exceed the limit."""
    groups = [arrival.spec.group.uuid for arrival in arrivals if arrival.spec.group is not None]
    server_groups.refuse_crowds(tx, groups, arrivals[0].admission.group_members)
    for arrival in arrivals:
        if arrival.spec.group is not None and arrival.admission.user_group_members != UNLIMITED:
            spec, most = arrival.spec, arrival.admission.user_group_members
            server_groups.refuse_crowds(tx, [arrival.spec.group.uuid], most, user_id=spec.user_id)


def _insert_batches(tx: ApiTransaction, arrivals: Sequence[NewBatch], now: float) -> None:
    specs: list[dict[str, Any]] = []
    requests: list[dict[str, Any]] = []
    mappings: list[dict[str, Any]] = []
    if keys := _name_keys(arrivals):
        server_names.refuse_taken(tx, keys)
    for arrival in arrivals:
        spec = arrival.spec
        specs.append(
            {"batch_id": spec.batch_id, "spec": stored.dump_value(spec), "created_at": now, **spec_fields.columns_of(spec)}
        )
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
            row["hostname"] = spec.properties.hostname or hostname_of(server.name, server.uuid)
            if keys:
                row["name_key"] = server_name.name_key(arrival.admission.unique_names, spec.project_id, server.name)
            mappings.append(row)
    try:
        with server_names.retry_on_conflict():
            for statement, rows in ((_INSERT_SPEC, specs), (_INSERT_REQUESTS, requests), (_INSERT_MAPPINGS, mappings)):
                tx.execute(statement, rows)
    except DuplicateEntry as error:
        named = ", ".join(arrival.spec.batch_id for arrival in arrivals)
        raise errors.Conflict(f"batch {named}: its uuid, or that of one of its servers, is taken") from error
    spec_fields.label_batches(tx, {arrival.spec.batch_id: arrival.spec for arrival in arrivals})
    secrets.keep_requests(tx, {a.spec.batch_id: a.sealed for a in arrivals if a.sealed is not None}, now)
    for arrival in arrivals:
        if arrival.spec.all_or_nothing and len(arrival.servers) > 1:
            batches.begin_batch(tx, arrival.spec.batch_id, now)
    requests_of_addresses = [addresses.Wanted(servers=tuple(s.uuid for s in a.servers), ports=a.ports) for a in arrivals if a.ports]
    if requests_of_addresses:
        addresses.claim_addresses(tx, requests_of_addresses)


def _cut_batch(tx: ApiTransaction, batch: NewBatch, count: int, now: float) -> None:
    """Delete what was just written for all but the first ``count`` servers."""
    spec, servers = batch.spec, batch.servers
    surplus = sorted(server.uuid for server in servers[count:])
    for delete in (_CUT_REQUESTS, _CUT_MAPPINGS):
        delete(tx, surplus)
    smaller = stored.dump_value(msgspec.structs.replace(spec, num_instances=count))
    tx.execute(sa.update(request_specs).where(request_specs.c.batch_id == spec.batch_id).values(spec=smaller))
    if count == 1:  # a single server gets the plain name, without a number
        hostname = spec.properties.hostname or hostname_of(spec.name, servers[0].uuid)
        tx.execute(_RENAME, {"uuid": servers[0].uuid, "to_name": spec.name, "to_hostname": hostname})
        before, after = (
            server_name.name_key(batch.admission.unique_names, spec.project_id, name) for name in (servers[0].name, spec.name)
        )
        server_names.rename_server(tx, servers[0].uuid, before, after, spec.name)
    if batch.ports:
        addresses.give_back(tx, [server.uuid for server in servers[count:]], now)


def _replay_token(tx: ApiTransaction, spec: RequestSpec, token: ClientToken, now: float) -> Accepted | None:
    """What was accepted for this token before; None if it is new, and stored now."""
    digest = token.digests[0] if token.digests else None
    row = {"project_id": spec.project_id, "token": token.value, "batch_id": spec.batch_id, "created_at": now, "digest": digest}
    if dialect.insert_new(tx, client_tokens, [row]):
        return None
    used = tx.execute(
        sa.select(client_tokens.c.batch_id, client_tokens.c.digest).where(
            client_tokens.c.project_id == spec.project_id, client_tokens.c.token == token.value
        )
    ).one()
    if not _is_digest_of(used.digest, token.digests):
        raise errors.KeyReused("Idempotency-Key: was used for another request; use a new key for each request.")
    query = sa.select(instance_mappings.c.instance_uuid).where(instance_mappings.c.batch_id == used.batch_id)
    uuids = tuple(tx.execute(query.order_by(instance_mappings.c.launch_index)).scalars())
    if not uuids:
        raise errors.Conflict(
            "Idempotency-Key: the servers of this key were deleted and are no longer on record; use a new key to boot others."
        )
    return Accepted(batch_id=used.batch_id, uuids=uuids, replayed=True, sealed=secrets.of_request(tx, used.batch_id))


def _is_digest_of(used: str | None, digests: Sequence[str]) -> bool:
    """Whether the request is the same one. Also true if that is unknown, because the key of the digest is gone."""
    by_key = {digest.partition(".")[0]: digest for digest in digests}
    return used is None or by_key.get(used.partition(".")[0], used) == used
