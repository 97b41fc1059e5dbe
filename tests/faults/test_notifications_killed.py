"""Whoever sends notifications is killed with a page of them in hand, under load, on real servers: nothing is lost, and what comes
twice can be told.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy as sa

from db.api.rows.tables import notifications
from db.cell.tables import cell_notifications, instances
from db.sql.engine import Database
from objects.instance import State
from service.periodic import wait_until
from tests.support.bus import url_of
from tests.support.notified import Listener, merge_topics
from tests.support.processes import IMAGE, PATIENCE, Deployment, RoleProcess, deployment, write_configuration
from tests.support.weather import all_weather

LEASE = 60.0
"""Seconds that a page stays with a sender that died."""
ROUNDS = 3 if all_weather() else 1
"""Times that each of the two senders is killed, at least."""
MOST_ROUNDS = 6
"""By then one of them was killed between sending something and removing it."""
CREATE, DELETE, SELECT = "instance.create", "instance.delete", "scheduler.select_destinations"
BURIED = "compute_task.build_instances.error"
OUTBOXES = {"super": notifications, "cell": cell_notifications}


class Site:
    """A deployment of one cell whose conductors do one thing each, with somebody who listens."""

    def __init__(self, made: Deployment, listener: Listener) -> None:
        self.made = made
        self.listener = listener
        self.cell = Database(str(made.groups["cell_database"]["connection"]), name="cell1")
        self.senders: dict[str, RoleProcess] = {}
        self._stopping = threading.Event()
        self._load = threading.Thread(target=self._ask, daemon=True)
        self.posted = 0
        self.giants = 0

    def start(self) -> None:
        made = self.made
        for role in OUTBOXES:
            self.start_sender(role)
        for role in ("scheduler", "api"):
            made.start(role)
        made.start_agent("h1", vcpus=1000, memory_mb=1 << 20)
        made.start_agent("h2", vcpus=1000, memory_mb=1 << 20, failure_rate=0.3)
        assert all(process.says("is ready") for process in made.processes), [process.log[-2000:] for process in made.processes]
        assert wait_until(lambda: made.operate("host", "list", "-f", "value", "-c", "Host").split() == ["h1", "h2"], PATIENCE, 0.5)
        made.operate("host", "discover")
        assert made.boots("first")
        self._load.start()

    def start_sender(self, role: str) -> RoleProcess:
        """The configuration of the other one is taken from it, as it must not have both."""
        other = {"super": "cell_database", "cell": "api_database"}[role]
        changes: dict[str, dict[str, object]] = {"conductor": {"roles": role}, other: {"connection": ""}}
        self.senders[role] = self.made.start("conductor", name=f"{role}-conductor", **changes)
        return self.senders[role]

    def stop_load(self) -> None:
        self._stopping.set()
        if self._load.is_alive():
            self._load.join()

    def _ask(self) -> None:
        """Boots, one of which fits nowhere now and then, and deletes of what was asked for before."""
        while not self._stopping.is_set():
            uuid = self.made.post(f"load{self.posted}-", 5)
            self.posted += 1
            if self.posted % 3 == 0:
                requests.delete(f"{self.made.endpoint}/servers/{uuid}", timeout=30)
            if self.posted % 10 == 0:
                body: Any = {"server": {"name": "giant", "flavorRef": "huge", "imageRef": IMAGE}}
                assert requests.post(f"{self.made.endpoint}/servers", json=body, timeout=30).status_code == 202
                self.giants += 1
            self._stopping.wait(0.2)

    def taken(self, role: str) -> int:
        """How many notices a sender has in hand."""
        table = OUTBOXES[role]
        query = sa.select(sa.func.count()).where(table.c.taken_until > time.time())
        return self._place(role).read(_number, query)

    def left(self) -> int:
        """How many notices are not sent yet."""
        queries = {role: sa.select(sa.func.count()).select_from(table) for role, table in OUTBOXES.items()}
        return sum(self._place(role).read(_number, query) for role, query in queries.items())

    def _place(self, role: str) -> Database:
        return self.made.database if role == "super" else self.cell

    def kill_in_mid_page(self, role: str) -> bool:
        """SIGKILL to master and worker while it has a page and has removed nothing of it. Returns whether it had sent some."""

        def killed() -> bool:
            if not self.taken(role):
                return False
            self.senders[role].kill()
            if self.taken(role):
                return True
            assert self.start_sender(role).says("is ready"), "it had just been done with it"
            return False

        assert wait_until(killed, PATIENCE, 0.001)
        table = OUTBOXES[role]
        query = sa.select(table.c.message_id).where(table.c.taken_until > time.time())
        in_hand = set(self._place(role).read(lambda tx: tx.execute(query).scalars().all()))
        return wait_until(lambda: any(message["message_id"] in in_hand for message in self.listener.heard()), 2.0, 0.1)

    def at_rest(self) -> bool:
        answer = requests.get(f"{self.made.endpoint}/servers/detail", params={"status": "BUILD", "limit": "1"}, timeout=30)
        deleting = sa.select(sa.func.count()).where(instances.c.state == State.DELETING)
        return answer.json() == {"servers": []} and not self.cell.read(_number, deleting)

    def rows(self) -> Sequence[sa.Row[Any]]:
        """All instances of the cell, the deleted ones too."""
        return self.cell.read(lambda tx: tx.execute(sa.select(instances)).all())


def _number(tx: sa.Connection, query: sa.Select[int]) -> int:
    return int(tx.execute(query).scalar_one())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with contextmanager(url_of)("rabbit") as url, deployment(tmp_path) as made, contextlib.closing(Listener(url)) as listener:
        made.groups["oslo_messaging_notifications"] = {"driver": "messagingv2", "transport_url": url}
        write_configuration(made.conf, made.groups)
        made.operate("flavor", "create", "huge", "--id", "huge", "--vcpus", "9999", "--ram", "64", "--disk", "1")
        site = Site(made, listener)
        try:
            site.start()
            yield site
        finally:
            site.stop_load()
            site.cell.dispose_connections()


def test_every_start_has_its_end_despite_killed_senders(site: Site) -> None:
    was_sent_in_part = False
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and was_sent_in_part:
            break
        assert wait_until(lambda: not any(map(site.taken, OUTBOXES)), 2 * LEASE, 0.01), "what a dead one has is let go"
        for role in OUTBOXES:
            was_sent_in_part |= site.kill_in_mid_page(role)
            assert site.start_sender(role).says("is ready")
    site.stop_load()
    assert wait_until(site.at_rest, PATIENCE, 0.5)
    assert wait_until(lambda: site.left() == 0, 2 * LEASE, 0.5), site.left()
    assert wait_until(lambda: _quiet(site.listener), PATIENCE, 1.0)

    heard = site.listener.heard()
    facts = _once(heard)
    assert len(facts) < len(heard), "a page that was in hand is sent again"
    _check_pairs(facts)
    _check_complete(site, facts)


def _quiet(listener: Listener) -> bool:
    before = len(listener.heard())
    time.sleep(1.0)  # longer than a sender's round
    return len(listener.heard()) == before


def _once(heard: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a consumer that keeps ids has them: each fact when it came first. What comes again under an id says the same."""
    found: dict[str, dict[str, Any]] = {}
    for message in heard:
        first = found.setdefault(message["message_id"], message)
        assert (first["event_type"], first["payload"]) == (message["event_type"], message["payload"])
    return list(found.values())


