"""Schedulers that know nothing of each other, on one database."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from db.api.claims import claims
from db.sql.engine import Database
from db.sql.sync import sync_schema
from objects import errors, stored
from objects.group import GroupPolicy
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import claimer, fleet
from tests.support.databases import SERVERS, synced, url_on
from tests.support.fleet import CONTEXT, Site
from tests.support.threads import run_threads

Answer = list[list[Selection]] | errors.NoValidHost


@pytest.fixture
def make_site(database: Database) -> Callable[..., Site]:
    return lambda hosts, **changes: Site.anew(database, [fleet.node(f"h{n}", **changes) for n in range(hosts)])


def ask_all(
    schedulers: Sequence[SchedulerManager],
    asked: Sequence[RequestSpec],
    threads: int = 8,
    meanwhile: Callable[[], None] | None = None,
) -> list[Answer]:
    """Every request once, from several threads at the same time; each thread speaks to one of the schedulers.

    Given what happens ``meanwhile``, those that are told to come again do, as a conductor would.
    """
    answers: list[Answer | Exception] = []

    def ask(spec: RequestSpec, scheduler: SchedulerManager) -> Answer:
        while True:
            try:
                return scheduler.select_destinations(CONTEXT, spec, list(spec.fences))
            except errors.Conflict:
                if meanwhile is None:
                    raise
                meanwhile()

    def run(mine: Sequence[RequestSpec], scheduler: SchedulerManager) -> None:
        for spec in mine:
            try:
                answers.append(ask(spec, scheduler))
            except Exception as error:  # noqa: BLE001 - looked at below, in the test's own thread
                answers.append(error)

    started = [threading.Thread(target=run, args=(asked[n::threads], schedulers[n % len(schedulers)])) for n in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, errors.NoValidHost):
            raise answer
    return [answer for answer in answers if isinstance(answer, (list, errors.NoValidHost))]


def refusals(answers: Sequence[Answer]) -> int:
    return sum(isinstance(answer, errors.NoValidHost) for answer in answers)


def test_120_requests_for_100_places_fill_exactly_100(make_site: Callable[..., Site]) -> None:
    site = make_site(20, vcpus=5)
    schedulers = [site.scheduler() for _ in range(3)]
    answers = ask_all(schedulers, [site.leased(fleet.spec()) for _ in range(120)])
    assert refusals(answers) == 20
    assert len(site.claimed()) == 100
    assert set(Counter(site.claimed().values()).values()) == {5}
    assert site.overfull() == []


def test_batches_beside_singles_are_placed_all_or_nothing(make_site: Callable[..., Site]) -> None:
    site = make_site(10, vcpus=10)
    asked = [site.leased(fleet.spec(), 7 if n % 3 == 0 else 1) for n in range(60)]  # 180 instances for 100 places
    answers = ask_all([site.scheduler(), site.scheduler()], asked)
    sizes = [len(answer) for answer in answers if isinstance(answer, list)]
    assert set(sizes) <= {1, 7}
    assert sum(sizes) == len(site.claimed())
    assert len(site.claimed()) > 90
    assert site.overfull() == []


def test_members_of_an_anti_affinity_group_never_meet(make_site: Callable[..., Site]) -> None:
    site = make_site(12)
    group = fleet.group(GroupPolicy.ANTI_AFFINITY)
    asked = [site.leased(fleet.spec(group=group), 1 + n % 2) for n in range(12)]  # 18 members for 12 hosts
    ask_all([site.scheduler(), site.scheduler()], asked, meanwhile=site.built)
    members = [slot.host for slot in site.slots() if not slot.held]
    assert len(members) == len(set(members)) == len(site.claimed())
    assert sorted(members) == sorted(site.claimed().values())
    assert len(members) >= 11  # two singles or a pair more would not have been refused


def test_a_rack_never_exceeds_its_groups_members(make_site: Callable[..., Site]) -> None:
    site = make_site(12)
    racks = fleet.racks(**{f"r{n}": [f"h{host}" for host in range(n, 12, 4)] for n in range(4)})
    group = msgspec.structs.replace(fleet.group(GroupPolicy.ANTI_AFFINITY), max_server_per_rack=2)
    asked = [site.leased(fleet.spec(group=group), 1 + n % 2) for n in range(8)]  # 12 members for 8 places
    ask_all([site.scheduler(aggregates=racks), site.scheduler(aggregates=racks)], asked)
    members = [slot.host for slot in site.slots()]
    assert len(members) == len(set(members)) == len(site.claimed()) >= 7
    assert max(Counter(int(host[1:]) % 4 for host in members).values()) == 2


def test_members_of_different_fault_domains_share_no_rack(make_site: Callable[..., Site]) -> None:
    site = make_site(12)
    racks = fleet.racks(**{f"r{n}": [f"h{host}" for host in range(n, 12, 4)] for n in range(4)})
    group = fleet.group(GroupPolicy.SOFT_ANTI_AFFINITY)
    asked = [site.leased(fleet.spec(group=group, scheduler_hints={"fault_domain": (str(n % 3),)}), 2) for n in range(15)]
    answers = ask_all([site.scheduler(aggregates=racks), site.scheduler(aggregates=racks)], asked)
    domains: dict[int, set[str | None]] = {}
    for slot in site.slots():
        domains.setdefault(int(slot.host[1:]) % 4, set()).add(slot.fault_domain)
    assert all(len(found) == 1 for found in domains.values())
    assert len(domains) == 4, "every rack is used"
    assert refusals(answers) == 5 * (3 - len(set.union(*domains.values()))), "only a domain that came too late is refused"


def test_members_of_an_affinity_group_all_meet(make_site: Callable[..., Site]) -> None:
    site = make_site(6)
    group = fleet.group(GroupPolicy.AFFINITY)
    answers = ask_all([site.scheduler(), site.scheduler()], [site.leased(fleet.spec(group=group)) for _ in range(12)])
    assert refusals(answers) == 0
    assert len(set(site.claimed().values())) == 1


@pytest.mark.parametrize("together", [1, 2])
def test_members_of_a_soft_anti_affinity_group_spread(make_site: Callable[..., Site], together: int) -> None:
    for _ in range(4):
        site = make_site(12)
        group = fleet.group(GroupPolicy.SOFT_ANTI_AFFINITY)
        asked = [site.leased(fleet.spec(group=group), together) for _ in range(12 // together)]
        answers = ask_all([site.scheduler(), site.scheduler(), site.scheduler()], asked, threads=12)
        assert refusals(answers) == 0
        assert Counter(site.claimed().values()) == Counter(f"h{n}" for n in range(12))


def test_members_of_a_soft_affinity_group_gather(make_site: Callable[..., Site]) -> None:
    for _ in range(4):
        site = make_site(6)
        group = fleet.group(GroupPolicy.SOFT_AFFINITY)
        ask_all([site.scheduler(), site.scheduler()], [site.leased(fleet.spec(group=group)) for _ in range(8)])
        assert len(set(site.claimed().values())) == 1


def test_a_request_repeated_concurrently_is_claimed_once(make_site: Callable[..., Site]) -> None:
    site = make_site(8)
    leased = site.leased(fleet.spec(), 5)
    answers = ask_all([site.scheduler(), site.scheduler(), site.scheduler()], [leased] * 16)
    assert all(answer == answers[0] for answer in answers)
    assert len(site.claimed()) == 5
    assert site.overfull() == []
    assert sum(row.instances for row in site.inventories().values()) == 5


def test_concurrent_claims_and_releases_lose_and_invent_nothing(make_site: Callable[..., Site]) -> None:
    site = make_site(4, vcpus=4)
    scheduler = site.scheduler()
    errors_seen: list[Exception] = []

    def boot_and_end(rounds: int) -> None:
        ledger = claims.Ledger(site.database, "conductor")
        for _ in range(rounds):
            leased = site.leased(fleet.spec(), 2)
            try:
                scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
            except errors.NoValidHost as full:
                errors_seen.append(full)
            ledger.write(claims.release_claims, list(leased.fences))

    run_threads([threading.Thread(target=boot_and_end, args=(15,)) for _ in range(6)])
    assert site.claimed() == {}
    assert site.overfull() == []
    assert errors_seen == []  # 6 threads of 2 instances always fit into 16 places


HOSTS = 20


@pytest.fixture(params=["mariadb", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    assert request.param in SERVERS
    with url_on(request.param, tmp_path) as made:
        sync_schema(made, "api")
        yield made


@pytest.mark.parametrize("run", range(2))
def test_two_processes_requesting_120_fill_exactly_100_places(url: str, run: int) -> None:
    site = Site(synced(url, "api"), [fleet.node(f"h{n}", vcpus=5) for n in range(HOSTS)])
    command = [sys.executable, claimer.__file__, url, str(HOSTS)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [answer for process in processes for answer in stored.load_text(process.communicate(timeout=120)[0], list[str])]
    placed = Counter(answer for answer in answers if answer in site.homes)
    assert set(placed.values()) == {5}
    assert len(placed) == HOSTS
    assert Counter(site.claimed().values()) == placed
    assert len(answers) == 120
    assert all("CoreFilter" in answer for answer in answers if answer not in site.homes)
    assert site.overfull() == []
    site.database.dispose_connections()
