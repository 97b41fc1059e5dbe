"""The clients of ``make chaos`` against a real API behind a proxy: lost answers are asked for again, wrong ones are told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import waitress.server

from chaos.load import Load
from chaos.plan import FLAVORS, SMALL, Boot
from chaos.proxy import Proxies
from cli.standalone.demo.boots import FlavorPlan
from db.api.projects import flavors
from objects.flavor import Flavor
from service.periodic import wait_until
from tests.support.api import Front

PATIENCE = 30.0


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    for flavor in FLAVORS:
        known = Flavor(flavor_id=flavor.name, name=flavor.name, vcpus=flavor.vcpus, memory_mb=flavor.ram)
        front.database.write(flavors.create, known)
    yield front
    front.close()


@pytest.fixture
def proxies(front: Front) -> Iterator[Proxies]:
    """A link ``api`` that leads to a served API."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = waitress.server.create_server(front.app, sockets=[listener])
    threading.Thread(target=server.run, daemon=True).start()
    proxies = Proxies({"api": listener.getsockname()[1]})
    yield proxies
    proxies.close()
    server.close()


def start(proxies: Proxies, *boots: Boot) -> Load:
    load = Load([f"http://127.0.0.1:{proxies.port_of('api')}/v2.1"], {}, seed=1)
    load.start(boots)
    return load


def test_a_boot_repeated_after_lost_answers_counts_once(front: Front, proxies: Proxies) -> None:
    proxies.mute_links(["api"])
    load = start(proxies, Boot(number=1, at=0.0, count=3, deletes=1))
    assert wait_until(lambda: len(front.uuids()) == 3, PATIENCE), "accepted, and nobody knows"
    proxies.cut_links(["api"])
    assert wait_until(lambda: load.answers["POST lost"] > 0, PATIENCE)
    proxies.restore_links(["api"])

    assert load.finish_requests(PATIENCE) == 0
    (taken,) = load.taken
    assert len(taken.uuids) == 3
    assert load.deleted == set(taken.uuids[:1])
    assert set(front.uuids()) == set(taken.uuids[1:]), "no second batch, and what was deleted is not listed"
    assert max(load.tries) > 1
    assert load.complaints == []


def test_forbidden_answers_are_reported_and_end_nothing_else(front: Front, proxies: Proxies) -> None:
    unknown = FlavorPlan(name="unknown", vcpus=1, ram=1)
    load = start(proxies, Boot(number=1, at=0.0, flavor=unknown), Boot(number=2, at=0.0, flavor=SMALL))

    assert load.finish_requests(PATIENCE) == 0
    assert [taken.boot.request_name for taken in load.taken] == ["chaos-2"]
    assert len(load.complaints) == 1
    assert "400" in load.complaints[0]


def test_what_is_never_answered_is_counted(front: Front, proxies: Proxies) -> None:
    proxies.cut_links(["api"])
    load = start(proxies, Boot(number=1, at=0.0), Boot(number=2, at=0.0))

    assert load.finish_requests(1.0) == 2
    load.stop()
    assert load.taken == []
