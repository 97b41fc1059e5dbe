"""A host that was taken out over HTTP gets no boot after the answer, whatever its schedulers have heard; let in again, it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from objects import errors
from tests.support import fleet
from tests.support.api import NEWEST, Front
from tests.support.deciding import FAST, add_hosts, decide, scheduler_of
from tests.support.ground import GROUNDS, Ground

NEVER = 3600.0
BLIND = msgspec.structs.replace(FAST, service_poll_interval=NEVER, feed_poll_interval=NEVER, claims_poll_interval=NEVER)
"""A scheduler that reads its cells when it starts, and never again."""
PATIENT = msgspec.structs.replace(FAST, warm_up=15.0)


@pytest.fixture(params=GROUNDS)
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    ground = Ground(request.param, tmp_path, embedded=True)
    made = Front(ground)
    add_hosts(made, [fleet.node(f"h{n}", vcpus=64, memory_mb=65536) for n in range(3)])
    yield made
    ground.end(made.close, ground.release)


def put(front: Front, host: str, **fields: Any) -> None:
    found = front.get("/v2.1/os-services", NEWEST, host=host, binary="nova-compute").json["services"]
    assert front.client.simulate_put(f"/v2.1/os-services/{found[0]['id']}", headers=NEWEST, json=fields).status_code == 200


def old_put(front: Front, host: str, **fields: Any) -> None:
    status = "enable" if fields["status"] == "enabled" else "disable"
    assert front.client.simulate_put(f"/v2.1/os-hosts/{host}", json={"status": status}).status_code == 200


def placed(front: Front, boots: int = 6) -> set[str]:
    """The hosts of so many boots that are asked for now."""
    for _ in range(boots):
        front.boot()
    return set(decide(front))


@pytest.mark.parametrize(
    ("tell", "out", "back"),
    [
        (put, {"status": "disabled"}, {"status": "enabled"}),
        (put, {"forced_down": True}, {"forced_down": False}),
        (old_put, {"status": "disabled"}, {"status": "enabled"}),
    ],
    ids=["disabled", "forced-down", "os-hosts"],
)
def test_no_boot_after_the_answer(front: Front, tell: Callable[..., None], out: dict[str, Any], back: dict[str, Any]) -> None:
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(scheduler_of(front, BLIND))
        assert placed(front, 12) == {"h0", "h1", "h2"}
        tell(front, "h1", **out)
        assert placed(front, 12) == {"h0", "h2"}
        tell(front, "h0", **out)
        tell(front, "h1", **back)
        assert placed(front, 4) == {"h2"}, "neither has heard that h1 is back"


def test_a_boot_waits_for_a_newly_admitted_host(front: Front) -> None:
    """It is not refused: the scheduler knows that something was said of the host, and reads what it was."""
    with scheduler_of(front, PATIENT):
        for host in ("h0", "h1", "h2"):
            put(front, host, status="disabled")
        front.boot()
        with pytest.raises(errors.NoValidHost):
            decide(front)
        put(front, "h1", status="enabled")
        assert placed(front, 1) == {"h1"}
