"""Ports that projects make: they keep their addresses while servers take them and give them back; on every server."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from db.api.queue.accepting import NewBatch, foresee_accept
from db.api.servers import addresses, networks, ports
from db.sql.engine import Database
from objects import errors
from objects.network import Network, PortRequest
from objects.operation import OperationKind
from objects.port import ProjectPort
from objects.quota import UNLIMITED
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, Queue, servers
from tests.support.moves import Moves
from tests.support.pools import accept_on, addresses_of, empty_pools, make_network, ports_of, used
from tests.support.transactions import run_threads

POOL = ("10.0.0.0/29", "fd00::/125")


@pytest.fixture
def queue(database: Database) -> Queue:
    empty_pools(database)
    return Queue(database)


@pytest.fixture
def moves(queue: Queue) -> Moves:
    return Moves(queue)


@pytest.fixture
def network(queue: Queue) -> Network:
    return make_network(queue.database, *POOL)


def make(database: Database, network: Network, limit: int = UNLIMITED, **asked: Any) -> ProjectPort:
    values = {"project_id": "p", "wanted": {subnet.uuid: None for subnet in network.subnets}} | asked
    new = ports.NewPort(uuid=str(uuid.uuid4()), network=network, **values)
    database.write(ports.create, new, limit, NOW)
    return database.read(ports.get, new.uuid)


def boot_with(database: Database, network: Network, *made: ProjectPort) -> str:
    """Accept a server that has these ports, in their order."""
    [new] = servers(1)
    wanted = tuple(PortRequest(network=network, port_uuid=port.uuid, tag="front") for port in made)
    database.write(accept_batch, fleet.spec(), [new], now=NOW, deadline=FAR, ports=wanted)
    return new.uuid


def give(moves: Moves, server: str, network: Network, port: ProjectPort) -> None:
    """As if the server had been accepted with the port."""
    wanted = addresses.Wanted(servers=(server,), ports=(PortRequest(network=network, port_uuid=port.uuid),))
    moves.database.write(addresses.claim_addresses, [wanted])


def test_a_port_has_addresses_before_it_has_servers(queue: Queue, network: Network) -> None:
    port = make(queue.database, network, name="web", description="of the site", tags=("b", "a", "b"))
    four, six = port.addresses
    assert four.startswith("10.0.0.")
    assert six.startswith("fd00::")
    assert (port.name, port.description, port.tags, port.server_uuid) == ("web", "of the site", ("a", "b"), None)
    others = accept_on(queue.database, network, 4)
    assert not {four, six} & set(addresses_of(queue.database, others))
    with pytest.raises(errors.Conflict, match="has 0 free, and the request needs 1"):
        accept_on(queue.database, network)


def test_a_port_has_its_requested_addresses(queue: Queue, network: Network) -> None:
    four, six = (subnet.uuid for subnet in network.subnets)
    port = make(queue.database, network, wanted={four: "10.0.0.5"})
    assert port.addresses == ("10.0.0.5",)
    assert used(queue.database) == 1
    with pytest.raises(errors.AddressInUse):
        make(queue.database, network, wanted={four: "10.0.0.5", six: None})
    with pytest.raises(errors.Invalid, match="is not in the pool"):
        make(queue.database, network, wanted={four: "10.0.0.1"})
    assert used(queue.database) == len(queue.database.read(ports.list_, None)) == 1, "a refusal leaves nothing"


def test_a_server_has_the_addresses_of_its_port(queue: Queue, network: Network) -> None:
    port, other = make(queue.database, network), make(queue.database, network)
    server = boot_with(queue.database, network, other, port)
    first, second = ports_of(queue.database, server)[server]
    assert (first.mac, second.mac, second.tag) == (other.mac, port.mac, "front")
    assert tuple(each.address for each in second.addresses) == port.addresses
    assert queue.database.read(ports.get, port.uuid).server_uuid == server
    assert {each.uuid for each in queue.database.read(ports.of_servers, [server])} == {port.uuid, other.uuid}


def test_a_port_goes_to_one_server(queue: Queue, network: Network) -> None:
    port = make(queue.database, network)
    server = boot_with(queue.database, network, port)
    before = queue.requests().keys()
    with pytest.raises(errors.Conflict, match=f"is still in use by server {server}"):
        boot_with(queue.database, network, port)
    arrival = NewBatch(
        spec=fleet.spec(), servers=tuple(servers(1)), deadline=FAR, ports=(PortRequest(network=network, port_uuid=port.uuid),)
    )
    assert "is still in use" in queue.database.read(foresee_accept, arrival)[1][0]
    gone = msgspec.structs.replace(port, uuid=str(uuid.uuid4()))
    with pytest.raises(errors.Invalid, match=f"Port {gone.uuid} could not be found"):
        boot_with(queue.database, network, gone)
    assert queue.requests().keys() == before


def test_of_many_concurrent_users_one_gets_a_port(queue: Queue, network: Network) -> None:
    for _ in range(3):
        port = make(queue.database, network)
        got: list[str] = []

        def boot(number: int, port: ProjectPort = port, got: list[str] = got) -> None:
            got.append(boot_with(queue.database, network, port))

        refused = run_threads(8, boot)
        assert len(got) == 1
        assert all(isinstance(error, errors.Conflict) for error in refused), refused
        assert queue.database.read(ports.get, port.uuid).server_uuid == got[0]


def test_a_port_deleted_while_taken_goes_one_way(queue: Queue, network: Network) -> None:
    """Either the server has its addresses and the delete is refused, or they are free and the boot is refused."""
    for _ in range(6):
        port = make(queue.database, network)
        got: list[str] = []

        def either(number: int, port: ProjectPort = port, got: list[str] = got) -> None:
            if number:
                queue.database.write(ports.delete, port.uuid, NOW)
            else:
                got.append(boot_with(queue.database, network, port))

        [refused] = run_threads(2, either)
        assert isinstance(refused, errors.Conflict | errors.Invalid)
        assert used(queue.database) == (2 if got else 0)
        if got:
            queue.delete(got[0])
            queue.database.write(ports.delete, port.uuid, NOW)
        assert used(queue.database) == 0


def test_a_deleted_server_gives_its_port_back(moves: Moves, network: Network) -> None:
    port = make(moves.database, network)
    server = moves.active()
    give(moves, server, network, port)
    moves.queue.delete(server)
    assert moves.database.read(ports.get, port.uuid).server_uuid == server, "the guest may still run"
    with pytest.raises(errors.Conflict, match="is still in use"):
        boot_with(moves.database, network, port)
    moves.tell_gone(server)
    assert moves.database.read(ports.get, port.uuid) == port
    assert used(moves.database) == 2
    again = boot_with(moves.database, network, port)
    assert addresses_of(moves.database, [again]) == list(port.addresses)


def test_a_queued_server_returns_its_port_immediately(queue: Queue, network: Network) -> None:
    port = make(queue.database, network)
    queue.delete(boot_with(queue.database, network, port))
    assert queue.database.read(ports.get, port.uuid) == port


def test_a_moved_server_keeps_its_port(moves: Moves, network: Network) -> None:
    port = make(moves.database, network)
    server = moves.active()
    give(moves, server, network, port)
    operation = moves.moved(server)
    moves.switch(operation)
    moves.tell_gone(server)
    assert addresses_of(moves.database, [server]) == list(port.addresses)
    with pytest.raises(errors.Conflict, match="is in use by server"):
        moves.database.write(ports.delete, port.uuid, NOW)
    moves.queue.delete(server)
    moves.tell_gone(operation.twin_uuid or "")
    assert moves.database.read(ports.get, port.uuid) == port


def test_a_port_is_attached_and_detached(moves: Moves, network: Network) -> None:
    port = make(moves.database, network)
    server = moves.active()
    operation = moves.accept(server, OperationKind.ATTACH_INTERFACE, port=PortRequest(network=network, port_uuid=port.uuid))
    assert operation.args.mac == port.mac
    assert addresses_of(moves.database, [server]) == list(port.addresses)
    moves.database.write(addresses.detach_interface, server, port.mac, NOW)
    assert moves.database.read(ports.get, port.uuid) == port
    assert used(moves.database) == 2


def test_a_port_in_use_is_not_deleted(queue: Queue, network: Network) -> None:
    port = make(queue.database, network)
    server = boot_with(queue.database, network, port)
    with pytest.raises(errors.Conflict, match=f"is in use by server {server}"):
        queue.database.write(ports.delete, port.uuid, NOW)
    queue.delete(server)
    queue.database.write(ports.delete, port.uuid, NOW)
    assert used(queue.database) == 0
    with pytest.raises(errors.NotFound):
        queue.database.write(ports.delete, port.uuid, NOW)


def test_a_guest_keeps_addresses_of_a_deleted_port(moves: Moves, network: Network) -> None:
    """Its cell may be down, or the host late: nobody else may get an address that a guest still uses."""
    port = make(moves.database, network)
    server = moves.active()
    give(moves, server, network, port)
    moves.queue.delete(server)
    moves.database.write(ports.delete, port.uuid, NOW)
    assert used(moves.database) == 2
    assert moves.database.read(ports.list_, None) == []
    moves.tell_gone(server)
    assert used(moves.database) == 0


def test_names_and_tags_change(queue: Queue, network: Network) -> None:
    port = make(queue.database, network, name="a")
    queue.database.write(ports.update_port, port.uuid, {"name": "b"}, NOW + 1)
    queue.database.write(ports.set_tags, port.uuid, ["y", "x"], NOW + 2)
    found = queue.database.read(ports.get, port.uuid)
    assert found == msgspec.structs.replace(port, name="b", tags=("x", "y"), updated_at=NOW + 2)
    for change in (ports.update_port, ports.set_tags):
        with pytest.raises(errors.NotFound):
            queue.database.write(change, str(uuid.uuid4()), {}, NOW)


def test_a_project_has_so_many_ports_at_most(queue: Queue, network: Network) -> None:
    for project in ("p", "q"):
        make(queue.database, network, limit=1, project_id=project)
    with pytest.raises(errors.Conflict, match="Quota exceeded"):
        make(queue.database, network, limit=1)
    assert [port.project_id for port in queue.database.read(ports.list_, "q")] == ["q"]


def test_a_network_with_ports_is_not_deleted(queue: Queue, network: Network) -> None:
    port = make(queue.database, network)
    with pytest.raises(errors.Conflict, match="servers and ports have 2 of its addresses"):
        queue.database.write(networks.delete, network.uuid)
    queue.database.write(ports.delete, port.uuid, NOW)
    queue.database.write(networks.delete, network.uuid)


def test_a_restored_database_returns_a_guests_port(moves: Moves, network: Network) -> None:
    """The port was bound after the backup."""
    port = make(moves.database, network)
    server = moves.active()
    give(moves, server, network, port)
    had = ports_of(moves.database, server)
    moves.database.write(addresses.give_back, [server], NOW)
    moves.database.write(addresses.take_back, had, NOW)
    assert ports_of(moves.database, server) == had
    assert moves.database.read(ports.get, port.uuid).server_uuid == server
