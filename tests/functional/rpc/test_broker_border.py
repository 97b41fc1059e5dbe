"""A broker with a user for each host: what a taken agent can do there, and what it cannot. ``docs/security.md`` says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp  # type: ignore[import-untyped]  # the library ships no types
import msgspec
import pytest
from amqp.exceptions import AccessRefused, PreconditionFailed, ResourceLocked  # type: ignore[import-untyped]  # likewise

from db import secrets
from db.cell import compute_nodes, services
from objects import errors
from objects.build import BuildOrder, BuildOrders, ReportKind
from objects.process import AGENT_BINARY, About
from rpc import agents
from rpc.cell_conductor import CellConductorClient
from rpc.compute import ComputeClient, HostOrders
from rpc.drivers.rabbit_connection import Connection
from rpc.errors import Timeout
from service.periodic import wait_until
from tests.support.applying import node
from tests.support.broker_cell import BrokerCell, broker_cell
from tests.support.cell_site import CONTEXT, SPEC, Host, said

LONG = 30.0


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCell]:
    with broker_cell(tmp_path_factory.mktemp("cell")) as made:
        made.serve()
        yield made


@pytest.fixture(scope="module")
def victim(cell: BrokerCell) -> Host:
    """The agent of the second host, which listens."""
    return Host(cell.agent_bus(cell.hosts[1]), cell.hosts[1])


def ordered(cell: BrokerCell, uuid: str, host: str) -> None:
    """The conductor orders a build of the host."""
    order = BuildOrder(instance_uuid=uuid, name=uuid, host=host, node=host, fence=1, attempt=1)
    ComputeClient(cell.bus).send_orders([HostOrders(CONTEXT, host, BuildOrders(spec=SPEC, orders=(order,)))])


class TestAnAgentWithItsOwnUser:
    def test_it_speaks_for_itself(self, cell: BrokerCell) -> None:
        me = cell.hosts[0]
        client = cell.client(me)
        client.report_state(CONTEXT, me, AGENT_BINARY, 1)
        client.introduce(CONTEXT, me, AGENT_BINARY, About(), 1.0)
        client.update_resource_stats(CONTEXT, node(me))
        assert cell.site.database.read(services.get, me, AGENT_BINARY).identified is True
        cell.site.stage("own", host=me)
        accept = msgspec.structs.replace(said(ReportKind.ACCEPT, "own", me), builder=f"{me}:1")
        assert [verdict.accepted for verdict in client.report(CONTEXT, [accept])] == [True]
        assert [(held.instance_uuid, held.builder) for held in client.holdings(CONTEXT, me)] == [("own", f"{me}:1")]

    def test_orders_reach_it_and_it_is_healthy(self, cell: BrokerCell, victim: Host) -> None:
        ordered(cell, "o1", cell.hosts[1])
        assert wait_until(lambda: ("o1", 1) in victim.orders, LONG)
        assert victim.server.find_trouble() == ""

    def test_it_answers_what_its_conductors_ask(self, cell: BrokerCell, victim: Host) -> None:
        """By ids that another agent, which was asked before, cannot guess."""
        channel = amqp_of_tests(cell)
        name, _, _ = channel.queue_declare("", exclusive=True)
        channel.queue_bind(name, agents.SHARED_EXCHANGE, f"compute.{cell.hosts[1]}")
        client = ComputeClient(cell.bus)
        for lines in (1, 2):
            assert client.console_output(CONTEXT, cell.hosts[1], "i1", lines, LONG) == f"i1 {lines}"
        asked = [msgspec.json.decode(msgspec.json.decode(channel.basic_get(name).body)["oslo.message"]) for _ in range(2)]
        first, second = (message["_msg_id"] for message in asked)
        assert first[:8] != second[:8]
        channel.connection.close()

    def test_every_message_names_its_sender(self, cell: BrokerCell) -> None:
        """Of conductors as well, in every way to send."""
        channel = amqp_of_tests(cell)
        name, _, _ = channel.queue_declare("", exclusive=True)
        for exchange, key in ((agents.SHARED_EXCHANGE, "#"), ("compute_fanout", "")):
            channel.exchange_declare(exchange, "topic" if key else "fanout", durable=bool(key), auto_delete=not key)
            channel.queue_bind(name, exchange, key)
        ordered(cell, "o2", cell.hosts[1])
        cell.bus.make_client("compute").fanout(CONTEXT, "ping", token="none")
        cell.bus.make_client("nobody").cast(CONTEXT, "ping", token="none")
        found: list[Any] = []

        def all_came() -> bool:
            if (message := channel.basic_get(name)) is not None:
                found.append(message)
            return len(found) >= len(("order", "fan-out", "cast"))

        assert wait_until(all_came, LONG)
        assert {message.properties.get("user_id") for message in found} == {cell.bus._transport._driver._url.hosts[0].username}

    def test_it_may_start_before_any_conductor(self, tmp_path: Any) -> None:
        with broker_cell(tmp_path) as early:
            amqp_of_tests(early).exchange_delete(agents.SHARED_EXCHANGE)  # as in a virtual host that is new
            host = Host(early.agent_bus(early.hosts[0]), early.hosts[0])
            with pytest.raises(errors.SuperconductorError):
                host.server.check_listening()
            early.serve()
            assert wait_until(lambda: host.server.is_listening, LONG)
            ordered(early, "o1", early.hosts[0])
            assert wait_until(lambda: host.orders == [("o1", 1)], LONG)


def amqp_of_tests(cell: BrokerCell) -> amqp.Channel:
    """As the broker's administrator."""
    host = cell.bus._transport._driver._url.hosts[0]
    connection = amqp.Connection(
        f"{host.hostname}:{host.port or 5672}", userid=host.username, password=host.password, virtual_host=cell.vhost
    )
    connection.connect()
    return connection.channel()


