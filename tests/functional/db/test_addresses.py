"""Addresses of servers: claimed with the accept, kept while the server lives, freed with its last body; on every server."""

from __future__ import annotations

import contextlib
import threading

import pytest
import sqlalchemy as sa

from db.api.queue import leases
from db.api.queue.accepting import NewBatch
from db.api.queue.accepting import accept_batch as accept_batches
from db.api.rows.tables import addresses as address_table
from db.api.rows.tables import instance_mappings
from db.api.servers import addresses, mappings, networks
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.feed import EventKind
from objects.network import Network, PortRequest, Subnet
from objects.quota import Admission, QuotaLimits
from objects.spec import ServerProperties
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, LEASE, NOW, Queue, servers
from tests.support.moves import Moves
from tests.support.pools import accept_on, addresses_of, empty_pools, make_network, ports_of, used
from tests.support.transactions import run_threads

SMALL_POOL = "10.0.0.0/29"
"""Six addresses, one of which is the gateway's."""


@pytest.fixture
def queue(database: Database) -> Queue:
    empty_pools(database)
    return Queue(database)


@pytest.fixture
def moves(queue: Queue) -> Moves:
    return Moves(queue)


def give(moves: Moves, server: str, network: Network) -> list[str]:
    """As if the server had been accepted with an interface."""
    wanted = addresses.Wanted(servers=(server,), ports=(PortRequest(network=network),))
    moves.database.write(addresses.claim_addresses, [wanted])
    return addresses_of(moves.database, [server])


# -- claims ----------------------------------------------------------------------------------------------------------------------


def test_each_server_gets_one_address_of_each_pool(queue: Queue) -> None:
    network = make_network(queue.database, "10.1.0.0/24", "fd00::/120")
    uuids = accept_on(queue.database, network, 20)
    found = ports_of(queue.database, *uuids)
    assert sorted(found) == sorted(uuids)
    every = addresses_of(queue.database, uuids)
    assert len(set(every)) == len(every) == 40
    assert not {"10.1.0.0", "10.1.0.1", "10.1.0.255", "fd00::", "fd00::1"} & set(every)
    macs = {port.mac for ports in found.values() for port in ports}
    assert len(macs) == 20
    [port] = found[uuids[0]]
    assert port.mac.startswith("fa:16:3e:")
    assert (port.network_id, port.network, port.physical_network, port.mtu) == (network.uuid, network.name, "physnet1", 1450)
    assert [(each.ip_version, each.prefix, each.gateway, each.dns) for each in port.addresses] == [
        (4, 24, "10.1.0.1", ("9.9.9.9",)),
        (6, 120, "fd00::1", ("9.9.9.9",)),
    ]


def test_two_interfaces_in_their_order(queue: Queue) -> None:
    one, two = make_network(queue.database, SMALL_POOL), make_network(queue.database, SMALL_POOL)
    ports = (PortRequest(network=two, tag="front"), PortRequest(network=one), PortRequest(network=two))
    [new] = servers(1)
    queue.database.write(accept_batch, fleet.spec(), [new], now=NOW, deadline=FAR, ports=ports)
    found = ports_of(queue.database, new.uuid)[new.uuid]
    assert [(port.network, port.tag) for port in found] == [(two.name, "front"), (one.name, None), (two.name, None)]
    assert len({port.mac for port in found}) == 3


def test_concurrent_requests_share_no_address_and_leak_none(queue: Queue) -> None:
    """24 threads want all 253 addresses of a pool and more: what was accepted has different ones, and the last one is given."""
    network = make_network(queue.database, "10.2.0.0/24")
    accepted: list[str] = []

    def boot(number: int) -> None:
        for _ in range(3):
            accepted.extend(accept_on(queue.database, network, 4))

    before = queue.requests().keys()
    refused = run_threads(24, boot)
    assert all(isinstance(error, errors.Conflict) for error in refused), refused
    every = addresses_of(queue.database, accepted)
    assert len(every) == len(set(every)) == len(accepted) == used(queue.database)
    assert len(every) == 252, "63 batches of 4 fit"
    assert queue.requests().keys() - before == set(accepted)


def test_a_pool_without_room_refuses_the_whole_request(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL, name="blue")
    accept_on(queue.database, network, 3)
    before = queue.requests().keys()
    with pytest.raises(errors.Conflict, match=r"No more fixed IP addresses: network blue has 2 free, and the request needs 3\."):
        accept_on(queue.database, network, 3)
    assert queue.requests().keys() == before
    assert used(queue.database) == 3
    assert len(accept_on(queue.database, network, 2)) == 2


def test_servers_cut_off_by_quota_return_their_addresses(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL)
    admission = Admission(limits=QuotaLimits(instances=2), at_least=1)
    kept = accept_on(queue.database, network, 5, admission=admission)
    assert len(kept) == 2
    assert used(queue.database) == 2
    assert len(set(addresses_of(queue.database, kept))) == 2


