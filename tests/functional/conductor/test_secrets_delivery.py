"""From the queue through a cell to an agent: given out with the grant, by whoever has the key, and to nobody without it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conductor.build import Builder
from conductor.cell_conductor import CellConductor
from conductor.context import ConductorContext
from conductor.tidy import erase_decided, erase_finished
from db import secrets
from db.cell import instances, staging
from db.sql.connection import ApiTransaction
from objects import errors
from objects.build import Report, ReportKind, Verdict, with_secrets
from objects.instance import Instance, State
from objects.spec import BootSecrets, RequestSpec
from rpc.scheduler import SchedulerClient
from service.vault import API, Vault, new_key
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.cell_site import Site, said
from tests.support.conductor import servers
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL, Ground
from tests.support.world import World, world

MASTER = Vault([new_key()])
CELL_UUID = str(uuid.uuid4())
OWN = Vault(MASTER.keys_of(CELL_UUID))
SECRETS = BootSecrets(user_data="bWFya2VkLWh1bnRlcjI=", admin_pass="marked-password")
SPEC = fleet.spec(has_secrets=True)


class TestCellConductor:
    @pytest.fixture(params=USUAL)
    def site(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
        place = Ground(request.param, tmp_path)
        made = Site(place)
        made.conductor = CellConductor(made.database, made.sender, OWN)
        yield made
        place.end(made.close, place.release)

    def stage(self, site: Site, *uuids: str, spec: RequestSpec = SPEC, vault: Vault | None = MASTER) -> None:
        rows = [Instance(uuid=u, state=State.STAGED, fence=1, host="h1", node="h1", deadline=1e12) for u in uuids]
        news = [staging.NewInstance(instance=row, name=row.uuid, launch_index=0, created_at=1.0) for row in rows]
        sealed = vault.seal_secrets(CELL_UUID, spec.batch_id, SECRETS) if vault is not None else None
        site.database.write(staging.stage_instances, spec, news, 1.0, sealed)

    def asked(self, *uuids: str) -> list[Report]:
        return [msgspec.structs.replace(said(ReportKind.ACCEPT, u), wants_secrets=True) for u in uuids]

    def ask(self, site: Site, *uuids: str) -> list[Verdict]:
        return site.report(*self.asked(*uuids))

    def test_a_grant_carries_its_batchs_secrets_once(self, site: Site) -> None:
        other = fleet.spec(has_secrets=True)
        self.stage(site, "u1", "u2")
        self.stage(site, "v1", spec=other)
        verdicts = site.report(*self.asked("u1", "v1", "u2", "unknown"), said(ReportKind.GONE, "w1"))
        assert [v.accepted for v in verdicts] == [True, True, True, False, False]
        assert [v.secrets for v in verdicts] == [SECRETS, SECRETS, None, None, None]
        assert [v.secrets_with for v in verdicts] == [None, None, "u1", None, None]
        assert [v.secrets for v in with_secrets(verdicts)] == [SECRETS, SECRETS, SECRETS, None, None]

    def test_an_accept_asked_again_is_answered_again(self, site: Site) -> None:
        """The first answer may have been lost."""
        self.stage(site, "u1")
        for _ in range(2):
            erase_finished(site.database, site.conductor.aside)
            assert [(v.accepted, v.secrets) for v in self.ask(site, "u1")] == [(True, SECRETS)]

    def test_without_asking_or_permission_nobody_gets_any(self, site: Site) -> None:
        self.stage(site, "u1", "u2")
        assert [v.secrets for v in site.report(said(ReportKind.ACCEPT, "u1"))] == [None]
        stranger = msgspec.structs.replace(self.asked("u2")[0], host="h9", builder="h9:a")
        assert [(v.accepted, v.secrets) for v in site.report(stranger)] == [(False, None)]
        assert site.state("u2") == ("staged", "h1", 1)

    @pytest.mark.parametrize("kind", [ReportKind.ACTIVE, ReportKind.FAILED, ReportKind.GONE])
    def test_only_who_asks_whether_to_build_gets_them(self, site: Site, kind: ReportKind) -> None:
        self.stage(site, "u1", "u2")
        self.ask(site, "u1")
        asked = msgspec.structs.replace(self.asked("u1")[0], kind=kind)
        assert [verdict.secrets for _ in range(2) for verdict in site.report(asked)] == [None, None]

    def test_another_start_gets_none_for_the_same_attempt(self, site: Site) -> None:
        self.stage(site, "u1")
        self.ask(site, "u1")
        later = msgspec.structs.replace(self.asked("u1")[0], builder="h1:b")
        assert [(verdict.accepted, verdict.secrets) for verdict in site.report(later)] == [(False, None)]

    def test_without_the_key_there_is_no_answer_yet(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        """The agent asks again, and spawns nothing meanwhile."""
        self.stage(site, "u1")
        site.conductor = CellConductor(site.database, site.sender, Vault([new_key()]))
        for _ in range(2):
            with pytest.raises(errors.Misconfigured, match=r"\[secrets\] keys"):
                self.ask(site, "u1")
        assert "[secrets] keys" in caplog.text
        assert "u1" in caplog.text
        erase_finished(site.database, site.conductor.aside)
        site.conductor = CellConductor(site.database, site.sender, OWN)
        assert [(v.accepted, v.secrets) for v in self.ask(site, "u1")] == [(True, SECRETS)]

    def test_a_build_with_lost_secrets_ends_with_reason(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        self.stage(site, "u1", vault=None)
        (verdict,) = self.ask(site, "u1")
        assert (verdict.accepted, verdict.secrets) == (False, None)
        assert "no longer stored" in verdict.reason
        row = site.database.read(instances.get, "u1")
        assert row is not None
        assert row.state is State.ERROR
        assert "user data and password of this build are no longer stored" in (row.fault or "")
        assert "u1" in caplog.text

    @pytest.mark.parametrize("lost", [True, False])
    def test_a_build_deleted_while_granted_awaits_its_delete(self, site: Site, *, lost: bool) -> None:
        """What was granted in time keeps its secrets, which were read with the grant: the delete reaches the host as well."""
        self.stage(site, "u1", vault=None if lost else MASTER)
        conductor = site.conductor
        settle = conductor._settle

        def deleted_after(reports: object) -> object:
            outcomes = settle(reports)  # type: ignore[arg-type]  # the test stands between the two transactions
            site.database.write(instances.delete, ["u1"], time.time())
            erase_finished(site.database, site.conductor.aside)
            return outcomes

        conductor._settle = deleted_after  # type: ignore[assignment]  # as above
        assert [(v.accepted, v.secrets) for v in self.ask(site, "u1")] == [(False, None) if lost else (True, SECRETS)]
        assert site.state("u1")[0] == "deleting"

    def test_nothing_shows_them(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG")
        self.stage(site, "u1")
        text = repr(self.ask(site, "u1")) + caplog.text
        assert "marked" not in text
        assert "bWFya2Vk" not in text


class TestSuperConductor:
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[World]:
        with world(tmp_path, {"cell1": ["a1"], "cell2": ["b1"]}) as made:
            yield made

    def accept(self, cloud: World, sealed: str | None = "", count: int = 1, on: tuple[str, ...] = ()) -> RequestSpec:
        spec, now = fleet.spec(has_secrets=True, force_hosts=on, num_instances=count), time.time()
        sealed = MASTER.seal_secrets(API, spec.batch_id, SECRETS) if sealed == "" else sealed

        def write(tx: ApiTransaction) -> None:
            accept_batch(tx, spec, servers(count), now=now, deadline=now + 60.0)
            if sealed is not None:
                secrets.keep_requests(tx, {spec.batch_id: sealed}, now)

        cloud.api.write(write)
        return spec

    def build(self, conductor: Conductor, spec: RequestSpec, vault: Vault) -> None:
        context = ConductorContext(conductor.ledger, conductor.registry, vault=vault)
        client = SchedulerClient(conductor.bus, timeout=10.0)
        builder = Builder(context, client, owner="one", lease_seconds=0.0, retry_pause=0.1)
        builder.schedule_and_build([spec.batch_id])

    def test_each_cell_gets_them_sealed_for_itself(self, cloud: World) -> None:
        conductor = cloud.conductor("one")
        for host in ("a1", "b1"):
            spec = self.accept(cloud, on=(host,))
            self.build(conductor, spec, MASTER)
            (row,) = [cloud.row(u) for u in cloud.uuids(spec)]
            assert row.host == host
            cell = conductor.registry.of_host(row.host or "")
            kept = cloud.databases[cell.name].read(secrets.of_builds, [row.uuid])[row.uuid].sealed or ""
            own = Vault(MASTER.keys_of(cell.uuid))
            assert own.open(spec.batch_id, kept) == SECRETS
            with pytest.raises(errors.Misconfigured):
                Vault(MASTER.keys_of(CELL_UUID)).open(spec.batch_id, kept)
            assert cloud.api.read(secrets.of_request, spec.batch_id) is None, "erased with the hand-over"

    def test_they_stay_until_the_batch_is_handed_over(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), self.accept(cloud, count=2)
        deleted, _ = cloud.uuids(spec)
        cloud.delete(deleted)
        self.build(conductor, spec, MASTER)
        assert cloud.requests() == {}
        assert cloud.api.read(secrets.of_request, spec.batch_id) is not None, "the conductor saw one of two"
        erase_decided(cloud.api)
        assert cloud.api.read(secrets.of_request, spec.batch_id) is None

    @pytest.mark.parametrize("keys", [[], [new_key()], MASTER.keys_of(API)])
    def test_without_the_key_nothing_is_claimed_or_built(
        self, cloud: World, keys: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        conductor, spec = cloud.conductor("one"), self.accept(cloud)
        self.build(conductor, spec, Vault(keys))
        assert "[secrets] keys" in caplog.text
        assert len(cloud.requests()) == 1
        assert cloud.evidence().claims == {}
        erase_decided(cloud.api)
        time.sleep(0.15)  # longer than the builder's pause before it tries a batch again
        self.build(conductor, spec, MASTER)
        assert cloud.requests() == {}

    def test_a_batch_with_lost_secrets_is_buried(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), self.accept(cloud, None, count=2)
        self.build(conductor, spec, MASTER)
        for one in cloud.uuids(spec):
            row = cloud.row(one)
            assert row.state is State.ERROR
            assert row.fault == "Build aborted: its user data and password are no longer stored."
        assert cloud.evidence().claims == {}
