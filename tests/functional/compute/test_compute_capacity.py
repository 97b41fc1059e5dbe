"""A host never holds more than it has room for, and at rest guests are exactly the ACTIVE rows, whatever came in which order."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from objects.build import ReportKind
from objects.instance import FailureClass, State
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import PATIENCE, MemoryCell
from tests.support.threads import run_threads

REST = {State.ACTIVE, State.ERROR, State.DELETED}


def at_rest(cell: MemoryCell, uuids: list[str]) -> bool:
    return all(cell.state(one) in REST for one in uuids)


def test_fifty_orders_at_once_for_ten_places(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", simulated={"memory_mb": 10 * 512, "spawn_delay_max": 0.02}, max_concurrent_builds=50, dispatch_threads=8)
    uuids = cell.stage("h1", count=50)
    start = threading.Barrier(10)

    def send(mine: list[str]) -> None:
        start.wait(PATIENCE)
        for one in mine:
            cell.order(one)

    run_threads([threading.Thread(target=send, args=(uuids[n::10],)) for n in range(10)])
    assert wait_until(partial(at_rest, cell, uuids), PATIENCE)
    states = [cell.state(one) for one in uuids]
    assert (states.count(State.ACTIVE), states.count(State.ERROR)) == (10, 40)
    assert agents.most_guests() == 10
    failures = [cell.rows[one].history[0].failure for one in uuids if cell.state(one) is State.ERROR]
    assert {failure.kind for failure in failures} == {FailureClass.NO_ROOM}


def test_room_given_back_is_room_again(cell: MemoryCell, agents: Agents) -> None:
    """Failed, refused, deleted and destroyed builds all return what they took."""
    agents.start("h1", simulated={"memory_mb": 4 * 512})
    for outcome in ("fail", "abort", "ok", "fail"):
        uuids = cell.boot("h1", count=4, outcome=outcome)
        assert wait_until(partial(at_rest, cell, uuids), PATIENCE)
        for one in uuids:
            cell.delete(one)
        cell.wait(State.DELETED, *uuids)
    refused = cell.stage("h1", count=4)
    cell.order(*refused, fence=9)
    cell.wait_report(ReportKind.ACCEPT, refused[-1])
    assert wait_until(lambda: bool(cell.boot("h1")) and len(agents.guests()) == 4, PATIENCE), "the refused ones keep their room"
    assert agents.most_guests() <= 4


@pytest.mark.parametrize("seed", range(4))
def test_any_weather(cell: MemoryCell, agents: Agents, seed: int) -> None:
    """Orders, doubles, deletes, lost answers, false deaths and restarts at random; then calm, and everything is as it must be."""
    dice = random.Random(seed)
    hosts = ("h1", "h2", "h3")
    rooms = {"memory_mb": 8 * 512, "failure_rate": 0.2, "spawn_delay_max": 0.03}
    for host in hosts:
        agents.start(host, simulated=rooms, spawn_timeout=0.5, call_timeout=0.3)
    uuids: list[str] = []
    for _ in range(120):
        roll = dice.random()
        if roll < 0.35:
            first, *rest = dice.sample(hosts, 3)
            uuids += cell.boot(first, *rest, outcome=dice.choices(["ok", "fail", "abort", "hang"], [20, 1, 1, 1])[0])
        elif uuids and roll < 0.55:
            cell.order(dice.choice(uuids))
        elif uuids and roll < 0.7:
            cell.delete(dice.choice(uuids))
        elif roll < 0.8:
            cell.lose_answers += dice.randint(1, 2)
        elif uuids and roll < 0.85:
            cell.call_dead(dice.choice(uuids))
        elif roll < 0.88:
            host = dice.choice(hosts)
            agents.services[host].stop(0.0)
            agents.start(host, simulated=rooms, spawn_timeout=0.5, call_timeout=0.3)
        else:
            threading.Event().wait(0.01)
    assert wait_until(lambda: cell.sweep() or at_rest(cell, uuids), PATIENCE, pause=0.1)

    def agree(host: str) -> bool:
        active = sorted(one for one in uuids if cell.state(one) is State.ACTIVE and cell.rows[one].host == host)
        return sorted(guest.uuid for guest in agents.guests(host)) == active

    for host in hosts:
        assert wait_until(partial(agree, host), PATIENCE), host
        assert agents.most_guests(host) <= 8
    assert any(cell.state(one) is State.ACTIVE for one in uuids)
