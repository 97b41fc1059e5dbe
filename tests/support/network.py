"""The embedded bus with its letters in the hands of a test: each is delivered, lost, doubled or held back when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import oslo_messaging as om

from objects.context import RequestContext
from rpc import failures
from rpc.client import MethodCall
from rpc.drivers.embedded import EmbeddedDriver, EmbeddedMessage, _EmbeddedFailure
from rpc.drivers.embedded_broker import BROKERS, Broker, EmbeddedConsumer, EmbeddedQueue, QueuedMessage
from rpc.errors import RemoteFault
from rpc.server import Endpoint, ThreadedServer
from rpc.transport import EXCHANGE, Bus
from tests.support.interleaving import Task, atomic, current, pause

Spawn = Callable[[str, str, Callable[[], object], bool], Task]
"""Makes a task: its owner, its name, what it does, whether it may be held up."""


class Call:
    """A question that somebody waits to be answered."""

    def __init__(self, method: str, task: Task, network: Network) -> None:
        self.method = method
        self.task = task
        self._network = network
        self.answer: object = None
        self.timed_out = False

    def __repr__(self) -> str:
        return f"{self.method} of {self.task.owner}"

    @property
    def open(self) -> bool:
        return self.task.waits_for is self and not self.task.done

    def answered(self, answer: object) -> None:
        """A server has answered: it is on its way, and comes in vain if nobody waits any more."""
        self._network.answers.append((self, answer))

    def end(self, answer: object, *, timed_out: bool = False) -> None:
        if self.open:
            self.answer, self.timed_out = answer, timed_out
            self.task.waits_for = None

    def wait(self) -> object:
        """Called by the task. Raises om.MessagingTimeout."""
        self.task.waits_for = self
        self.task.stop(f"waits for {self.method}")
        if self.timed_out:
            raise om.MessagingTimeout(f"No answer to {self.method} in time.")
        return self.answer


class Held:
    """A letter that waits in its queue."""

    def __init__(self, queue: EmbeddedQueue, letter: QueuedMessage, where: str) -> None:
        self.queue = queue
        self.letter = letter
        self.where = where
        self.method: str = msgspec.json.decode(letter.body)[1]["method"]

    def __repr__(self) -> str:
        return f"{self.method} to {self.where}"


class Server:
    """What takes letters out of one queue, for one process."""

    def __init__(self, owner: str, rpc: Any, *, pauses: bool) -> None:
        self.owner = owner
        self.rpc = rpc
        self.pauses = pauses


class HandDriver(EmbeddedDriver):
    """The embedded driver, whose callers are tasks: waiting for an answer lets the others run."""

    network: Network

    def send(  # noqa: PLR0913, RUF100 - oslo.messaging's signature
        self,
        target: Any,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        if not wait_for_reply:
            return super().send(target, ctxt, message)
        task = current()
        if task is None:
            raise RuntimeError(f"{message['method']} was called outside of a task: nobody would bring the answer")
        call = Call(message["method"], task, self.network)
        self.network.calls.append(call)
        self._deliver_message(target, QueuedMessage(msgspec.json.encode((ctxt, message)), call.answered))
        answer = call.wait()
        if isinstance(answer, _EmbeddedFailure):
            raise failures.decode_error(str(answer))
        return msgspec.Raw(cast(bytes, answer))


class HandBus(Bus):
    """One bus of the network. Servers on it are made by ``Network.serve``."""

    def __init__(self, network: Network, url: str) -> None:
        super().__init__(url)
        self._transport._driver.__class__ = HandDriver
        self._transport._driver.network = network

    def send(self, send: Callable[[], Any], timeout: float) -> Any:
        pause("send")
        return super().send(send, timeout)

    def _serialize_call(
        self, target: om.Target, context: RequestContext, message: MethodCall
    ) -> tuple[om.Target, dict[str, Any], dict[str, Any]]:
        """One step, because it may read the releases of peers again, which is done under a lock that all processes here share."""
        with atomic():
            return super()._serialize_call(target, context, message)


class Network:
    """All buses, and what is on its way on them."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._buses: dict[str, HandBus] = {}
        self._brokers: dict[str, Broker] = {}
        self._servers: dict[tuple[str, str], dict[str, Server]] = {}
        self.calls: list[Call] = []
        self.answers: list[tuple[Call, object]] = []

    def bus(self, name: str) -> HandBus:
        if name not in self._buses:
            place = ("schedules", f"{id(self)}-{name}")
            self._brokers[name] = BROKERS.open(place)
            self._buses[name] = HandBus(self, f"embedded://{place[0]}/{place[1]}")
        return self._buses[name]

    def serve(
        self, bus: str, topic: str, server: str | None, owner: str, endpoint: object, interface: type, *, pauses: bool
    ) -> None:
        """Let ``owner`` take letters for a topic (or for one server of it). ``pauses``: its handlers may be held up."""
        served = self.bus(bus)
        rpc = om.get_rpc_server(
            served._transport,
            om.Target(topic=topic, server=server or owner),
            [Endpoint(topic, endpoint, interface=interface)],
            serializer=served._server_serializer,
            access_policy=om.ExplicitRPCAccessPolicy,
            server_cls=ThreadedServer,
        )
        key = f"{EXCHANGE}/{topic}.{server}" if server else f"{EXCHANGE}/{topic}"
        self._servers.setdefault((bus, key), {})[owner] = Server(owner, rpc, pauses=pauses)

    def leave(self, owner: str) -> None:
        """This process takes nothing any more. What waits in queues waits on."""
        for servers in self._servers.values():
            servers.pop(owner, None)

    def forget(self) -> None:
        """As if nothing had ever been sent or served."""
        for broker in self._brokers.values():
            for queue in broker._queues.values():
                queue.messages.clear()
        self._servers.clear()
        self.calls.clear()
        self.answers.clear()

    def letters(self) -> list[Held]:
        """What waits in queues, deliverable or not."""
        return [
            Held(queue, letter, f"{name}/{queue.name.partition('/')[2]}")
            for name, broker in self._brokers.items()
            for queue in broker._queues.values()
            for letter in queue.messages
        ]

    def deliverable(self) -> list[tuple[Held, Server]]:
        """Letters with each process that could take them, the oldest of each queue first."""
        return [
            (Held(queue, letter, f"{name}/{queue.name.partition('/')[2]}"), server)
            for name, broker in self._brokers.items()
            for queue in broker._queues.values()
            if queue.messages
            for server in self._servers.get((name, queue.name), {}).values()
            for letter in queue.messages
        ]

    def waiting(self) -> list[Call]:
        """Calls whose callers wait."""
        self.calls = [call for call in self.calls if call.open]
        return self.calls

    def lose(self, held: Held) -> None:
        held.queue.messages.remove(held.letter)

    def double(self, held: Held) -> None:
        held.queue.messages.append(held.letter)

    def deliver(self, held: Held, server: Server) -> Task:
        """Begin to handle it."""
        self.lose(held)
        broker = next(broker for broker in self._brokers.values() if held.queue in broker._queues.values())
        incoming = EmbeddedMessage(broker, EmbeddedConsumer(lambda letter, queue: None), held.letter, held.queue)
        return self._spawn(server.owner, held.method, lambda: server.rpc._process_incoming([incoming]), server.pauses)

    def bring(self, index: int) -> Call:
        """Bring an answer to who asked."""
        call, answer = self.answers.pop(index)
        if isinstance(answer, _EmbeddedFailure) and RemoteFault.__name__ in answer:
            raise AssertionError(f"{call!r} met a fault of the server: {answer}")
        call.end(answer)
        return call

    def close(self) -> None:
        for bus in self._buses.values():
            bus.close()
