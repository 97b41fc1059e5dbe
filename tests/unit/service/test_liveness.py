"""Who is up, by report counts, the reader's own clock, and what is heard of the others."""

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


class Cell:
    """Hosts whose agents report every ten seconds unless they are dead or cannot be heard, and a reader that looks as often."""

    def __init__(self, *hosts: str, down_time: float = 60.0) -> None:
        self.liveness = Liveness(down_time)
        self.now = 1000.0
        self.counts = dict.fromkeys(hosts, 1)
        self.dead: set[str] = set()
        self.look()

    def look(self) -> set[str]:
        return self.liveness.hosts_down([service(host, count) for host, count in self.counts.items()], self.now)

    def pass_by(self, seconds: float, *, heard: bool = True, looking: bool = True) -> set[str]:
        """Time passes; whoever was called down in it."""
        down: set[str] = set()
        for _ in range(int(seconds / 10.0)):
            self.now += 10.0
            for host in self.counts.keys() - self.dead if heard else ():
                self.counts[host] += 1
            down |= self.look() if looking else set()
        return down


def test_a_host_silent_alone_goes_down_in_time() -> None:
    cell = Cell("h1", "h2")
    cell.dead = {"h1"}
    assert cell.pass_by(60.0) == set()
    assert cell.pass_by(10.0) == {"h1"}
    cell.dead = set()
    assert cell.pass_by(500.0) == set()


def test_silence_of_all_says_nothing_of_any() -> None:
    """The broker is away, or the database takes no heartbeats."""
    cell = Cell("h1", "h2", "h3")
    assert cell.pass_by(3600.0, heard=False) == set()
    assert cell.pass_by(60.0) == set()


def test_silence_of_the_only_host_says_nothing() -> None:
    assert Cell("h1").pass_by(3600.0, heard=False) == set()


def test_a_host_returning_after_an_outage_is_up() -> None:
    cell = Cell("h1", "h2", "h3")
    cell.pass_by(3600.0, heard=False)
    cell.dead = {"h2", "h3"}  # so far
    assert cell.pass_by(20.0) == set()
    cell.dead = set()
    assert cell.pass_by(100.0) == set()


def test_a_host_silent_after_an_outage_is_down() -> None:
    cell = Cell("h1", "h2", "h3")
    cell.dead = {"h2"}
    cell.pass_by(3600.0, heard=False)
    assert cell.pass_by(70.0) == {"h2"}


def test_blind_reader_time_does_not_count() -> None:
    """Its database was away, or its process stopped: at its next look no agent may have got its sign of life through yet."""
    cell = Cell("h1", "h2")
    cell.pass_by(3600.0, heard=False, looking=False)
    cell.counts["h1"] += 1
    assert cell.look() == set()
    assert cell.pass_by(100.0) == set()


def test_a_count_that_falls_is_news_too() -> None:
    """A service record that was removed and made again counts from 1."""
    cell = Cell("h1", "h2")
    cell.counts["h1"] = 900
    cell.pass_by(50.0)
    cell.counts["h1"] = 1
    cell.dead = {"h1"}
    assert cell.pass_by(50.0) == set()


def test_the_reporters_clock_does_not_matter() -> None:
    liveness = Liveness(60.0)
    for moment in range(0, 130, 10):
        found = [service("past", moment, last_seen=0.0), service("future", 1, last_seen=1e12 + moment)]
        down = liveness.hosts_down(found, float(moment))
    assert down == {"future"}


def test_forced_down_applies_immediately_and_until_lifted() -> None:
    liveness = Liveness(60.0)
    assert liveness.hosts_down([service("h1", 1, forced_down=True)], 0.0) == {"h1"}
    assert liveness.hosts_down([service("h1", 2, forced_down=True)], 1.0) == {"h1"}
    assert liveness.hosts_down([service("h1", 3)], 2.0) == set()


def test_a_renewed_silent_record_gets_full_down_time() -> None:
    liveness = Liveness(10.0)
    down = [
        liveness.hosts_down([service("h1", 1, uuid="old" if moment < 10 else "new"), service("h2", moment)], float(moment))
        for moment in range(0, 24, 2)
    ]
    assert down == [set()] * 11 + [{"h1"}]


def test_silence_between_two_looks_counts_at_any_length() -> None:
    liveness = Liveness(0.0)
    liveness.hosts_down([service("h1", 1), service("h2", 1)], 0.0)
    assert liveness.hosts_down([service("h1", 1), service("h2", 2)], 0.01) == {"h1"}
