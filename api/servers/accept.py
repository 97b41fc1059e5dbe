"""Turn a validated body into a batch of build requests: look up everything it names, then store it in one transaction."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from functools import partial
from uuid import uuid4

import msgspec

from api.http import policies
from api.http.call import Call
from api.http.idempotency import ClientKey
from api.lookup import create, ports, security_groups
from api.lookup.boot_secrets import BootSecretsPolicy
from api.lookup.catalog import Catalog
from api.lookup.create import CreateBody, ServerBody
from api.lookup.image_needs import ImageNeeds
from api.lookup.public_keys import named_public_key
from api.lookup.quota_limits import LimitsInForce
from api.opts import ApiSettings
from db import secrets
from db.api.deployment import host_mappings
from db.api.queue import builds, holds
from db.api.queue.builds import Accepted, NewBatch, NewServer
from db.api.rows import epochs
from db.api.servers import ports as project_ports
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors, extra_specs
from objects import hints as scheduler_hints
from objects.base import Object
from objects.destination import Destination
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.port import ProjectPort
from objects.quota import UNLIMITED, Admission
from objects.spec import BootSecrets, RequestSpec
from service import metrics
from service.batching import GroupCommit

GATHER_WINDOW_S = 0.01
"""Seconds that a request waits at most for others to share its transaction, if recent transactions were shared."""


class ZoneAndHost(Object, frozen=True, kw_only=True):
    """The meaning of ``availability_zone``: a zone, and for an administrator (``zone:host:node``) a forced host and node."""

    zone: str | None = None
    hosts: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class AcceptedBatch(Object, frozen=True, kw_only=True):
    """A stored batch, and the admin password to return to the client."""

    accepted: Accepted
    admin_pass: str | None = None

    def __repr__(self) -> str:
        return f"AcceptedBatch({self.accepted!r})"


class ForeseenBatch(Object, frozen=True, kw_only=True):
    """A batch as it would be stored, with the fences of a scheduling call, and the names of its servers in their order.

    ``refusals``: why it would not be accepted, such as by a quota; the batch then has all servers that were asked for.
    """

    spec: RequestSpec
    names: tuple[str, ...]
    refusals: tuple[str, ...] = ()


class Acceptor:
    """Looks up flavors, zones and groups, decides, and writes. It asks no cell and no scheduler."""

    def __init__(
        self,
        settings: ApiSettings,
        database: ApiDatabase,
        catalog: Catalog,
        limits: LimitsInForce,
        boot_secrets: BootSecretsPolicy,
        images: ImageNeeds,
    ) -> None:
        self._settings = settings
        self._images = images
        self._database = database
        self._catalog = catalog
        self._limits = limits
        self._boot_secrets = boot_secrets
        self._group_commit: GroupCommit[NewBatch, Accepted] = GroupCommit(self._accept_all, window=GATHER_WINDOW_S, patient=False)

    def accept(self, call: Call, body: CreateBody, key: ClientKey | None, hold_seconds: int = 0) -> AcceptedBatch:
        """Store the batch. Raises errors.Invalid and errors.Forbidden, naming the field, and errors.OverQuota.

        It is judged by what is cached, and the transaction checks that this was in force. Otherwise, and before a refusal, it is
        judged once more, by what is in force since the request came.
        ``hold_seconds``: it is held for so long; 0: it is built at once.
        If the ``key`` was used before: errors.KeyReused for a different request, errors.Conflict if its servers are purged.
        """
        # First, so that whatever is looked up later is as new as these epochs, or newer.
        known = epochs.total({**self._catalog.epochs, **self._limits.epochs})
        try:
            return self._accept_once(msgspec.structs.replace(call, since=-math.inf), body, key, hold_seconds, known)
        except epochs.Superseded:
            pass
        except (errors.Invalid, errors.Forbidden, errors.OverQuota, errors.Conflict):
            if epochs.total(self._catalog.epochs_in_force(call)) == known:
                raise
        return self._accept_once(call, body, key, hold_seconds, None)

    def _accept_once(
        self, call: Call, body: CreateBody, key: ClientKey | None, hold_seconds: int, judged_by: int | None
    ) -> AcceptedBatch:
        arrival, given = self.prepare(call, body)
        admission = msgspec.structs.replace(arrival.admission, judged_by=judged_by)
        arrival = msgspec.structs.replace(arrival, admission=admission)
        began = time.time()
        if hold_seconds:
            now = self._database.now()
            arrival = msgspec.structs.replace(arrival, held_until=now + hold_seconds)
            accepted, kept = self._database.write(_accept_held, arrival, key, now, self._settings.max_holds)
        elif key is None:
            accepted, kept = self._group_commit(arrival), None
        else:
            accepted, kept = self._database.write(_accept, arrival, key, self._database.now())
        if not accepted.replayed:
            metrics.since(metrics.STAGE["accept"], began)
            metrics.ACCEPTED.inc(len(accepted.uuids))
            return AcceptedBatch(accepted=accepted, admin_pass=self._boot_secrets.answered(given))
        return AcceptedBatch(accepted=accepted, admin_pass=self._boot_secrets.repeated_password(accepted.batch_id, kept))

    def prepare(self, call: Call, body: CreateBody) -> tuple[NewBatch, BootSecrets]:
        """The batch to store, with everything that the body names looked up, and the secrets of its guests. Writes nothing.

        Raises errors.Invalid and errors.Forbidden, naming the field.
        """
        server = body.server
        least, count = create.counts(server, self._settings.max_servers_per_request)
        if server.personality:
            create.check_personality(server.personality, self._limits.in_force(call))
        batch_id = call.context.request_id.removeprefix("req-")  # so that the request ID leads to the batch
        uuids = [str(uuid4()) for _ in range(count)]
        given = self._boot_secrets.given(server)
        sealed = self._boot_secrets.seal(batch_id, given)
        spec = self._spec(call, body, (least, count), batch_id, has_secrets=sealed is not None)
        planned = ports.plan(
            server.networks, count, self._catalog.networks(call), partial(self._project_ports, call.context.project_id)
        )
        spec = msgspec.structs.replace(spec, properties=msgspec.structs.replace(spec.properties, networks=ports.text(planned)))
        servers = [
            NewServer(uuid=uuid, name=name, launch_index=index)
            for index, (uuid, name) in enumerate(zip(uuids, create.names(server, count), strict=True))
        ]
        deadline = self._database.now() + self._settings.build_timeout
        most = self._limits.of(spec.project_id, call)["server_group_members"]
        admission = Admission(
            limits=self._limits.of_servers(call),
            at_least=least,
            group_members=most,
            user_group_members=self._limits.of_user(spec.project_id, spec.user_id, call).get("server_group_members", UNLIMITED),
            unique_names=self._settings.unique_server_names,
        )
        arrival = NewBatch(spec=spec, servers=tuple(servers), deadline=deadline, admission=admission, sealed=sealed, ports=planned)
        return arrival, given

    def dry_run(self, call: Call, body: CreateBody) -> ForeseenBatch:
        """What ``accept`` would store, and why it would not. Writes nothing. Raises what ``prepare`` does."""
        arrival, _ = self.prepare(call, body)
        count, refusals = self._database.read(builds.foresee, arrival)
        names = create.names(body.server, count)
        fences = {server.uuid: 1 for server in arrival.servers[:count]}
        spec = msgspec.structs.replace(arrival.spec, num_instances=count, fences=fences)
        return ForeseenBatch(spec=spec, names=tuple(names), refusals=tuple(refusals))

    def _accept_all(self, arrivals: Sequence[NewBatch]) -> list[Accepted | Exception]:
        """One transaction for concurrent requests. Raises if one of several is refused; the caller then retries each alone.
        Only a request that is alone may be given fewer servers.
        """
        if len(arrivals) > 1:
            return list(self._database.write(builds.accept_all, arrivals, self._database.now()))
        return [self._database.write(_accept, arrival, None, self._database.now())[0] for arrival in arrivals]

    def _spec(self, call: Call, body: CreateBody, counts: tuple[int, int], batch_id: str, *, has_secrets: bool) -> RequestSpec:
        """``counts``: the minimum number of servers, and their number."""
        server, context = body.server, call.context
        least, count = counts
        all_or_nothing = body.all_or_nothing()
        destination = self._destination(call, server.availability_zone)
        requested = self._requested(call, server, destination)
        for group in server.security_groups:
            if not security_groups.names(context.project_id, group.name):
                raise errors.Invalid(f"server.security_groups: security group {group.name[:80]!r} could not be found")
        hints = body.hints()
        _check(hints, body.hints_field)
        flavor = self.flavor(call, create.flavor_ref(server), "server.flavorRef")
        spec = RequestSpec(
            batch_id=batch_id,
            request_id=context.request_id,
            project_id=context.project_id,
            user_id=context.user_id,
            name=server.name,
            flavor=flavor,
            image=self._images.at_boot(call, create.image_id(server), flavor),
            num_instances=count,
            min_count=least if least < count and not all_or_nothing else None,
            availability_zone=destination.zone,
            group=self._group(call, hints.get("group", ()), body.hints_field),
            ignore_hosts=_ignored(call, hints.get("ignore_hosts", ()), body.hints_field),
            force_hosts=destination.hosts,
            force_nodes=destination.nodes,
            requested_destination=requested,
            scheduler_hints=hints,
            # A retry on another host would ignore the forced host.
            max_attempts=1 if destination.hosts or destination.nodes else self._settings.max_attempts,
            properties=create.properties(server, self._key(call, server.key_name), self._limits.in_force(call)["metadata_items"]),
            has_secrets=has_secrets,
            all_or_nothing=all_or_nothing,
        )
        if scheduler_hints.FAULT_DOMAIN in hints:
            self._check_fault_domain(spec, f"{body.hints_field}.{scheduler_hints.FAULT_DOMAIN}")
        return spec

    def _check_fault_domain(self, spec: RequestSpec, field: str) -> None:
        """Raises errors.Invalid where a fault domain has no meaning."""
        if spec.group is None:
            raise errors.Invalid(f"{field}: is of a server group; give the hint group, too")
        if spec.group.policy is GroupPolicy.AFFINITY:
            raise errors.Invalid(f"{field}: a group with the policy affinity runs on one host; it has no fault domains")

    def _project_ports(self, project_id: str, uuids: Collection[str]) -> dict[str, ProjectPort]:
        """Those of these ports that the project has made."""
        found = self._database.read(project_ports.by_uuid, uuids)
        return {uuid: port for uuid, port in found.items() if port.project_id == project_id}

    def _key(self, call: Call, name: str | None) -> str | None:
        return named_public_key(self._database, call, name, "server") if name is not None else None

    def flavor(self, call: Call, flavor_id: str, field: str) -> Flavor:
        """A flavor by ID or name, as a server keeps it. Raises errors.Invalid, naming the field, if no server may have it."""
        flavor = self._catalog.flavor(flavor_id, call)
        if flavor is None or flavor.disabled:
            raise errors.Invalid(f"{field}: {flavor_id[:80]!r} could not be found")
        try:
            extra_specs.check(flavor.extra_specs)
        except errors.Invalid as error:
            raise errors.Invalid(f"{field}: extra spec {error}") from error
        return flavor.of_a_server()

    def _destination(self, call: Call, given: str | None) -> ZoneAndHost:
        if given is None:
            return ZoneAndHost()
        zone, _, rest = given.partition(":")
        host, _, node = rest.partition(":")
        if ":" in given and not call.may(policies.FORCED_HOST):
            raise errors.Forbidden("server.availability_zone: policy does not let you name a host (zone:host:node)")
        if ":" in node or (":" in given and not (host or node)):
            raise errors.Invalid(f"server.availability_zone: {given[:80]!r} is neither a zone nor zone:host:node")
        if zone and zone != self._settings.default_availability_zone and not self._catalog.has_zone(zone, call):
            raise errors.Invalid(f"server.availability_zone: zone {zone[:80]!r} could not be found")
        if ":" in given:
            self._refuse_unknown("server.availability_zone", host or None, node or None)
        return ZoneAndHost(zone=zone or None, hosts=(host,) if host else (), nodes=(node,) if node else ())

    def _requested(self, call: Call, server: ServerBody, forced: ZoneAndHost) -> Destination | None:
        """The host and node asked for, which must pass all filters. Raises errors.Forbidden and errors.Invalid."""
        host, node = server.host, server.hypervisor_hostname
        if host is None and node is None:
            return None
        field = "server.host" if host is not None else "server.hypervisor_hostname"
        if not call.may(policies.REQUESTED_HOST):
            raise errors.Forbidden(f"{field}: policy does not let you ask for a host")
        if forced.hosts or forced.nodes:
            raise errors.Invalid(f"{field}: give either this or a host in availability_zone")
        self._refuse_unknown(field, host, node)
        return Destination(host=host, node=node)

    def _refuse_unknown(self, field: str, host: str | None, node: str | None) -> None:
        """Raises errors.Invalid for a host that is in no cell, and for a node that no such host has."""
        if not self._database.read(host_mappings.is_known, host, node):
            raise errors.Invalid(f"{field}: Compute host {(host or node or '')[:80]} could not be found.")

    def _group(self, call: Call, references: tuple[str, ...], field: str) -> ServerGroup | None:
        if not references:
            return None
        if len(references) > 1:
            raise errors.Invalid(f"{field}.group: a server can be in one group only")
        group = self._catalog.group(references[0], call)
        if group is None:
            raise errors.Invalid(f"{field}.group: server group {references[0][:80]!r} could not be found; give its UUID")
        return group


def _accept(tx: ApiTransaction, arrival: NewBatch, key: ClientKey | None, now: float) -> tuple[Accepted, str | None]:
    """Returns also the sealed secrets if the batch had been accepted before."""
    accepted = builds.accept(
        tx,
        arrival.spec,
        arrival.servers,
        now=now,
        deadline=arrival.deadline,
        token=key.value if key else None,
        digests=key.digests if key else (),
        admission=arrival.admission,
        sealed=arrival.sealed,
        ports=arrival.ports,
        held_until=arrival.held_until,
    )
    return accepted, secrets.of_request(tx, accepted.batch_id) if accepted.replayed else None


def _accept_held(
    tx: ApiTransaction, arrival: NewBatch, key: ClientKey | None, now: float, limit: int
) -> tuple[Accepted, str | None]:
    """The same of a batch with a hold."""
    accepted, kept = _accept(tx, arrival, key, now)
    if not accepted.replayed:
        spec = arrival.spec
        until = arrival.held_until or now
        holds.begin(tx, spec.batch_id, spec.project_id, spec.user_id, now, until, limit)
    return accepted, kept


def _check(given: scheduler_hints.Hints, field: str) -> None:
    try:
        scheduler_hints.check(given)
    except errors.Invalid as error:
        raise errors.Invalid(f"{field}.{error}") from None


def _ignored(call: Call, hosts: tuple[str, ...], field: str) -> tuple[str, ...]:
    if hosts and not call.may(policies.FORCED_HOST):
        raise errors.Forbidden(f"{field}.ignore_hosts: policy does not let you name hosts")
    return hosts