def test_several_batches_of_one_transaction_share_a_pool(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL)
    spec, ports = fleet.spec, (PortRequest(network=network),)
    batches = [NewBatch(spec=spec(), servers=tuple(servers(2)), deadline=FAR, ports=ports) for _ in range(2)]
    batches.append(NewBatch(spec=spec(), servers=tuple(servers(2)), deadline=FAR))
    queue.database.write(accept_batches, batches, NOW)
    every = addresses_of(queue.database, [server.uuid for batch in batches for server in batch.servers])
    assert len(every) == len(set(every)) == 4


def test_a_fixed_address_is_assigned_once_from_pools(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL, "fd00::/124")
    [server] = accept_on(queue.database, network, fixed_ip="10.0.0.5")
    assert addresses_of(queue.database, [server])[0] == "10.0.0.5"
    assert len(addresses_of(queue.database, [server])) == 2, "and one of the other version"
    with pytest.raises(errors.Invalid, match=r"Fixed IP address 10\.0\.0\.5 is already in use"):
        accept_on(queue.database, network, fixed_ip="10.0.0.5")
    with pytest.raises(errors.Invalid, match="is not in the pool of network"):
        accept_on(queue.database, network, fixed_ip="10.0.0.1")
    assert used(queue.database) == 2


def test_a_batch_costs_few_statements_none_without_networks(queue: Queue) -> None:
    network = make_network(queue.database, "10.3.0.0/20", "fd00::/116")
    counted = {}
    for name, ports in (("none", ()), ("some", (PortRequest(network=network),))):
        for count in (50, 500):
            spec, news = fleet.spec(), servers(count)
            with StatementCounter() as counter:
                queue.database.write(accept_batch, spec, news, now=NOW, deadline=FAR, ports=ports)
            counted[name, count] = counter.totals_by_database()[queue.database.name].executions
    assert counted["none", 50] == counted["none", 500]
    assert counted["some", 500] == counted["some", 50] == counted["none", 50] + 4, "two for each pool"


# -- the end ---------------------------------------------------------------------------------------------------------------------


def test_addresses_are_reused_in_the_order_of_release(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL)
    first = accept_on(queue.database, network, 5)
    by_server = {uuid: addresses_of(queue.database, [uuid])[0] for uuid in first}
    for at, uuid in enumerate((first[3], first[0], first[4])):
        queue.delete(uuid, now=NOW + at)
    again = [addresses_of(queue.database, accept_on(queue.database, network))[0] for _ in range(3)]
    assert again == [by_server[first[3]], by_server[first[0]], by_server[first[4]]]


def test_a_queued_server_frees_its_address_immediately(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL)
    [server] = accept_on(queue.database, network)
    queue.delete(server)
    assert used(queue.database) == 0


def test_an_address_is_freed_after_its_guests_end(moves: Moves) -> None:
    server = moves.active()
    give(moves, server, make_network(moves.database, SMALL_POOL))
    moves.queue.delete(server)
    assert used(moves.database) == 1, "the guest may still run"
    moves.tell_gone(server)
    assert used(moves.database) == 0


def test_a_failed_server_keeps_its_address_until_deletion(moves: Moves) -> None:
    """Its guest may have been left on a host and be adopted again."""
    server = moves.active()
    own = give(moves, server, make_network(moves.database, SMALL_POOL))
    moves.tell(server, EventKind.ENDED)
    assert addresses_of(moves.database, [server]) == own
    moves.queue.delete(server)
    moves.tell_gone(server)
    assert used(moves.database) == 0


def test_a_hostless_servers_delete_frees_its_address(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL)
    [server] = accept_on(queue.database, network)
    batch_id = fleet_batch(queue, server)
    assert queue.bury(queue.lease(batch_id)) == [server]
    assert used(queue.database) == 1
    queue.delete(server)
    queue.database.write(mappings.confirm_deletes, [server], NOW)
    assert used(queue.database) == 0


def test_an_end_that_came_before_the_delete_counts(moves: Moves) -> None:
    server = moves.active()
    give(moves, server, make_network(moves.database, SMALL_POOL))
    moves.tell_gone(server)
    assert used(moves.database) == 1
    moves.queue.delete(server)
    assert used(moves.database) == 0


