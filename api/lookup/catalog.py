"""Flavors, zones, server groups and networks that a request may name, cached until their epochs change.

Every answer is as new as the request, ``Call.since``. A boot looks only if the transaction that accepts it finds newer epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.http import policies
from api.http.call import Call
from db.api.claims import server_groups
from db.api.deployment import aggregates
from db.api.projects import flavors
from db.api.rows.cache import EpochCache, EpochReader
from db.api.rows.epochs import Epoch
from db.api.servers import networks
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.flavor import Flavor
from objects.group import ServerGroup
from objects.network import Network


class Offer(Object, frozen=True, kw_only=True):
    """Flavors by ID, sorted by size, and by name; and the names of the zones and racks of aggregates.

    ``access``: by ID of a flavor, the projects that may use it although it is not public.
    """

    flavors: dict[str, Flavor]
    flavors_by_name: dict[str, Flavor]
    access: dict[str, frozenset[str]]
    zones: frozenset[str]
    racks: frozenset[str]


class Catalog:
    """Answers from the cache, with one statement for each request."""

    def __init__(self, reader: EpochReader) -> None:
        self._reader = reader
        self._offer = EpochCache(reader, (Epoch.FLAVORS, Epoch.AGGREGATES), _load_offer)
        self._groups = EpochCache(reader, (Epoch.GROUPS,), _load_groups)
        self._networks = EpochCache(reader, (Epoch.NETWORKS,), _load_networks)
        self.caches: tuple[EpochCache[Any], ...] = (self._offer, self._groups, self._networks)
        """All that the catalog answers from: it is as new as their epochs, or newer."""

    def epochs_in_force(self, call: Call) -> Mapping[str, int]:
        """All epochs, as of the request. Raises DatabaseUnavailable."""
        return self._reader.read(call.since)[0]

    def list_flavors(self, call: Call, public: bool | None) -> list[Flavor]:
        """The flavors that the caller may see. ``public``: the public ones and those that the caller's project was
        given access to; False: those that are not public; None: all.
        """
        offer = self._offer.refresh_value(call.since)
        visible = [flavor for flavor in offer.flavors.values() if _is_visible(flavor, offer, call)]
        if public:
            return [flavor for flavor in visible if flavor.is_public or _was_given(flavor, offer, call)]
        return [flavor for flavor in visible if public is None or not flavor.is_public]

    def find_flavor(self, flavor_id: str, call: Call) -> Flavor | None:
        """By ID, else by name, because people use flavor names."""
        offer = self._offer.refresh_value(call.since)
        flavor = offer.flavors.get(flavor_id) or offer.flavors_by_name.get(flavor_id)
        return flavor if flavor is not None and _is_visible(flavor, offer, call) else None

    def has_zone(self, name: str, call: Call) -> bool:
        return name in self._offer.refresh_value(call.since).zones

    def has_rack(self, name: str, call: Call) -> bool:
        return name in self._offer.refresh_value(call.since).racks

    def find_group(self, reference: str, call: Call) -> ServerGroup | None:
        """A group of the caller's project by uuid: several may have one name. An administrator may name any group."""
        group = self._groups.refresh_value(call.since).get(reference)
        if group is None or (group.project_id != call.context.project_id and not call.context.is_admin):
            return None
        return group

    def networks_by_uuid(self, call: Call, project_id: str | None = None) -> dict[str, Network]:
        """The networks that the project may use, by uuid. ``project_id`` None: the caller's."""
        project_id = call.context.project_id if project_id is None else project_id
        return {
            uuid: network
            for uuid, network in self._networks.refresh_value(call.since).items()
            if network.serves_project(project_id)
        }

    def find_network(self, uuid: str, call: Call) -> Network | None:
        """This network, whoever may use it."""
        return self._networks.refresh_value(call.since).get(uuid)


def _load_offer(tx: ApiTransaction) -> Offer:
    every: Sequence[Flavor] = flavors.list_all(tx)
    ordered = sorted(every, key=lambda f: (f.memory_mb, f.vcpus, f.flavor_id))
    known = aggregates.list_all(tx)
    return Offer(
        flavors={f.flavor_id: f for f in ordered},
        flavors_by_name={f.name: f for f in ordered},
        access=flavors.projects_of_all(tx),
        zones=frozenset(aggregate.availability_zone for aggregate in known if aggregate.availability_zone),
        racks=frozenset(aggregate.rack_name for aggregate in known if aggregate.rack_name is not None),
    )


def _load_groups(tx: ApiTransaction) -> dict[str, ServerGroup]:
    return {group.uuid: group for group in server_groups.list_all(tx)}


def _load_networks(tx: ApiTransaction) -> dict[str, Network]:
    return {network.uuid: network for network in networks.list_all(tx)}


def _is_visible(flavor: Flavor, offer: Offer, call: Call) -> bool:
    return flavor.is_public or call.is_allowed(policies.PRIVATE_FLAVORS) or _was_given(flavor, offer, call)


def _was_given(flavor: Flavor, offer: Offer, call: Call) -> bool:
    return call.context.project_id in offer.access.get(flavor.flavor_id, frozenset())