def _data(message: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = message["payload"]["nova_object.data"]
    return data


def _check_pairs(facts: list[dict[str, Any]]) -> None:
    """Of each attempt, each delete and each decision: one start, and then one end or error."""
    pairs: defaultdict[tuple[str, Any], list[dict[str, Any]]] = defaultdict(list)
    for message in facts:
        what = message["event_type"].rpartition(".")[0]
        if what in (CREATE, DELETE):
            data = _data(message)
            pairs[what, (data["uuid"], data["attempt"] if what == CREATE else None)].append(message)
        elif what == SELECT:
            pairs[what, message["context"]["request_id"]].append(message)
    for (what, which), messages in pairs.items():
        told = [event_type.rpartition(".")[2] for event_type in merge_topics(messages)]
        begun, ended = told[::2], told[1::2]
        assert begun == ["start"] * len(ended), (what, which, told)
        assert set(ended) <= {"end", "error"}, (what, which, told)
        assert len(ended) == 1 or what == SELECT, (what, which, told)  # a request may be decided again by a successor


def _check_complete(site: Site, facts: list[dict[str, Any]]) -> None:
    """Every server of the cell's records is told as it ended, with each of its attempts that failed; no other one is."""
    told = Counter((message["event_type"], _data(message).get("uuid") or _data(message).get("instance_uuid")) for message in facts)
    ended = {State.ACTIVE: f"{CREATE}.end", State.DELETED: f"{DELETE}.end", State.ERROR: BURIED}
    rows = {row.uuid: row.state for row in site.rows()}
    assert len(rows) > site.posted
    for uuid, state in rows.items():
        assert told[ended[state], uuid] == 1, (uuid, state)
        assert told["instance.update", uuid] == 1, (uuid, state)
    nowhere = {uuid for event, uuid in told if event == BURIED} - set(rows)
    assert len(nowhere) == site.giants