@pytest.mark.parametrize("last", ["source", "twin"])
def test_a_moved_servers_last_body_frees_its_address(moves: Moves, last: str) -> None:
    server = moves.active()
    own = give(moves, server, make_network(moves.database, SMALL_POOL))
    operation = moves.moved(server)
    moves.switch(operation)
    assert addresses_of(moves.database, [server]) == own
    bodies = [operation.twin_uuid or "", server] if last == "source" else [server, operation.twin_uuid or ""]
    if last == "twin":
        moves.tell_gone(server)
        assert addresses_of(moves.database, [server]) == own, "the source ends, the server goes on"
    moves.queue.delete(server)
    if last == "source":
        moves.tell_gone(bodies[0])
        assert used(moves.database) == 1, "the host of the source has not answered yet"
    moves.tell_gone(bodies[1])
    assert used(moves.database) == 0


def test_a_cancelled_move_does_not_free_the_address(moves: Moves) -> None:
    server = moves.active()
    own = give(moves, server, make_network(moves.database, SMALL_POOL))
    operation = moves.moved(server)
    moves.give_up(operation)
    moves.tell_gone(operation.twin_uuid or "")
    assert addresses_of(moves.database, [server]) == own


def test_of_two_bodies_ending_together_one_frees(moves: Moves) -> None:
    """Each is told by another cell, and neither transaction sees the other's end before that commits."""
    network = make_network(moves.database, SMALL_POOL)
    for _ in range(5):
        server = moves.active()
        give(moves, server, network)
        operation = moves.moved(server)
        moves.switch(operation)
        moves.queue.delete(server)
        both = threading.Barrier(2)

        def end(number: int, bodies: tuple[str, ...] = (server, operation.twin_uuid or ""), both: threading.Barrier = both) -> None:
            def ended(tx: ApiTransaction) -> None:
                mine = instance_mappings.c.instance_uuid == bodies[number]
                tx.execute(sa.update(instance_mappings).where(mine).values(state="deleted"))
                with contextlib.suppress(threading.BrokenBarrierError):  # SQLite has one writer at a time
                    both.wait(0.5)
                addresses.free_addresses(tx, [bodies[number]], NOW)

            moves.database.write(ended)

        assert run_threads(2, end) == []
        assert used(moves.database) == 0


def test_a_lease_brings_the_interfaces_of_its_servers(moves: Moves) -> None:
    network = make_network(moves.database, SMALL_POOL)
    uuids = accept_on(moves.database, network, 3)
    batch_id = fleet_batch(moves.queue, uuids[0])
    [batch] = moves.database.write(leases.lease_batches, "one", [batch_id], NOW, LEASE)
    assert {r.instance_uuid: r.ports for r in batch.requests} == ports_of(moves.database, *uuids)
    server = moves.active(properties=ServerProperties(networks=network.uuid))
    give(moves, server, network)
    twin = moves.migrate(server).twin_uuid or ""
    [moved] = moves.database.write(leases.lease_batches, "one", [moves.body(twin).server.batch_id], NOW, LEASE)
    assert moved.requests[0].ports == ports_of(moves.database, server)[server]


def fleet_batch(queue: Queue, server: str) -> str:
    found = queue.database.read(mappings.get, server)
    assert found is not None
    return found.batch_id


# -- networks --------------------------------------------------------------------------------------------------------------------


def test_a_network_in_use_cannot_be_deleted(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL, name="green")
    [subnet] = network.subnets
    uuids = accept_on(queue.database, network, 2)
    with pytest.raises(errors.Conflict, match="Network 'green' is in use: servers and ports have 2 of its addresses"):
        queue.database.write(networks.delete, network.uuid)
    with pytest.raises(errors.Conflict, match="have 2 of its addresses"):
        queue.database.write(networks.delete_subnet, subnet.uuid)
    for uuid in uuids:
        queue.delete(uuid)
    queue.database.write(networks.delete, network.uuid)
    assert queue.database.read(networks.list_all) == []
    with pytest.raises(errors.Conflict, match="has 0 free"):
        accept_on(queue.database, network)


def test_addresses_of_a_region_have_distinct_macs(queue: Queue) -> None:
    one = make_network(queue.database, "10.4.0.0/24", "fd00::/120")
    make_network(queue.database, "10.5.0.0/24")
    queue.database.write(networks.delete, one.uuid)
    make_network(queue.database, "10.6.0.0/23", "fd01::/117")
    rows = queue.database.read(lambda tx: tx.execute(sa.select(address_table.c.mac, address_table.c.address)).all())
    assert len({row.mac for row in rows}) == len(rows) > 2500
    assert all(0 <= row.mac < networks.MAC_COUNT for row in rows)


def test_a_network_has_one_subnet_of_each_version(queue: Queue) -> None:
    network = make_network(queue.database, SMALL_POOL)
    again = Subnet(uuid="s", network_id=network.uuid, cidr="10.9.0.0/24")
    with pytest.raises(errors.Conflict, match="has an IPv4 subnet already"):
        queue.database.write(networks.add_subnet, again)
    with pytest.raises(errors.Conflict, match="already exists"):
        make_network(queue.database, name=network.name)
