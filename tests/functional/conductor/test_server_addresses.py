"""Addresses belong to the server: every body of it gets them, and they are freed once no guest of it is left."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from cells.addresses_in_use import claim_in_use
from cells.instance_mapping import adopt_rows
from compute.driver import GuestSpec
from compute.simulated import METADATA_KEY
from conductor.audit import addresses as check
from db.api.rows import incarnation
from db.api.rows.ledger import Stamp
from db.api.rows.tables import addresses as address_table
from db.api.rows.tables import instance_mappings
from db.api.servers import addresses, mappings
from db.cell.tables import builds as cell_builds
from db.sql.connection import ApiTransaction
from objects import errors, stored
from objects.network import Network, PortRequest
from objects.operation import OperationArgs, OperationKind, Outcome
from objects.spec import ServerProperties
from service.periodic import wait_until
from tests.support import applying, fleet
from tests.support.accepted import accept_batch
from tests.support.auditing import Ground
from tests.support.conductor import servers
from tests.support.pools import accept_on, addresses_of, make_network, ports_of, used
from tests.support.world import PATIENCE, World

SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
POOL = ("10.0.0.0/28", "fd00::/124")


def boot(cloud: World, network: Network, count: int = 1, *, outcome: str = "") -> list[str]:
    script = {METADATA_KEY: outcome} if outcome else {}
    spec = fleet.spec(SMALL, properties=ServerProperties(networks=network.uuid, metadata=script))
    ports = (PortRequest(network=network, tag="nic"),)
    news, now = servers(count), cloud.api.current_time()
    cloud.api.write(accept_batch, spec, news, now=now, deadline=now + PATIENCE, ports=ports)
    return [new.uuid for new in news]


def shown(cloud: World, uuid: str) -> str:
    found = cloud.api.read(mappings.get, uuid)
    assert found is not None
    return found.state


def told(cloud: World) -> dict[str, list[GuestSpec]]:
    """What drivers were asked to spawn, by body."""
    found: dict[str, list[GuestSpec]] = {}
    for agents in cloud.agents.values():
        for driver in agents.drivers.values():
            for body, spec in driver.specs.items():
                found.setdefault(body, []).append(spec)
    return found


def test_every_host_trying_a_build_gets_the_addresses(cloud: World) -> None:
    """Also in another cell, and from conductors whose leases run out while they work."""
    cloud.quick = msgspec.structs.replace(cloud.quick, other_cell_timeout=30.0)
    cloud.start()
    cloud.hasty_conductor()
    network = make_network(cloud.api, *POOL)
    uuids = boot(cloud, network, 2, outcome="fail:a1,a2")
    assert wait_until(lambda: {shown(cloud, uuid) for uuid in uuids} == {"active"}, 2 * PATIENCE)
    own = ports_of(cloud.api, *uuids)
    every = addresses_of(cloud.api, uuids)
    assert len(every) == len(set(every)) == used(cloud.api) == 4
    specs = told(cloud)
    for uuid in uuids:
        found = cloud.api.read(mappings.get, uuid)
        assert found is not None
        assert found.host == "b1"
        for body in {uuid, found.body_uuid}:
            assert {spec.ports for spec in specs.get(body, [])} <= {own[uuid]}
        assert specs[found.body_uuid][-1].ports == own[uuid]
    cloud.settle()
    for uuid in uuids:
        cloud.delete(uuid)
    assert wait_until(lambda: used(cloud.api) == 0, PATIENCE)
    cloud.settle()


def test_a_server_keeps_its_addresses_when_it_moves(cloud: World) -> None:
    cloud.start()
    network = make_network(cloud.api, *POOL)
    [server] = boot(cloud, network)
    assert wait_until(lambda: shown(cloud, server) == "active", PATIENCE)
    own = ports_of(cloud.api, server)[server]
    cloud.settle()
    operation = cloud.operate(server, OperationKind.MIGRATE, args=OperationArgs(cross_cell=True))
    assert cloud.ended(operation).outcome is Outcome.DONE
    assert ports_of(cloud.api, server) == {server: own}
    assert [spec.ports for spec in told(cloud)[operation.twin_uuid or ""]] == [own]
    cloud.settle()
    assert ports_of(cloud.api, server) == {server: own}, "the end of the source frees nothing"
    cloud.delete(server)
    assert wait_until(lambda: used(cloud.api) == 0, PATIENCE)
    cloud.settle()


def test_a_failed_boots_addresses_are_freed_on_delete(cloud: World) -> None:
    cloud.start()
    network = make_network(cloud.api, *POOL)
    [server] = boot(cloud, network, outcome="fail")
    [nowhere] = accept_on(cloud.api, network, size=fleet.flavor(vcpus=10_000))
    assert wait_until(lambda: {shown(cloud, server), shown(cloud, nowhere)} == {"error"}, PATIENCE)
    assert used(cloud.api) == 4
    for uuid in (server, nowhere):
        cloud.delete(uuid)
    assert wait_until(lambda: used(cloud.api) == 0, PATIENCE)
    cloud.settle()


# -- the audit, and databases that were restored ---------------------------------------------------------------------------------


@pytest.fixture
def site(cloud: World) -> Ground:
    return Ground(cloud)


def active(site: Ground, network: Network, count: int = 1) -> list[str]:
    uuids = boot(site.cloud, network, count)
    found = site.cloud.api.read(mappings.get, uuids[0])
    assert found is not None
    driven = site.conductor.lease(found.batch_id)
    driven.claim(excluded_cells=(site.conductor.cell("cell2").uuid,))
    driven.stage()
    assert sorted(driven.hand_over()) == sorted(uuids)
    applying.build(site.cloud, uuids)
    site.keep()
    return uuids


def lose(tx: ApiTransaction, uuids: list[str]) -> None:
    """As if they had been accepted after the backup: their addresses are free."""
    of_servers = address_table.c.server_uuid.in_(uuids)
    tx.execute(sa.update(address_table).where(of_servers).values(server_uuid=None, free_since=0.0, position=None, tag=None))


def forget(tx: ApiTransaction, stamp: Stamp, uuids: list[str]) -> None:
    lose(tx, uuids)
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid.in_(uuids)))


def test_addresses_of_servers_that_are_gone_are_freed(site: Ground) -> None:
    network = make_network(site.cloud.api, *POOL)
    one, two = active(site, network, 2)
    assert site.auditor.kinds() == []
    site.cloud.keeper.ledger.write(forget, ["nobody"])
    move = sa.update(address_table).where(address_table.c.server_uuid == one).values(server_uuid="nobody")
    site.cloud.api.write(lambda tx: tx.execute(move))
    kinds = dict(site.auditor.kinds())
    assert kinds == {check.ORPHAN: "nobody", check.UNCLAIMED: one}
    site.auditor.repair()
    assert site.auditor.repair() == []
    assert used(site.cloud.api) == 4
    assert sorted(ports_of(site.cloud.api, one, two)) == sorted((one, two))


def test_an_adopted_server_takes_its_addresses_back(site: Ground) -> None:
    """From a server that was accepted after the restore and is not built yet; that one gets others."""
    network = make_network(site.cloud.api, *POOL)
    uuids = active(site, network, 2)
    own = ports_of(site.cloud.api, *uuids)
    site.cloud.keeper.ledger.write(forget, uuids)
    [other] = accept_on(site.cloud.api, network)
    lost = {each.address for ports in own.values() for port in ports for each in port.addresses}
    assert lost & set(addresses_of(site.cloud.api, [other]))
    assert sorted(adopt_rows(site.cloud.keeper.ledger, site.conductor.cell("cell1"), uuids)) == sorted(uuids)
    assert ports_of(site.cloud.api, *uuids) == own
    every = addresses_of(site.cloud.api, [*uuids, other])
    assert len(every) == len(set(every)) == 6


def test_a_comparison_claims_what_guests_have(site: Ground) -> None:
    """Also the second interface of a server whose first one was in the backup."""
    network = make_network(site.cloud.api, *POOL)
    one, two = active(site, network, 2)
    own = ports_of(site.cloud.api, one, two)
    site.cloud.api.write(lose, [one, two])
    [first, *_] = own[two][0].addresses
    site.cloud.api.write(lambda tx: tx.execute(of_address(first.address, server_uuid=two, free_since=None, position=0, tag="nic")))
    assert claim_in_use(site.cloud.api, [site.conductor.cell("cell1")]) == []
    assert ports_of(site.cloud.api, one, two) == own
    assert site.auditor.kinds() == []


def test_an_address_moves_to_its_actual_guest(site: Ground) -> None:
    """The backup is from before its last server was deleted: that one has another row, without the address."""
    network = make_network(site.cloud.api, *POOL)
    one, two = active(site, network, 2)
    own = ports_of(site.cloud.api, one)
    forget_ports(site, two)
    site.cloud.api.write(lose, [one, two])
    [first, *_] = own[one][0].addresses
    site.cloud.api.write(lambda tx: tx.execute(of_address(first.address, server_uuid=two, free_since=None, position=0)))
    assert (check.UNCLAIMED, one) in site.auditor.kinds()
    assert claim_in_use(site.cloud.api, [site.conductor.cell("cell1")]) == []
    assert ports_of(site.cloud.api, one, two) == own


def test_two_guests_with_one_address_are_reported(site: Ground) -> None:
    network = make_network(site.cloud.api, *POOL)
    one, two = active(site, network, 2)
    ports = ports_of(site.cloud.api, one)[one]
    first = ports[0].addresses[0].address
    site.conductor.cell("cell1").write(
        lambda tx: tx.execute(
            sa.update(cell_builds).where(cell_builds.c.instance_uuid == two).values(ports=stored.dump_value(ports))
        )
    )
    found = claim_in_use(site.cloud.api, [site.conductor.cell("cell1")])
    assert f"{first} belongs to server {one}, and the guest of server {two} has it too" in found
    assert first in addresses_of(site.cloud.api, [one])
    [finding] = [each for each in site.auditor.findings() if (each.kind, each.key) == (check.UNCLAIMED, two)]
    assert one in finding.what


def test_a_comparison_closes_the_pools(site: Ground) -> None:
    """A server without networks is accepted meanwhile."""
    network = make_network(site.cloud.api, *POOL)
    database = site.cloud.api
    closed = database.write(incarnation.advance_mark)
    assert database.write(incarnation.close, closed.uuid, "restored")
    before = used(database)
    with pytest.raises(errors.NotCompared):
        accept_on(database, network)
    with pytest.raises(errors.NotCompared):
        accept_on(database, network, fixed_ip="10.0.0.5")
    with pytest.raises(errors.NotCompared):
        database.write(addresses.claim_for_port, "port", network.name, {network.subnets[0].uuid: None})
    assert used(database) == before
    database.write(
        accept_batch, fleet.spec(SMALL), servers(1), now=database.current_time(), deadline=database.current_time() + PATIENCE
    )
    assert database.write(incarnation.open_, closed.uuid, "compared", closed.mark + 1)
    accept_on(database, network)
    assert used(database) > before


def of_address(address: str, **values: object) -> sa.Update:
    return sa.update(address_table).where(address_table.c.address == address).values(values)


def forget_ports(site: Ground, uuid: str) -> None:
    forgotten = sa.update(cell_builds).where(cell_builds.c.instance_uuid == uuid).values(ports=None)
    site.conductor.cell("cell1").write(lambda tx: tx.execute(forgotten))
