"""Whatever is put onto the topics of a running region, the region builds servers afterwards.

In CI each kind of topic gets ``FUZZ_SECONDS`` of it; SC_TEST_FUZZ_SECONDS gives it longer.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from objects.base import Message
from objects.context import RequestContext
from rpc.arguments import signatures_of
from rpc.cell_conductor import CellConductorClient, CellConductorEndpoint
from rpc.codec import all_messages
from rpc.compute import ComputeEndpoint
from rpc.scheduler import SchedulerEndpoint
from rpc.super_conductor import SuperConductorEndpoint
from rpc.transport import Bus
from tests.support.poison import POISON_PROPERTIES, Poison, Sender, corpus, enveloped
from tests.support.queues import queues
from tests.support.region import Region, host, region

FUZZ_SECONDS = float(os.environ.get("SC_TEST_FUZZ_SECONDS", "1"))
BATCH = 50
"""Messages after which a topic must answer."""
PATIENCE = 60.0
CONTEXT = RequestContext(request_id="req-fuzz")
INTERFACES = {
    "cell-conductor": CellConductorEndpoint,
    "compute.": ComputeEndpoint,
    "scheduler": SchedulerEndpoint,
    "super-conductor": SuperConductorEndpoint,
    "reply_": CellConductorEndpoint,
    "_fanout_": CellConductorEndpoint,
}
NAMES = [message.__name__ for message in all_messages()]
CORPUS = [poison for _, poison in corpus()]

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(["cell1-h0", "\0", "a "])
)


def wrapped(fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "$message": st.sampled_from(NAMES) | st.text(),
            "version": st.sampled_from(["1.0", "2.0", "1.9"]) | LEAVES,
            "fields": fields,
        }
    )


FIELD_NAMES = sorted({field for message in all_messages() for field in message.__struct_fields__})
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(), inner, max_size=6)
        | wrapped(st.dictionaries(st.sampled_from(FIELD_NAMES), inner, max_size=6))
    ),
    max_leaves=12,
)


def messages(interface: type) -> st.SearchStrategy[Poison]:
    """Bodies from noise to nearly right, for the methods of an interface."""
    known = {name: [field for field, _ in signature._unwraps] for name, signature in signatures_of(interface).items()}

    def call(method: str) -> st.SearchStrategy[dict[str, Any]]:
        arguments = st.fixed_dictionaries({}, optional=dict.fromkeys(known.get(method, ["x"]), VALUES))
        texts = ("_msg_id", "_reply_q", "_unique_id", "namespace", "_context_user_id", "_context_machine")
        optional = dict.fromkeys(texts, LEAVES)
        required = {"method": st.just(method), "args": arguments, "version": st.just("1.0"), "_context_request_id": st.just("r")}
        return st.fixed_dictionaries(required, optional=optional)

    calls = st.sampled_from([*known, "ping", "__init__"]).flatmap(call)
    bodies = calls.map(_enveloped) | st.binary(max_size=200) | VALUES.map(_enveloped) | VALUES.map(_plain)
    return bodies.map(lambda body: Poison(body, POISON_PROPERTIES)) | st.sampled_from(range(len(CORPUS))).map(CORPUS.__getitem__)


def _plain(value: object) -> bytes:
    return json.dumps(value).encode()


def _enveloped(value: object) -> bytes:
    return enveloped(json.dumps(value))


def generated(interface: type, seed: int) -> list[Poison]:
    """``BATCH`` messages that hypothesis makes up from this seed."""
    made: list[Poison] = []

    def keep(poison: Poison) -> bool:
        made.append(poison)
        return len(made) >= BATCH

    quick = settings(database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), max_examples=BATCH * 2)
    find(messages(interface), keep, settings=quick, random=random.Random(seed))
    return made


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    hosts = [host(f"cell1-h{n}", "cell1", vcpus=64, memory_mb=65536, disk_gb=500) for n in range(2)]
    with region(tmp_path_factory.mktemp("fuzz"), hosts, on="mariadb") as deployment:
        deployment.wait_for(deployment.boot("first"), "ACTIVE")
        yield deployment


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the region's own threads do, meanwhile
@pytest.mark.parametrize("kind", INTERFACES)
def test_a_region_builds_after_any_messages(cloud: Region, kind: str) -> None:
    level = "api" if kind in ("scheduler", "super-conductor") else "cell1"
    url = cloud.folder.bus_url(level)
    targets = [queue.name for queue in queues(url) if kind in queue.name and "dead-letters" not in queue.name]
    if kind == "_fanout_":
        targets = sorted({f"{name.partition('_fanout_')[0]}_fanout" for name in targets})
    sender, bus = Sender(url), Bus(cloud.folder.bus_url("cell1"))
    client = CellConductorClient(bus, timeout=PATIENCE)
    end = time.monotonic() + FUZZ_SECONDS
    seed = 0
    while time.monotonic() < end or not seed:
        for number, poison in enumerate(generated(INTERFACES[kind], seed)):
            sender.send(targets[number % len(targets)], poison)
        seed += 1
        client.holdings(CONTEXT, "cell1-h0")
        cloud.wait_for(cloud.boot("after"), "ACTIVE", PATIENCE)
    sender.close()
    bus.close()


def test_every_message_of_ours_is_generated() -> None:
    assert {"Report", "BuildOrders", "RequestSpec"} <= set(NAMES)
    assert all(issubclass(message, Message) for message in all_messages())
