"""Notifications, from the rows that they are read off to whoever listens."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.notify import NOTICE_LEASE_S, NotificationSender
from db import outbox
from db.cell import host_removal, services
from db.cell.tables import cell_notifications
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.notification import EventType, Facts, Notice
from rpc.notifier import Notifier
from service.notifications import NotificationSettings
from service.periodic import wait_until
from tests.support.bus import FaultProxy, embedded_url, url_of
from tests.support.ground import GROUNDS, Ground
from tests.support.notified import Listener, merge_topics
from tests.support.region import Region, host, running

PATIENCE = 90.0
NO_WAIT = -1.0
"""Seconds that an agent must have been silent for: none."""
UUID = "11111111-1111-4111-8111-111111111111"


@pytest.fixture(params=["embedded", "rabbit"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from url_of(request.param)


@pytest.fixture
def listener(url: str) -> Iterator[Listener]:
    listener = Listener(url)
    yield listener
    listener.close()


@pytest.fixture(params=GROUNDS)
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    place = Ground(request.param, tmp_path)
    database = Database(place.database("cell1"), name="cell1", outbox=True)
    yield database
    place.end(database.dispose_connections, place.release)


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Database]:
    place = Ground("lite", tmp_path)
    database = Database(place.database("cell1"), name="cell1", outbox=True)
    yield database
    place.end(database.dispose_connections, place.release)


@pytest.fixture
def rabbit() -> Iterator[str]:
    yield from url_of("rabbit")


def a_notice(event: EventType, key: str = "1", at: float | None = None) -> Notice:
    return Notice(event_type=event, subject=UUID, key=key, at=time.time() if at is None else at, facts=Facts(host="h1", attempt=1))


def left(database: Database) -> int:
    count: int = database.read(lambda tx: tx.execute(sa.select(sa.func.count()).select_from(cell_notifications)).scalar_one())
    return count


def pairs(heard: list[dict[str, Any]], what: str) -> list[str]:
    types = merge_topics(message for message in heard if message["event_type"].startswith(what))
    return [each.rpartition(".")[2] for each in types]


def test_every_start_is_notified_with_end_or_error(tmp_path: Path, url: str, listener: Listener) -> None:
    """Of a boot with a failed attempt, of one that fits nowhere, of deletes; with no secret in any of it."""
    hosts = [host("bad", memory_mb=65536, failure_rate=1.0), host("good", memory_mb=32768)]
    notify = NotificationSettings(drivers=("messagingv2",), transport_url=url)
    with running(tmp_path, hosts, notify=notify) as cloud:
        secret = base64.b64encode(b"#cloud-config hush").decode()
        web = cloud.boot("web", user_data=secret, adminPass="hush-hush", metadata={"token": "hush"})
        cloud.wait_for(web, "ACTIVE")
        giant = cloud.boot("giant", flavor=_huge(cloud))
        cloud.wait_for(giant, "ERROR")
        for server in (web, giant):
            assert cloud.delete(server) == 204
        expected = {
            "scheduler.select_destinations.start": 1,
            "scheduler.select_destinations.end": 1,
            "instance.update": 1,
            "instance.create.start": 2,
            "instance.create.error": 1,
            "instance.create.end": 1,
            "instance.delete.start": 1,
            "instance.delete.end": 1,
        }
        assert wait_until(lambda: Counter(listener.types(web)) == expected, PATIENCE), listener.types(web)
        assert pairs(listener.heard(web), "instance.create.") == ["start", "error", "start", "end"]
        assert pairs(listener.heard(web), "instance.delete.") == ["start", "end"]
        others = {
            *("scheduler.select_destinations.start", "scheduler.select_destinations.error", "compute_task.build_instances.error"),
            *("instance.delete.start", "instance.delete.end"),
        }
        assert wait_until(lambda: set(listener.types(giant)) == others, PATIENCE), listener.types(giant)
        assert pairs(listener.heard(giant), "instance.delete.") == ["start", "end"]
        ids = [message["message_id"] for message in listener.heard()]
        assert len(set(ids)) == len(ids), "once per fact"
        assert "hush" not in str(listener.heard())
        assert secret not in str(listener.heard())
        [failed] = [message for message in listener.heard(web) if message["event_type"] == "instance.create.error"]
        data = failed["payload"]["nova_object.data"]
        assert (data["host"], data["attempt"], data["display_name"]) == ("bad", 1, "web")
        assert data["fault"]["nova_object.data"]["exception"]
        assert failed["context"]["request_id"] == data["request_id"]
        assert data["request_id"].startswith("req-")
        assert failed["publisher_id"] == "superconductor-compute:bad"
        agents = {m["publisher_id"] for m in listener.heard() if m["event_type"] == "service.create"}
        assert agents >= {"superconductor-compute:bad", "superconductor-compute:good"}


def test_off_they_cost_nothing(tmp_path: Path) -> None:
    """As they are by default: no statement reads or writes an outbox."""
    counter = StatementCounter()
    with running(tmp_path, [host("h1")]) as cloud, counter:
        server = cloud.boot("web")
        cloud.wait_for(server, "ACTIVE")
        cloud.delete(server)
        cloud.settle()
    assert not [statement for _, statement in counter.count_by_statement() if "notifications" in statement]


def test_a_dead_senders_successor_keeps_the_ids(database: Database) -> None:
    """What it had sent without removing it comes twice, and can be told."""
    url = embedded_url()
    listener, notifier = Listener(url), Notifier(NotificationSettings(drivers=("messagingv2",)), url)
    told = [a_notice(EventType.CREATE_START), a_notice(EventType.CREATE_END)]
    database.write(outbox.put_notices, "cell", told)
    now = time.time()
    # its lease has run out since
    died = database.write(outbox.take_notices, "cell", now - 2 * NOTICE_LEASE_S, now - NOTICE_LEASE_S, 10)
    assert [waiting.notice for waiting in died] == told
    assert database.write(outbox.take_notices, "cell", now - 1.5 * NOTICE_LEASE_S, now, 10) == [], "before that nobody else had it"
    sender = NotificationSender(lambda: database, "cell", notifier, 60.0)
    sender.send()
    assert left(database) == 0
    assert wait_until(lambda: len(listener.heard()) == 2, PATIENCE)
    assert [message["message_id"] for message in listener.heard()] == [notice.message_id for notice in told]
    assert not sender.send(), "nothing is left"
    notifier.close()
    listener.close()


def test_a_sender_keeps_the_order_across_topics(lite: Database) -> None:
    """Failures have a topic of their own. A consumer of both puts a start before its failure by their times."""
    from oslo_messaging.notify import _impl_test

    _impl_test.reset()
    events = [EventType.CREATE_START, EventType.CREATE_ERROR, EventType.CREATE_START, EventType.CREATE_END]
    now = time.time()
    told = [a_notice(event, str(number), now + number) for number, event in enumerate(events)]
    lite.write(outbox.put_notices, "cell", told)
    notifier = Notifier(NotificationSettings(drivers=("test",)), embedded_url())
    NotificationSender(lambda: lite, "cell", notifier, 60.0).send()
    sent = [message for _, message, _, _ in _impl_test.NOTIFICATIONS]
    assert [message["event_type"] for message in sent] == events
    failures_first = sorted(sent, key=lambda message: message["priority"])
    assert failures_first != sent
    assert merge_topics(failures_first) == events
    _impl_test.reset()
    notifier.close()


def test_what_is_put_while_another_sends_comes_behind(database: Database) -> None:
    """One sender at a time, so that no end overtakes its start."""
    database.write(outbox.put_notices, "cell", [a_notice(EventType.CREATE_START)])
    now = time.time()
    [first] = database.write(outbox.take_notices, "cell", now, now + NOTICE_LEASE_S, 10)
    database.write(outbox.put_notices, "cell", [a_notice(EventType.CREATE_END)])
    assert database.write(outbox.take_notices, "cell", now, now + NOTICE_LEASE_S, 10) == []
    database.write(outbox.finish_notices, "cell", [first.id], [])
    [second] = database.write(outbox.take_notices, "cell", now, now + NOTICE_LEASE_S, 10)
    database.write(outbox.finish_notices, "cell", [], [second.id])
    assert len(database.write(outbox.take_notices, "cell", now, now + NOTICE_LEASE_S, 10)) == 1, "what was not sent is let go of"


def test_a_transaction_that_is_rolled_back_tells_nothing(database: Database) -> None:
    def fail(tx: sa.Connection) -> None:
        outbox.put_notices(tx, "cell", [a_notice(EventType.CREATE_START)])
        raise errors.Conflict("lost")

    with pytest.raises(errors.Conflict):
        database.write(fail)
    assert left(database) == 0


def test_services_tell_when_they_come_change_and_go(database: Database) -> None:
    agent = ("h1", "superconductor-compute")
    for _ in range(2):  # only the first heartbeat is news
        database.write(services.record_heartbeats, [services.Beat(host=agent[0], binary=agent[1])], time.time())
    database.write(services.set_disabled, *agent, True, "broken fan", time.time())
    for _ in range(2):  # the host's removal may be repeated, and is told once
        database.write(host_removal.from_cell, *agent, NO_WAIT)
    now = time.time()
    told = [waiting.notice for waiting in database.write(outbox.take_notices, "cell", now, now + NOTICE_LEASE_S, 10)]
    assert [notice.event_type for notice in told] == ["service.create", "service.update", "service.delete"]
    assert [notice.facts.service and notice.facts.service.disabled_reason for notice in told] == [None, "broken fan", "broken fan"]


def test_a_bus_that_is_down_holds_nothing_up(lite: Database, rabbit: str, caplog: pytest.LogCaptureFixture) -> None:
    """Until what waits is older than it is kept for: then it is dropped, and counted."""
    proxy, listener = FaultProxy(rabbit), Listener(rabbit)
    notifier = Notifier(NotificationSettings(drivers=("messagingv2",), transport_url=proxy.url), "embedded://unused/")
    sender = NotificationSender(lambda: lite, "cell", notifier, 3600.0)
    proxy.cut()
    lite.write(outbox.put_notices, "cell", [a_notice(EventType.CREATE_START)])
    sender.send()
    assert left(lite) == 1
    assert "notifications wait to be sent" in caplog.text
    proxy.restore()

    def sent() -> bool:
        sender.send()
        return left(lite) == 0

    assert wait_until(sent, PATIENCE)
    assert wait_until(lambda: len(listener.heard()) == 1, PATIENCE)
    lite.write(outbox.put_notices, "cell", [a_notice(EventType.CREATE_END, at=time.time() - 7200.0)])
    NotificationSender(lambda: lite, "cell", notifier, 3600.0).send()
    assert left(lite) == 0
    assert "1 notifications were dropped" in caplog.text
    notifier.close()
    listener.close()
    proxy.close()


def test_a_driver_that_does_not_exist_is_refused() -> None:
    with pytest.raises(errors.Misconfigured, match="pigeon"):
        Notifier(NotificationSettings(drivers=("pigeon",)), embedded_url())


def test_any_driver_of_the_library_serves() -> None:
    from oslo_messaging.notify import _impl_test

    _impl_test.reset()
    notifier = Notifier(NotificationSettings(drivers=("test",)), embedded_url())
    notifier.send({}, {"event_type": "instance.create.start", "priority": "INFO", "payload": {}})
    [(_, message, priority, _)] = _impl_test.NOTIFICATIONS
    assert (message["event_type"], priority) == ("instance.create.start", "INFO")
    _impl_test.reset()
    notifier.close()


def _huge(cloud: Region) -> str:
    cloud.flavor("huge", vcpus=999)
    return "huge"