class TestATakenAgent:
    """It has the first host's user. Each step of the story is refused."""

    def test_it_cannot_read_what_another_host_holds(self, cell: BrokerCell) -> None:
        with pytest.raises(errors.Forbidden, match="reports for host"):
            cell.client(cell.hosts[0]).holdings(CONTEXT, cell.hosts[1])

    @pytest.mark.parametrize("kind", list(ReportKind))
    def test_it_cannot_report_on_another_hosts_builds(self, cell: BrokerCell, kind: ReportKind) -> None:
        rogue, other = cell.hosts
        uuid = f"theirs-{kind}"
        cell.site.stage(uuid, host=other)
        before = cell.site.state(uuid)
        forged = msgspec.structs.replace(said(kind, uuid, other), builder=f"{other}:1", wants_secrets=True)
        client = cell.client(rogue)
        with pytest.raises(errors.Forbidden, match="reports for host"):
            (client.build_instances if kind is ReportKind.FAILED else client.report)(CONTEXT, [forged])
        assert cell.site.state(uuid) == before

    def test_it_gets_no_secrets_of_builds_ordered_elsewhere(self, cell: BrokerCell) -> None:
        """Said in its own name, of a build whose fence and attempt it has guessed."""
        rogue, other = cell.hosts
        cell.site.stage("secret", host=other)
        guessed = msgspec.structs.replace(said(ReportKind.ACCEPT, "secret", rogue), wants_secrets=True)
        [verdict] = cell.client(rogue).report(CONTEXT, [guessed])
        assert (verdict.accepted, verdict.secrets) == (False, None)
        assert cell.site.database.read(secrets.of_builds, ["secret"])["secret"].sealed is None

    @pytest.mark.parametrize("stopping", [True, False])
    def test_it_cannot_claim_other_hosts_live_or_stop(self, cell: BrokerCell, stopping: bool) -> None:
        rogue, other = cell.hosts
        client = cell.client(rogue)
        client.report_state(CONTEXT, other, AGENT_BINARY, 1, stopping=stopping)
        client.update_resource_stats(CONTEXT, node(rogue))  # has come after the heartbeat
        assert other not in {service.host for service in cell.site.database.read(services.list_all)}

    def test_it_cannot_say_what_another_host_offers(self, cell: BrokerCell) -> None:
        with pytest.raises(errors.Forbidden, match="reports for host"):
            cell.client(cell.hosts[0]).update_resource_stats(CONTEXT, node(cell.hosts[1], vcpus=0))

    @pytest.mark.parametrize("say", ["stats", "introduce"])
    def test_it_cannot_invent_a_host(self, cell: BrokerCell, say: str) -> None:
        client = cell.client(cell.hosts[0])
        calls: dict[str, Callable[[], None]] = {
            "stats": lambda: client.update_resource_stats(CONTEXT, node("ghost-1", vcpus=10**9)),
            "introduce": lambda: client.introduce(CONTEXT, "ghost-1", AGENT_BINARY, About(), 1.0),
        }
        with pytest.raises(errors.Forbidden, match="reports for host ghost-1"):
            calls[say]()
        assert "ghost-1" not in {known.host for known in cell.site.database.read(compute_nodes.list_all)}

    def test_answers_to_another_agent_cannot_be_read(self, cell: BrokerCell) -> None:
        rogue, other = cell.hosts
        bus = cell.agent_bus(other)
        cell.client(other, bus).holdings(CONTEXT, other)
        answers = bus._transport._driver._reply_q
        assert answers.startswith(f"reply_compute.{other}_")
        for method in ("basic_consume", "basic_get", "queue_purge", "queue_delete"):
            channel = cell.channel(rogue)
            with pytest.raises((AccessRefused, ResourceLocked)):
                getattr(channel, method)(answers)
            channel.connection.close()

    @pytest.mark.parametrize("queue", ["reply_compute.{other}_0", "compute.{other}", "cell-conductor", "reply_0"])
    def test_an_answer_goes_to_nobody_but_who_asked(self, cell: BrokerCell, queue: str) -> None:
        rogue, other = cell.hosts
        watch = amqp_of_tests(cell)
        name = queue.format(other=other)
        if name.startswith("reply_"):
            watch.queue_declare(name, exclusive=True, auto_delete=True)
        bus = cell.agent_bus(rogue)
        cell.client(rogue, bus).holdings(CONTEXT, rogue)
        bus._transport._driver._reply_q = name
        with pytest.raises(Timeout):
            CellConductorClient(bus, timeout=2.0).holdings(CONTEXT, rogue)
        if name.startswith("reply_"):
            assert watch.basic_get(name) is None
        watch.connection.close()

    def test_an_agent_without_user_is_refused_with_advice(self, cell: BrokerCell, monkeypatch: pytest.MonkeyPatch) -> None:
        """As an agent of an older release."""
        host = cell.hosts[0]
        client = cell.client(host)
        monkeypatch.setattr(Connection, "_sender_property", lambda _: {})
        with pytest.raises(errors.Forbidden, match=r"names no broker user: upgrade its sender.*superconductor host user"):
            client.holdings(CONTEXT, host)


