"""Who is up, by report counts and the reader's own clock alone."""

from __future__ import annotations

from objects.compute_node import Service
from service.liveness import Liveness


def service(host: str, count: int, *, last_seen: float = 0.0, forced_down: bool = False, uuid: str = "") -> Service:
    return Service(
        uuid=uuid or f"uuid-{host}",
        host=host,
        binary="superconductor-compute",
        report_count=count,
        last_seen=last_seen,
        forced_down=forced_down,
    )


def test_a_host_seen_for_the_first_time_has_the_whole_down_time() -> None:
    liveness = Liveness(60.0)
    assert liveness.down([service("h1", 7)], 1000.0) == set()
    assert liveness.down([service("h1", 7)], 1060.0) == set()
    assert liveness.down([service("h1", 7)], 1060.1) == {"h1"}


def test_every_new_count_starts_the_time_anew() -> None:
    liveness = Liveness(60.0)
    for moment in range(0, 500, 50):
        assert liveness.down([service("h1", moment)], float(moment)) == set()
    assert liveness.down([service("h1", 450)], 511.0) == {"h1"}
    assert liveness.down([service("h1", 451)], 512.0) == set()


def test_a_count_that_falls_is_news_too() -> None:
    """A service record that was removed and made again counts from 1."""
    liveness = Liveness(60.0)
    liveness.down([service("h1", 900)], 0.0)
    assert liveness.down([service("h1", 1)], 100.0) == set()


def test_the_reporters_clock_does_not_matter() -> None:
    liveness = Liveness(60.0)
    assert liveness.down([service("past", 1, last_seen=0.0), service("future", 1, last_seen=1e12)], 10.0) == set()
    assert liveness.down([service("past", 2, last_seen=0.0), service("future", 1, last_seen=2e12)], 100.0) == {"future"}


def test_forced_down_is_down_at_once_and_up_again_when_lifted() -> None:
    liveness = Liveness(60.0)
    assert liveness.down([service("h1", 1, forced_down=True)], 0.0) == {"h1"}
    assert liveness.down([service("h1", 2, forced_down=True)], 1.0) == {"h1"}
    assert liveness.down([service("h1", 3)], 2.0) == set()


def test_hosts_are_judged_apart() -> None:
    liveness = Liveness(10.0)
    liveness.down([service("h1", 1), service("h2", 1)], 0.0)
    assert liveness.down([service("h1", 1), service("h2", 2)], 11.0) == {"h1"}


def test_a_record_made_anew_for_a_silent_host_has_the_whole_down_time_again() -> None:
    liveness = Liveness(10.0)
    liveness.down([service("h1", 1, uuid="old")], 0.0)
    assert liveness.down([service("h1", 1, uuid="new")], 11.0) == set()
    assert liveness.down([service("h1", 1, uuid="new")], 22.0) == {"h1"}
