"""What users with limits of their own are charged: exactly what they may have under a race, and nothing is looked for elsewhere."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from db.api.projects import quotas, user_quotas
from db.api.queue.accepting import NewBatch, NewServer, foresee_accept
from db.api.queue.accepting import accept_batch as accept_batches
from db.api.rows.tables import instance_mappings
from db.api.rows.tables import quotas as quota_rows
from db.audit import quotas as quota_audit
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.group import GroupPolicy
from objects.quota import Admission, OwnLimits, QuotaLimits, QuotaUsage, UserQuota
from tests.functional.db.test_db_lock_order import counting
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, Queue
from tests.support.transactions import run_threads

NONE = QuotaLimits()
SIZE = fleet.flavor(vcpus=2, memory_mb=512)


@pytest.fixture
def queue(database: Database) -> Iterator[Queue]:
    made = Queue(database)
    yield made
    assert database.read(quota_audit.list_differences) == []


def arrival(user: str, count: int = 1, *, project: str = "p", least: int | None = None, most: int = -1) -> NewBatch:
    spec = fleet.spec(size=SIZE, project_id=project, user_id=user, name="web", num_instances=count)
    news = tuple(NewServer(uuid=str(uuid.uuid4()), name=f"web-{n + 1}", launch_index=n) for n in range(count))
    admission = Admission(limits=QuotaLimits(instances=most), at_least=least)
    return NewBatch(spec=spec, servers=news, deadline=FAR, admission=admission)


def accept(
    queue: Queue, user: str, count: int = 1, *, project: str = "p", least: int | None = None, most: int = -1
) -> tuple[str, ...]:
    """``most``: the default limit of projects."""
    new = arrival(user, count, project=project, least=least, most=most)
    accepted = queue.database.write(accept_batch, new.spec, new.servers, now=NOW, deadline=FAR, admission=new.admission)
    return accepted.uuids


def limit(queue: Queue, user: str, *, project: str = "p", force: bool = False, most: int = -1, **limits: int) -> UserQuota:
    defaults = QuotaLimits(instances=most)
    _, changed = queue.database.write(quotas.change_user, project, user, OwnLimits(**limits), defaults, force=force)
    return changed


def used(queue: Queue, user: str) -> QuotaUsage | None:
    found = queue.database.read(user_quotas.get, "p", user)
    return None if found is None else found.used


def of(count: int) -> QuotaUsage:
    return QuotaUsage.of_flavor(SIZE, count)


def test_concurrent_requests_of_two_users_respect_both_limits(queue: Queue) -> None:
    limit(queue, "u", instances=20)
    limit(queue, "v", cores=30)
    together = threading.Barrier(100)
    refusals: list[str] = []

    def boot(number: int) -> None:
        together.wait(60)
        try:
            accept(queue, "uv"[number % 2])
        except errors.OverQuota as refusal:
            refusals.append(str(refusal))

    with counting() as met:
        assert run_threads(100, boot) == []
    text = "Quota exceeded for {}: Requested {}, but already used {} of {} {} of this user"
    assert (
        sorted(refusals)
        == [text.format("cores", 2, 30, 30, "cores")] * 35 + [text.format("instances", 1, 20, 20, "instances")] * 30
    )
    assert (used(queue, "u"), used(queue, "v")) == (of(20), of(15))
    assert queue.database.read(quotas.get, "p").used == of(35)
    assert met["deadlock"] == 0


def test_fewer_servers_are_created_if_minimum_allows(queue: Queue) -> None:
    limit(queue, "u", instances=3)
    accept(queue, "u")
    assert len(accept(queue, "u", 5, least=1)) == 2
    with pytest.raises(errors.OverQuota, match="Requested 1, but already used 3 of 3 instances of this user"):
        accept(queue, "u")
    assert len(accept(queue, "v", 5)) == 5
    assert used(queue, "u") == of(3)
    assert used(queue, "v") is None


def test_usage_before_the_first_limit_counts_too(queue: Queue) -> None:
    first, second, _ = accept(queue, "u", 3)
    accept(queue, "u", project="q")
    accept(queue, "v")
    assert limit(queue, "u", cores=8).used == of(3)
    queue.delete(first)
    assert used(queue, "u") == of(2)
    queue.database.write(quotas.forget_user, "p", "u")
    queue.delete(second)
    assert used(queue, "u") is None
    assert limit(queue, "u", ram=512).used == of(1)


def test_servers_in_error_count_until_they_are_deleted(queue: Queue) -> None:
    limit(queue, "u", instances=1)
    (server,) = accept(queue, "u")
    spec = queue.database.read(lambda tx: tx.execute(sa.select(instance_mappings.c.batch_id)).scalar_one())
    queue.bury(queue.lease(spec))
    with pytest.raises(errors.OverQuota):
        accept(queue, "u")
    queue.delete(server)
    accept(queue, "u")


def test_nothing_is_read_while_no_user_has_limits(queue: Queue) -> None:
    """Accepts and deletes then run the statements that they ran before there were limits of users."""
    limit(queue, "u", project="other", instances=5)

    def statements(user: str, project: str) -> tuple[int, int]:
        (server,) = accept(queue, user, project=project)
        with StatementCounter(queue.database) as counter:
            accept(queue, user, project=project)
        (accepting,) = counter.totals_by_database().values()
        with StatementCounter(queue.database) as counter:
            queue.delete(server)
        (deleting,) = counter.totals_by_database().values()
        assert not any("user_quotas" in text for _, text in counter.count_by_statement()) or project == "other"
        return accepting.executions, deleting.executions

    accepts, deletes = statements("u", "p")
    assert statements("v", "p") == (accepts, deletes)
    assert statements("u", "other") == (accepts + 2, deletes + 2)
    with StatementCounter(queue.database) as counter:
        queue.database.write(accept_batches, [arrival("u", 2), arrival("v"), arrival("u", project="q")], NOW)
    (together,) = counter.totals_by_database().values()
    assert together.executions == 5, counter.count_by_statement()  # specs, requests, mappings, and the two projects


def test_batches_accepted_together_are_charged_to_their_users(queue: Queue) -> None:
    limit(queue, "u", instances=4)
    limit(queue, "v", instances=9)
    queue.database.write(accept_batches, [arrival("u", 2), arrival("v", 3), arrival("u"), arrival("w")], NOW)
    assert (used(queue, "u"), used(queue, "v"), used(queue, "w")) == (of(3), of(3), None)
    with pytest.raises(errors.OverQuota, match="instances of this user: several batches"):
        queue.database.write(accept_batches, [arrival("u"), arrival("v"), arrival("u")], NOW)
    assert (used(queue, "u"), used(queue, "v")) == (of(3), of(3))


def test_a_dry_run_says_the_users_remaining_room(queue: Queue) -> None:
    limit(queue, "u", instances=2)
    assert queue.database.read(foresee_accept, arrival("u", 5, least=1))[0] == 2
    assert queue.database.read(foresee_accept, arrival("v", 5, least=1)) == (5, [])
    count, (refusal,) = queue.database.read(foresee_accept, arrival("u", 3))
    assert (count, refusal) == (3, "Quota exceeded for instances: Requested 3, but already used 0 of 2 instances of this user")


def test_all_operations_at_once_end_matching_the_rows(queue: Queue) -> None:
    """Boots and deletes while limits of users come, change and go, in two projects."""
    known: list[str] = []

    def step(drawn: random.Random) -> None:
        project, user, kind = drawn.choice("pq"), drawn.choice("uv"), drawn.randrange(6)
        if kind < 2 or not known:
            known.extend(accept(queue, user, drawn.randint(1, 4), project=project, least=1, most=30))
        elif kind < 4:
            queue.delete(drawn.choice(known))
        elif kind == 4:
            limit(queue, user, project=project, force=True, instances=drawn.randint(5, 20))
        elif drawn.random() < 0.5:
            queue.database.write(quotas.forget_user, project, user)
        else:
            assert queue.database.read(quota_audit.list_differences) == []
            assert queue.database.write(quota_audit.repair_charges, project) == []

    def work(number: int) -> None:
        drawn = random.Random(number)
        for _ in range(25):
            with contextlib.suppress(errors.OverQuota):
                step(drawn)

    with counting() as met:
        assert run_threads(8, work) == []
    assert met["deadlock"] == 0
    assert queue.database.read(quota_audit.list_differences) == []
    counts = {quota.project_id: quota.limited_users for quota in queue.database.read(quotas.list_all)}
    limited = [quota.project_id for quota in queue.database.read(user_quotas.list_all)]
    assert counts == {project: limited.count(project) for project in counts}
    for server in known:
        queue.delete(server)
    assert {quota.used for quota in queue.database.read(user_quotas.list_all)} <= {of(0)}


# -- limits ----------------------------------------------------------------------------------------------------------------------


def test_a_users_limit_lies_between_usage_and_remainder(queue: Queue) -> None:
    accept(queue, "u", 3)
    queue.database.write(quotas.change_limits, "p", OwnLimits(instances=10))
    limit(queue, "v", instances=4, cores=99)
    for refused, text in ((2, "greater than or equal to already used and reserved 3"), (7, "equal to 6"), (-1, "equal to 6")):
        with pytest.raises(errors.Invalid, match=rf"Quota limit {refused} for instances must be .*{text}"):
            limit(queue, "u", instances=refused)
    assert used(queue, "u") is None
    limit(queue, "u", instances=6, cores=-1)
    limit(queue, "v", instances=4)
    with pytest.raises(errors.Invalid, match="less than or equal to 4"):
        limit(queue, "v", instances=5)
    limit(queue, "v", instances=5, force=True)
    limit(queue, "u", instances=2, force=True)
    with pytest.raises(errors.OverQuota):
        accept(queue, "u")
    queue.database.write(quotas.forget_user, "p", "v", ("instances",))
    limit(queue, "u", instances=10)
    found = queue.database.read(user_quotas.get, "p", "v")
    assert found is not None
    assert found.own == OwnLimits(cores=99)


def test_the_projects_default_limit_bounds_unlimited_users(queue: Queue) -> None:
    with pytest.raises(errors.Invalid, match="less than or equal to 5"):
        limit(queue, "u", instances=6, most=5)
    limit(queue, "u", instances=5, most=5)


def test_a_projects_limit_covers_its_users_sum(queue: Queue) -> None:
    limit(queue, "u", instances=6)
    limit(queue, "v", instances=4, ram=-1)
    with pytest.raises(
        errors.Invalid, match="Quota limit 9 for instances must be greater than or equal to already used and reserved 10"
    ):
        queue.database.write(quotas.change_limits, "p", OwnLimits(instances=9))
    queue.database.write(quotas.change_limits, "p", OwnLimits(instances=10, ram=0))
    queue.database.write(quotas.change_limits, "p", OwnLimits(instances=9), force=True)


def test_all_users_lose_their_limits_together(queue: Queue) -> None:
    for user, project in (("u", "p"), ("v", "p"), ("u", "q")):
        limit(queue, user, project=project, instances=1)
    queue.database.write(quotas.forget_users, "p")
    assert [quota.project_id for quota in queue.database.read(user_quotas.list_all)] == ["q"]
    assert queue.database.read(quotas.get, "p").limited_users == 0
    accept(queue, "u", 2)
    queue.database.write(quotas.forget_users, "p")


def test_two_users_together_respect_the_projects_limit(queue: Queue) -> None:
    """Whoever sets the second limit sees the first."""
    queue.database.write(quotas.change_limits, "p", OwnLimits(instances=10))
    together = threading.Barrier(8)
    refused: list[str] = []

    def give(number: int) -> None:
        together.wait(60)
        try:
            limit(queue, f"u{number}", instances=3)
        except errors.Invalid as error:
            refused.append(str(error))

    assert run_threads(8, give) == []
    assert refused == ["Quota limit 3 for instances must be less than or equal to 1."] * 5
    assert queue.database.read(quotas.get, "p").limited_users == 3


def test_the_audit_names_what_differs_and_repairs_it(queue: Queue) -> None:
    accept(queue, "u", 3)
    accept(queue, "v", 1)
    limit(queue, "u", instances=5)
    limit(queue, "v", instances=5)

    def spoil(tx: ApiTransaction) -> None:
        user_quotas.correct_usage(tx, UserQuota(project_id="p", user_id="u", used=of(9)))
        tx.execute(sa.update(quota_rows).values(limited_users=0))

    queue.database.write(spoil)
    drift = quota_audit.Drift(project_id="p", user_id="u", used=of(9), counted=of(3))
    assert queue.database.read(quota_audit.list_differences) == [drift]
    assert queue.database.write(quota_audit.repair_charges, "p") == [drift]
    assert queue.database.read(quotas.get, "p").limited_users == 2
    accept(queue, "u")
    assert used(queue, "u") == of(4)


def test_the_servers_of_group_users_are_counted_apart(queue: Queue) -> None:
    group = fleet.group(GroupPolicy.SOFT_AFFINITY)

    def join(user: str, most: int) -> None:
        spec = fleet.spec(size=SIZE, user_id=user, group=group)
        news = [NewServer(uuid=str(uuid.uuid4()), name="web")]
        admission = Admission(user_group_members=most)
        queue.database.write(accept_batch, spec, news, now=NOW, deadline=FAR, admission=admission)

    join("v", -1)
    join("v", -1)
    join("u", 1)
    with pytest.raises(errors.OverQuota, match="too many servers in group"):
        join("u", 1)
    join("u", 2)