def test_a_shared_user_represents_hosts_with_unstarted_work(tmp_path: Path) -> None:
    with broker_cell(tmp_path, required=False) as shared:
        shared.serve()
        host = shared.hosts[1]
        shared.site.stage("i1", host=host)
        client = CellConductorClient(shared.bus, timeout=20.0)
        [verdict] = client.report(CONTEXT, [said(ReportKind.ACCEPT, "i1", host)])
        assert verdict.accepted
        client.introduce(CONTEXT, host, AGENT_BINARY, About(release="1"), 1.0)
        assert shared.site.database.read(services.get, host, AGENT_BINARY).is_shared
        with pytest.raises(errors.Forbidden):
            shared.client(shared.hosts[0]).holdings(CONTEXT, host)


def publish(exchange: str, key: str, **properties: Any) -> Callable[[amqp.Channel, BrokerCell], None]:
    def act(channel: amqp.Channel, cell: BrokerCell) -> None:
        names = {"OWN": f"compute.{cell.hosts[0]}", "OTHER": f"compute.{cell.hosts[1]}"}
        where, what = (names.get(name, name) for name in (exchange, key))
        channel.basic_publish_confirm(amqp.Message(b"x", **properties), where, what)

    return act


def on_queue(method: str) -> Callable[[amqp.Channel, BrokerCell], None]:
    def act(channel: amqp.Channel, cell: BrokerCell) -> None:
        getattr(channel, method)(f"compute.{cell.hosts[1]}")

    return act


def bind(key: str, exchange: str = agents.SHARED_EXCHANGE) -> Callable[[amqp.Channel, BrokerCell], None]:
    def act(channel: amqp.Channel, cell: BrokerCell) -> None:
        own, other = (f"compute.{host}" for host in cell.hosts)
        channel.queue_declare(own, durable=True, auto_delete=False)
        channel.queue_bind(own, exchange, other if key == "OTHER" else key)

    return act


