"""Turn a validated body into a batch of build requests: look up everything it names, then store it in one transaction."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from uuid import uuid4

import msgspec

from api.http import policies
from api.http.call import Call
from api.http.validation import checked_metadata
from api.lookup import ports, quota_limits, security_groups
from api.lookup.boot_request import BootRequest, check_personality
from api.lookup.boot_secrets import BootSecretsPolicy
from api.lookup.catalog import Catalog
from api.lookup.image_needs import ImageNeeds
from api.lookup.public_keys import named_public_key
from api.lookup.quota_limits import LimitsInForce
from api.opts import ApiSettings
from db.api.deployment import host_mappings
from db.api.queue import accepting, holds
from db.api.queue.accepting import Accepted, ClientToken, NewBatch, NewServer
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
        self._caches = (*catalog.caches, limits.cache)
        self._boot_secrets = boot_secrets
        self._group_commit: GroupCommit[NewBatch, Accepted] = GroupCommit(
            self._store_batches, window=GATHER_WINDOW_S, patient=False
        )

    def accept_batch(self, call: Call, boot: BootRequest, token: ClientToken | None, hold_seconds: int = 0) -> AcceptedBatch:
        """Store the batch. Raises errors.Invalid and errors.Forbidden, naming the field, and errors.OverQuota.

        It is judged by what is cached, and the transaction checks that this was in force. Otherwise, and before a refusal, it is
        judged once more, by what is in force since the request came.
        ``hold_seconds``: it is held for so long; 0: it is built at once.
        If the ``token`` was used before: errors.KeyReused for a different request, errors.Conflict if its servers are purged.
        """
        # First, so that whatever is looked up later is as new as these epochs, or newer.
        known = epochs.sum_judging({name: number for cache in self._caches for name, number in cache.loaded_epochs.items()})
        try:
            return self._accept_once(msgspec.structs.replace(call, since=-math.inf), boot, token, hold_seconds, known)
        except epochs.Superseded:
            pass
        except (errors.Invalid, errors.Forbidden, errors.OverQuota, errors.Conflict):
            if epochs.sum_judging(self._catalog.epochs_in_force(call)) == known:
                raise
        return self._accept_once(call, boot, token, hold_seconds, None)

    def _accept_once(
        self, call: Call, boot: BootRequest, token: ClientToken | None, hold_seconds: int, judged_by: int | None
    ) -> AcceptedBatch:
        boot_secrets = self._boot_secrets.complete_secrets(boot.secrets, "server", generate=not boot.wants_reservation)
        batch = self.prepare_batch(call, boot, boot_secrets, judged_by)
        began = time.time()
        if hold_seconds:
            now = self._database.current_time()
            batch = msgspec.structs.replace(batch, token=token, held_until=now + hold_seconds)
            accepted = self._database.write(_accept_held, batch, now, self._settings.max_holds)
        elif token is None:
            accepted = self._group_commit(batch)
        else:
            [accepted] = self._store_batches([msgspec.structs.replace(batch, token=token)])
        if accepted.replayed:
            password = self._boot_secrets.repeated_password(accepted.batch_id, accepted.sealed)
        else:
            metrics.observe_since(metrics.STAGE["accept"], began)
            metrics.ACCEPTED.inc(len(accepted.uuids))
            password = self._boot_secrets.returned_password(boot_secrets)
        return AcceptedBatch(accepted=accepted, admin_pass=password)

    def _store_batches(self, batches: Sequence[NewBatch]) -> list[Accepted]:
        """One transaction for concurrent requests. Raises if one of several is refused; the caller then retries each alone."""
        return self._database.write(accepting.accept_batch, batches, self._database.current_time())

    def prepare_batch(self, call: Call, boot: BootRequest, boot_secrets: BootSecrets, judged_by: int | None = None) -> NewBatch:
        """The batch to store, with everything that the request names looked up. Writes nothing.

        ``boot_secrets``: of its guests. ``judged_by``: see ``Admission``.
        Raises errors.Invalid and errors.Forbidden, naming the field.
        """
        context = call.context
        limits = self._limits.read_layers(call)
        if boot_secrets.files:
            check_personality(boot_secrets.files, limits.in_force)
        batch_id = context.request_id.removeprefix("req-")  # so that the request ID leads to the batch
        sealed = self._boot_secrets.seal_secrets(batch_id, boot_secrets)
        spec = self._build_spec(call, boot, batch_id, limits.in_force, has_secrets=sealed is not None)
        named_ports = [] if isinstance(boot.networks, str) else [wanted.port for wanted in boot.networks if wanted.port is not None]
        project_ports = self._ports_of(context.project_id, named_ports) if named_ports else {}
        planned = ports.plan_ports(boot.networks, boot.count, self._catalog.networks_by_uuid(call), project_ports)
        networks = ",".join(port.network.uuid for port in planned) or "none"
        properties = msgspec.structs.replace(spec.properties, networks=networks)
        return NewBatch(
            spec=msgspec.structs.replace(spec, properties=properties),
            servers=tuple(
                NewServer(uuid=str(uuid4()), name=name, launch_index=index)
                for index, name in enumerate(boot.server_names(boot.count))
            ),
            deadline=self._database.current_time() + self._settings.build_timeout,
            admission=Admission(
                limits=quota_limits.of_servers(limits.defaults),
                at_least=boot.min_count,
                group_members=limits.of_project["server_group_members"],
                user_group_members=limits.of_user.get("server_group_members", UNLIMITED),
                unique_names=self._settings.unique_server_names,
                judged_by=judged_by,
            ),
            sealed=sealed,
            ports=planned,
        )

    def dry_run(self, call: Call, boot: BootRequest) -> ForeseenBatch:
        """What ``accept_batch`` would store, and why it would not. Writes nothing. Raises what ``prepare_batch`` does."""
        boot_secrets = self._boot_secrets.complete_secrets(boot.secrets, "server", generate=not boot.wants_reservation)
        batch = self.prepare_batch(call, boot, boot_secrets)
        count, refusals = self._database.read(accepting.foresee_accept, batch)
        fences = {server.uuid: 1 for server in batch.servers[:count]}
        spec = msgspec.structs.replace(batch.spec, num_instances=count, fences=fences)
        return ForeseenBatch(spec=spec, names=tuple(boot.server_names(count)), refusals=tuple(refusals))

    def _build_spec(
        self, call: Call, boot: BootRequest, batch_id: str, limits: Mapping[str, int], *, has_secrets: bool
    ) -> RequestSpec:
        """``limits``: those of the caller, by name."""
        context, hints = call.context, boot.hints
        zone = boot.availability_zone
        destination = ZoneAndHost() if zone is None else self._parse_destination(call, zone)
        names_host = boot.host is not None or boot.hypervisor_hostname is not None
        requested = self._requested_destination(call, boot, destination) if names_host else None
        for name in boot.security_groups:
            if not security_groups.is_group_name(context.project_id, name):
                raise errors.Invalid(f"server.security_groups: security group {name[:80]!r} could not be found")
        if hints:
            try:
                scheduler_hints.check_hints(hints)
            except errors.Invalid as error:
                raise errors.Invalid(f"{boot.hints_field}.{error}") from None
        if hints.get("ignore_hosts") and not call.is_allowed(policies.FORCED_HOST):
            raise errors.Forbidden(f"{boot.hints_field}.ignore_hosts: policy does not let you name hosts")
        flavor = self.find_flavor(call, boot.flavor, "server.flavorRef")
        checked_metadata(boot.properties.metadata, limits["metadata_items"])
        key_name = boot.properties.key_name
        public_key = named_public_key(self._database, call, key_name, "server") if key_name is not None else None
        spec = RequestSpec(
            batch_id=batch_id,
            request_id=context.request_id,
            project_id=context.project_id,
            user_id=context.user_id,
            name=boot.name,
            flavor=flavor,
            image=self._images.at_boot(call, boot.image_id, flavor),
            num_instances=boot.count,
            min_count=boot.min_count if boot.min_count < boot.count and not boot.all_or_nothing else None,
            availability_zone=destination.zone,
            group=self._find_group(call, hints["group"], boot.hints_field) if "group" in hints else None,
            ignore_hosts=hints.get("ignore_hosts", ()),
            force_hosts=destination.hosts,
            force_nodes=destination.nodes,
            requested_destination=requested,
            scheduler_hints=hints,
            # A retry on another host would ignore the forced host.
            max_attempts=1 if destination.hosts or destination.nodes else self._settings.max_attempts,
            properties=msgspec.structs.replace(boot.properties, public_key=public_key),
            has_secrets=has_secrets,
            all_or_nothing=boot.all_or_nothing,
        )
        if scheduler_hints.FAULT_DOMAIN in hints:
            self._check_fault_domain(spec, f"{boot.hints_field}.{scheduler_hints.FAULT_DOMAIN}")
        return spec

    def _check_fault_domain(self, spec: RequestSpec, field: str) -> None:
        """Raises errors.Invalid where a fault domain has no meaning."""
        if spec.group is None:
            raise errors.Invalid(f"{field}: is of a server group; give the hint group, too")
        if spec.group.policy is GroupPolicy.AFFINITY:
            raise errors.Invalid(f"{field}: a group with the policy affinity runs on one host; it has no fault domains")

    def _ports_of(self, project_id: str, uuids: Collection[str]) -> dict[str, ProjectPort]:
        """Those of these ports that the project has made."""
        found = self._database.read(project_ports.by_uuid, uuids)
        return {uuid: port for uuid, port in found.items() if port.project_id == project_id}

    def find_flavor(self, call: Call, flavor_id: str, field: str) -> Flavor:
        """A flavor by ID or name, as a server keeps it. Raises errors.Invalid, naming the field, if no server may have it."""
        flavor = self._catalog.find_flavor(flavor_id, call)
        if flavor is None or flavor.disabled:
            raise errors.Invalid(f"{field}: {flavor_id[:80]!r} could not be found")
        try:
            extra_specs.check_specs(flavor.extra_specs)
        except errors.Invalid as error:
            raise errors.Invalid(f"{field}: extra spec {error}") from error
        return flavor.of_a_server()

    def _parse_destination(self, call: Call, zone_text: str) -> ZoneAndHost:
        zone, _, rest = zone_text.partition(":")
        host, _, node = rest.partition(":")
        if ":" in zone_text and not call.is_allowed(policies.FORCED_HOST):
            raise errors.Forbidden("server.availability_zone: policy does not let you name a host (zone:host:node)")
        if ":" in node or (":" in zone_text and not (host or node)):
            raise errors.Invalid(f"server.availability_zone: {zone_text[:80]!r} is neither a zone nor zone:host:node")
        if zone and zone != self._settings.default_availability_zone and not self._catalog.has_zone(zone, call):
            raise errors.Invalid(f"server.availability_zone: zone {zone[:80]!r} could not be found")
        if ":" in zone_text:
            self._refuse_unknown("server.availability_zone", host or None, node or None)
        return ZoneAndHost(zone=zone or None, hosts=(host,) if host else (), nodes=(node,) if node else ())

    def _requested_destination(self, call: Call, boot: BootRequest, forced: ZoneAndHost) -> Destination:
        """The host or node asked for, which must pass all filters. Raises errors.Forbidden and errors.Invalid."""
        host, node = boot.host, boot.hypervisor_hostname
        field = "server.host" if host is not None else "server.hypervisor_hostname"
        if not call.is_allowed(policies.REQUESTED_HOST):
            raise errors.Forbidden(f"{field}: policy does not let you ask for a host")
        if forced.hosts or forced.nodes:
            raise errors.Invalid(f"{field}: give either this or a host in availability_zone")
        self._refuse_unknown(field, host, node)
        return Destination(host=host, node=node)

    def _refuse_unknown(self, field: str, host: str | None, node: str | None) -> None:
        """Raises errors.Invalid for a host that is in no cell, and for a node that no such host has."""
        if not self._database.read(host_mappings.is_known, host, node):
            raise errors.Invalid(f"{field}: Compute host {(host or node or '')[:80]} could not be found.")

    def _find_group(self, call: Call, references: tuple[str, ...], field: str) -> ServerGroup:
        if len(references) > 1:
            raise errors.Invalid(f"{field}.group: a server can be in one group only")
        group = self._catalog.find_group(references[0], call)
        if group is None:
            raise errors.Invalid(f"{field}.group: server group {references[0][:80]!r} could not be found; give its UUID")
        return group


def _accept_held(tx: ApiTransaction, batch: NewBatch, now: float, limit: int) -> Accepted:
    """Accept a batch with a hold."""
    [accepted] = accepting.accept_batch(tx, [batch], now)
    if not accepted.replayed:
        spec = batch.spec
        holds.begin_hold(tx, spec.batch_id, spec.project_id, spec.user_id, now, batch.held_until or now, limit)
    return accepted
