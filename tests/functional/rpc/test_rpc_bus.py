"""Clients and servers of a bus, the embedded one and a real RabbitMQ alike."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from objects import errors
from objects.context import RequestContext
from objects.selection import HostCapacity, Selection
from rpc.counting import MessageCounter, MessageKind
from rpc.errors import RemoteFault, Timeout
from rpc.transport import Bus
from service import logs
from service.periodic import wait_until
from tests.support.bus import CONTEXT, KINDS, url_of
from tests.support.threads import run_threads

PATIENCE = 90.0
SELECTION = Selection(host="h", node="n", cell_uuid="c", limits=HostCapacity(vcpus=1.5, memory_mb=1, disk_gb=2), fence=7)


class Unheard(errors.Conflict):
    """An error of ours whose class the callers do not know."""


class Echo:
    """An endpoint that does as it is told and notes what it heard."""

    def __init__(self, name: str = "h1") -> None:
        self.name = name
        self.heard: list[object] = []
        self.contexts: list[RequestContext] = []
        self.release = threading.Event()
        self._lock = threading.Lock()
        self._at_work = 0
        self.most_at_work = 0

    def echo(self, context: RequestContext, value: object) -> object:
        self.contexts.append(context)
        return value

    def who(self, context: RequestContext) -> str:
        return self.name

    def hear(self, context: RequestContext, value: object) -> None:
        self.heard.append(value)

    def fail(self, context: RequestContext, how: str) -> None:
        failures: dict[str, Callable[[], Exception]] = {
            "no host": lambda: errors.NoValidHost("There is no room.", "decision-1"),
            "not found": lambda: errors.NotFound("Flavor 5 does not exist."),
            "unheard": lambda: Unheard("It is taken."),
            "bug": lambda: ValueError("an inner secret"),
        }
        raise failures[how]()

    def answer_nonsense(self, context: RequestContext) -> object:
        return {1, 2}

    def block(self, context: RequestContext) -> str:
        with self._lock:
            self._at_work += 1
            self.most_at_work = max(self.most_at_work, self._at_work)
        self.release.wait(PATIENCE)
        with self._lock:
            self._at_work -= 1
        return self.name

    def _private(self, context: RequestContext) -> str:
        return "private"


class OnlyEcho(Protocol):
    def echo(self, context: RequestContext, value: object) -> object: ...


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from url_of(request.param)


@pytest.fixture
def bus(url: str) -> Iterator[Bus]:
    bus = Bus(url)
    yield bus
    bus.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


def test_messages_travel_as_arguments_and_as_answers(bus: Bus, topic: str) -> None:
    echo = Echo()
    bus.serve_topic(topic, "h1", [echo])

    answer = bus.make_client(topic).call(CONTEXT, "echo", list[list[Selection]], value=[[SELECTION], []])

    assert answer == [[SELECTION], []]
    assert echo.contexts == [CONTEXT]


def test_an_answer_of_unexpected_type_faults_its_sender(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()])

    with pytest.raises(RemoteFault, match="an invalid answer"):
        bus.make_client(topic).call(CONTEXT, "echo", list[Selection], value=["text"])


def test_errors_of_ours_are_raised_as_themselves(bus: Bus, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    bus.serve_topic(topic, "h1", [Echo()])
    client = bus.make_client(topic)

    with pytest.raises(errors.NoValidHost) as no_host:
        client.call(CONTEXT, "fail", type(None), how="no host")
    with pytest.raises(errors.NotFound) as not_found:
        client.call(CONTEXT, "fail", type(None), how="not found")

    assert type(no_host.value) is errors.NoValidHost
    assert (str(no_host.value), no_host.value.decision_id) == ("There is no room.", "decision-1")
    assert type(not_found.value) is errors.NotFound
    assert str(not_found.value) == "Flavor 5 does not exist."
    assert "Traceback" not in caplog.text, "an expected error is not worth a traceback"


def test_an_unknown_error_arrives_as_its_nearest_ancestor(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()])

    with pytest.raises(errors.Conflict, match="It is taken") as conflict:
        bus.make_client(topic).call(CONTEXT, "fail", type(None), how="unheard")

    assert type(conflict.value) is errors.Conflict


def test_a_bug_is_logged_without_telling_callers_secrets(bus: Bus, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    bus.serve_topic(topic, "h1", [Echo()])

    caplog.handler.addFilter(logs.add_request_id)

    with caplog.at_level(logging.ERROR), pytest.raises(RemoteFault, match="ValueError") as fault:
        bus.make_client(topic).call(CONTEXT, "fail", type(None), how="bug")

    caplog.handler.removeFilter(logs.add_request_id)

    assert "an inner secret" not in str(fault.value)
    assert "an inner secret" in caplog.text
    assert CONTEXT.request_id in {record.__dict__.get("request_id") for record in caplog.records}


def test_an_unsendable_answer_is_a_fault_not_timeout(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()])

    with pytest.raises(RemoteFault, match="could not be sent"):
        bus.make_client(topic, timeout=PATIENCE).call(CONTEXT, "answer_nonsense", list[int])


def test_an_unsendable_argument_is_the_callers_bug(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()])

    with pytest.raises(TypeError, match="cannot cross the bus"):
        bus.make_client(topic).call(CONTEXT, "echo", list[int], value={1, 2})


def test_a_method_the_server_lacks_is_unsupported(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()])

    with pytest.raises(errors.Unsupported, match="levitate"):
        bus.make_client(topic).call(CONTEXT, "levitate", type(None))


@pytest.mark.parametrize("method", ["who", "_private", "target", "__init__"])
def test_only_the_interface_can_be_called(bus: Bus, topic: str, method: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()], interface=OnlyEcho)
    client = bus.make_client(topic)

    assert client.call(CONTEXT, "echo", int, value=1) == 1
    with pytest.raises(errors.Unsupported):
        client.call(CONTEXT, method, str)


def test_a_call_without_answer_in_time_times_out(bus: Bus, topic: str) -> None:
    echo = Echo()
    bus.serve_topic(topic, "h1", [echo])

    with pytest.raises(Timeout, match="did not answer block"):
        bus.make_client(topic, timeout=1).call(CONTEXT, "block", str)
    echo.release.set()

    assert bus.make_client(topic).call(CONTEXT, "who", str) == "h1", "the late answer must not be taken for this one's"


def test_a_cast_sent_twice_is_heard_twice(bus: Bus, topic: str) -> None:
    echo = Echo()
    bus.serve_topic(topic, "h1", [echo])
    client = bus.make_client(topic)

    for _ in range(2):
        client.cast(CONTEXT, "hear", value=SELECTION)

    assert wait_until(lambda: len(echo.heard) == 2, PATIENCE)
    assert echo.heard == [SELECTION, SELECTION]


def test_a_cast_with_failing_endpoint_stops_no_other(bus: Bus, topic: str) -> None:
    echo = Echo()
    bus.serve_topic(topic, "h1", [echo], threads=1)
    client = bus.make_client(topic)

    for how in ("no host", "bug"):
        client.cast(CONTEXT, "fail", how=how)
    client.cast(CONTEXT, "hear", value=1)

    assert wait_until(lambda: echo.heard == [1], PATIENCE)


def test_two_servers_share_a_topic_fairly(bus: Bus, topic: str) -> None:
    for name in ("h1", "h2"):
        bus.serve_topic(topic, name, [Echo(name)])
    client = bus.make_client(topic)

    answers = Counter(client.call(CONTEXT, "who", str) for _ in range(40))

    assert min(answers["h1"], answers["h2"]) >= 15, answers


def test_a_message_for_one_server_reaches_it_alone(bus: Bus, topic: str) -> None:
    for name in ("h1", "h2"):
        bus.serve_topic(topic, name, [Echo(name)])

    client = bus.make_client(topic).on_server("h2")

    assert {client.call(CONTEXT, "who", str) for _ in range(6)} == {"h2"}


def test_a_fanout_goes_to_every_server(bus: Bus, topic: str) -> None:
    echoes = [Echo(name) for name in ("h1", "h2", "h3")]
    for echo in echoes:
        bus.serve_topic(topic, echo.name, [echo])

    bus.make_client(topic).fanout(CONTEXT, "hear", value="all")

    assert wait_until(lambda: all(echo.heard == ["all"] for echo in echoes), PATIENCE), [echo.heard for echo in echoes]


def test_messages_without_a_listening_server_wait(bus: Bus, topic: str) -> None:
    first, second = Echo(), Echo()
    bus.serve_topic(topic, "h1", [first]).stop()
    client = bus.make_client(topic)

    for number in range(5):
        client.cast(CONTEXT, "hear", value=number)
    client.on_server("h1").cast(CONTEXT, "hear", value="direct")
    bus.serve_topic(topic, "h1", [second])

    assert wait_until(lambda: len(second.heard) == 6, PATIENCE), second.heard
    assert set(second.heard) == {0, 1, 2, 3, 4, "direct"}
    assert first.heard == []


def test_the_others_go_on_when_one_server_stops(bus: Bus, topic: str) -> None:
    servers = [bus.serve_topic(topic, name, [Echo(name)]) for name in ("h1", "h2")]
    client = bus.make_client(topic, timeout=PATIENCE)
    assert {client.call(CONTEXT, "who", str) for _ in range(6)} == {"h1", "h2"}

    servers[0].stop()

    assert {client.call(CONTEXT, "who", str) for _ in range(6)} == {"h2"}


def test_a_stopping_server_ends_what_it_has_begun(bus: Bus, topic: str) -> None:
    echo = Echo()
    server = bus.serve_topic(topic, "h1", [echo])
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.append(bus.make_client(topic).call(CONTEXT, "block", str)))
    caller.start()
    assert wait_until(lambda: echo.most_at_work == 1, PATIENCE)

    threading.Timer(0.2, echo.release.set).start()
    server.stop(PATIENCE)
    caller.join(PATIENCE)

    assert answers == ["h1"]


def test_an_unending_server_is_abandoned_in_time(bus: Bus, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    echo = Echo()
    server = bus.serve_topic(topic, "h1", [echo])
    bus.make_client(topic).cast(CONTEXT, "block")
    assert wait_until(lambda: echo.most_at_work == 1, PATIENCE)

    server.stop(0.1)

    assert not echo.release.is_set()
    assert "the process ends without it" in caplog.text
    echo.release.set()


def test_a_server_handles_as_many_messages_as_threads(bus: Bus, topic: str) -> None:
    echo = Echo()
    bus.serve_topic(topic, "h1", [echo], threads=2)
    client = bus.make_client(topic)

    for _ in range(5):
        client.cast(CONTEXT, "block")
    assert wait_until(lambda: echo.most_at_work == 2, PATIENCE)
    echo.release.set()
    for number in range(3):
        client.call(CONTEXT, "echo", int, value=number)

    assert echo.most_at_work == 2


def test_several_endpoints_serve_one_topic(bus: Bus, topic: str) -> None:
    class Other:
        def other(self, context: RequestContext, value: int) -> int:
            return -value

    bus.serve_topic(topic, "h1", [Echo(), Other()])
    client = bus.make_client(topic)

    assert (client.call(CONTEXT, "echo", int, value=1), client.call(CONTEXT, "other", int, value=1)) == (1, -1)


def test_an_observer_is_told_of_every_message(bus: Bus, topic: str) -> None:
    echo, counter = Echo(), MessageCounter()
    bus.serve_topic(topic, "h1", [echo])
    client = bus.make_client(topic)
    client.cast(CONTEXT, "hear", value="not counted")

    bus.observer = counter
    client.call(CONTEXT, "who", str)
    client.on_server("h1").cast(CONTEXT, "hear", value=1)
    client.fanout(CONTEXT, "hear", value=1)

    assert counter.counts_by_method() == {
        (topic, "who", MessageKind.CALL): 1,
        (topic, "hear", MessageKind.CAST): 1,
        (topic, "hear", MessageKind.FANOUT): 1,
    }
    bus.observer = None


def test_many_threads_share_a_bus(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Echo()], threads=4)
    client = bus.make_client(topic)
    wrong: list[Sequence[int]] = []

    def ask(thread: int) -> None:
        for number in range(25):
            value = [thread, number]
            if (answer := client.call(CONTEXT, "echo", list[int], value=value)) != value:
                wrong.append((*value, *answer))

    run_threads([threading.Thread(target=ask, args=(number,)) for number in range(8)])

    assert wrong == []


SCRIPT = """
import sys
from rpc.transport import Bus
from objects.context import RequestContext

class Parrot:
    def echo(self, context, value):
        return value

bus = Bus("embedded://threads/")
bus.serve_topic("topic", "h1", [Parrot()])
assert bus.make_client("topic").call(RequestContext(request_id="r"), "echo", int, value=1) == 1
bus.close()
Bus("rabbit://guest:guest@127.0.0.1:1/").close()

import importlib.metadata, logging, oslo_messaging._drivers.impl_rabbit, select, socket, threading, time
importlib.metadata.version("eventlet")
loaded = [name for name, module in sys.modules.items() if module and name.partition(".")[0] in ("eventlet", "greenlet")]
assert not loaded, loaded
assert all(part.__module__.partition(".")[0] in ("socket", "threading", "_thread", "builtins", "select", "time")
           for part in (socket.socket, threading.Thread, threading.Event, threading.Lock, select.select, time.sleep))
print("no eventlet")
"""


def test_importing_and_using_a_bus_loads_no_eventlet() -> None:
    root = Path(__file__).parents[3]

    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.strip() == "no eventlet", done.stderr