def declare(name: str) -> Callable[[amqp.Channel, BrokerCell], None]:
    return lambda channel, cell: channel.queue_declare(name.replace("OTHER", cell.hosts[1]), durable=False, auto_delete=False)


def dead_letter_to(exchange: str) -> Callable[[amqp.Channel, BrokerCell], None]:
    """A queue of its own whose refused messages go on to another host's queue."""

    def act(channel: amqp.Channel, cell: BrokerCell) -> None:
        own, other = (f"compute.{host}" for host in cell.hosts)
        channel.queue_delete(own)
        arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": other}
        channel.queue_declare(own, durable=True, auto_delete=False, arguments=arguments)

    return act


REFUSED: dict[str, Callable[[amqp.Channel, BrokerCell], None]] = {
    "orders for another host": publish(agents.SHARED_EXCHANGE, "OTHER"),
    "orders by way of a second routing key": publish(agents.SHARED_EXCHANGE, "cell-conductor", application_headers={"CC": ["x"]}),
    "orders straight into the queue": publish("", "OTHER"),
    "the scheduler's topic": publish(agents.SHARED_EXCHANGE, "scheduler"),
    "the super conductor's topic": publish(agents.SHARED_EXCHANGE, "super-conductor"),
    "an answer into a reply queue": publish("", "reply_somebody_0"),
    "a fan-out to conductors": publish("cell-conductor_fanout", ""),
    "another exchange of agents": publish("OTHER", "OTHER"),
    "in the name of the conductor": publish(agents.EXCHANGE, "cell-conductor", user_id="guest"),
    "reading another host's orders": on_queue("basic_consume"),
    "fetching another host's orders": on_queue("basic_get"),
    "emptying another host's queue": on_queue("queue_purge"),
    "deleting another host's queue": on_queue("queue_delete"),
    "reading what agents report": lambda channel, _: channel.basic_consume("cell-conductor"),
    "a copy of what agents report": bind("cell-conductor"),
    "a copy of everything": bind("#"),
    "a copy of another host's orders": bind("OTHER"),
    "a copy of what agents report, where they send it": bind("cell-conductor", agents.EXCHANGE),
    "a reply queue of another host": declare("reply_compute.OTHER_00"),
    "a queue of any name": declare("something"),
    "deleting the exchange of all topics": lambda channel, _: channel.exchange_delete(agents.SHARED_EXCHANGE),
    "deleting the exchange of agents": lambda channel, _: channel.exchange_delete(agents.EXCHANGE),
    "dead letters to another host": dead_letter_to(agents.SHARED_EXCHANGE),
    "dead letters straight into a queue": dead_letter_to(""),
}


@pytest.mark.parametrize("act", REFUSED.values(), ids=REFUSED.keys())
def test_the_broker_refuses_a_hosts_user(cell: BrokerCell, victim: Host, act: Callable[[amqp.Channel, BrokerCell], None]) -> None:
    channel = cell.channel(cell.hosts[0])
    channel.confirm_select()
    with pytest.raises((AccessRefused, PreconditionFailed)):
        act(channel, cell)
    channel.connection.close()


@pytest.mark.parametrize("key", ["OTHER", "scheduler", "super-conductor"])
@pytest.mark.parametrize("by", ["routing key", "CC", "BCC"])
def test_what_agents_send_reaches_the_conductors_topic_only(cell: BrokerCell, victim: Host, key: str, by: str) -> None:
    watch = amqp_of_tests(cell)
    queue = f"compute.{cell.hosts[1]}" if key == "OTHER" else key
    watch.queue_declare(queue, durable=True, auto_delete=False)
    watch.queue_bind(queue, agents.SHARED_EXCHANGE, queue)
    channel = cell.channel(cell.hosts[0])
    channel.confirm_select()
    count = len(victim.orders)
    if by == "routing key":
        channel.basic_publish_confirm(amqp.Message(b"x"), agents.EXCHANGE, queue)
    else:
        channel.basic_publish_confirm(amqp.Message(b"x", application_headers={by: [queue]}), agents.EXCHANGE, "no-such-topic")
    channel.connection.close()
    if key == "OTHER":
        ordered(cell, f"after-{by}", cell.hosts[1])
        assert wait_until(lambda: len(victim.orders) == count + 1, LONG)
    else:
        assert watch.queue_declare(queue, passive=True).message_count == 0
    watch.connection.close()
