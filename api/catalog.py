"""Flavors, zones, server groups and networks that a request may name, cached until their epochs change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from api import policies
from api.call import Call
from db.api import aggregates, flavors, networks, server_groups
from db.api.cache import EpochCache, EpochReader
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects.base import Object
from objects.flavor import Flavor
from objects.group import ServerGroup
from objects.network import Network

EPOCH_POLL_INTERVAL_S = 1.0
"""Seconds between two reads of the epochs."""


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
    """Answers from the cache. An unknown name is looked up once more in the database before it is refused."""

    def __init__(self, database: ApiDatabase) -> None:
        reader = EpochReader(database)
        self._offer = EpochCache(reader, ("flavors", "aggregates"), _load_offer, interval=EPOCH_POLL_INTERVAL_S)
        self._groups = EpochCache(reader, ("groups",), _load_groups, interval=EPOCH_POLL_INTERVAL_S)
        self._networks = EpochCache(reader, ("networks",), _load_networks, interval=EPOCH_POLL_INTERVAL_S)

    def flavors(self, call: Call, public: bool | None) -> list[Flavor]:
        """The flavors that the caller may see, as they are now. ``public``: the public ones and those that the caller's project was
        given access to; False: those that are not public; None: all.
        """
        offer = self._offer.refresh()
        found = [flavor for flavor in offer.flavors.values() if _visible(flavor, offer, call)]
        if public:
            return [flavor for flavor in found if flavor.is_public or _was_given(flavor, offer, call)]
        return [flavor for flavor in found if public is None or not flavor.is_public]

    def flavor(self, flavor_id: str, call: Call, *, latest: bool = False) -> Flavor | None:
        """By ID, else by name, because people use flavor names. ``latest``: as it is now, not a second ago."""
        offer = self._offer.refresh() if latest else self._offer.get()
        found = _find_flavor(offer, flavor_id)
        if found is None or not _visible(found, offer, call):
            offer = self._offer.refresh()
            found = _find_flavor(offer, flavor_id)
        return found if found is not None and _visible(found, offer, call) else None

    def has_zone(self, name: str) -> bool:
        if name in self._offer.get().zones:
            return True
        return name in self._offer.refresh().zones

    def has_rack(self, name: str) -> bool:
        return name in self._offer.get().racks or name in self._offer.refresh().racks

    def group(self, reference: str, call: Call) -> ServerGroup | None:
        """A group of the caller's project by uuid: several may have one name. An administrator may name any group."""
        found = _find_group(self._groups.get(), reference, call)
        if found is None:
            self._groups.refresh()
            found = _find_group(self._groups.get(), reference, call)
        return found

    def networks(self, call: Call, wanted: Collection[str] = ()) -> dict[str, Network]:
        """The networks that the caller's project may use, by uuid. ``wanted``: uuids that the answer should have."""
        return self.networks_of(call.context.project_id, wanted)

    def networks_of(self, project_id: str, wanted: Collection[str] = ()) -> dict[str, Network]:
        """The same of this project."""
        every = self._networks.get()
        if any(uuid not in every for uuid in wanted):
            every = self._networks.refresh()
        return {uuid: network for uuid, network in every.items() if network.serves(project_id)}

    def network(self, uuid: str) -> Network | None:
        """This network, whoever may use it."""
        return self._networks.get().get(uuid)


def _load_offer(tx: ApiTransaction) -> Offer:
    every: Sequence[Flavor] = flavors.list_all(tx)
    ordered = sorted(every, key=lambda f: (f.memory_mb, f.vcpus, f.flavor_id))
    known = aggregates.list_all(tx)
    return Offer(
        flavors={f.flavor_id: f for f in ordered},
        flavors_by_name={f.name: f for f in ordered},
        access=flavors.projects_of_all(tx),
        zones=frozenset(each.availability_zone for each in known if each.availability_zone),
        racks=frozenset(each.rack for each in known if each.rack is not None),
    )


def _load_groups(tx: ApiTransaction) -> dict[str, ServerGroup]:
    return {group.uuid: group for group in server_groups.list_all(tx)}


def _load_networks(tx: ApiTransaction) -> dict[str, Network]:
    return {network.uuid: network for network in networks.list_all(tx)}


def _find_flavor(offer: Offer, reference: str) -> Flavor | None:
    return offer.flavors.get(reference) or offer.flavors_by_name.get(reference)


def _visible(flavor: Flavor, offer: Offer, call: Call) -> bool:
    return flavor.is_public or call.may(policies.PRIVATE_FLAVORS) or _was_given(flavor, offer, call)


def _was_given(flavor: Flavor, offer: Offer, call: Call) -> bool:
    return call.context.project_id in offer.access.get(flavor.flavor_id, frozenset())


def _find_group(groups: Mapping[str, ServerGroup], reference: str, call: Call) -> ServerGroup | None:
    group = groups.get(reference)
    if group is None or (group.project_id != call.context.project_id and not call.context.is_admin):
        return None
    return group
