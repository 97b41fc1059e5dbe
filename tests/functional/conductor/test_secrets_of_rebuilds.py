"""The secrets of a rebuild, from the API database through a cell to the guest: sealed for each, and erased with the task."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from compute.journal import Received, received_by
from conductor.context import ConductorContext
from conductor.operate import Operator
from db.api.operations import accepting, operations
from db.api.operations.accepting import NewOperation
from db.api.servers import mappings
from db.cell import tasks
from db.cell.tables import tasks as table
from objects import errors
from objects.operation import Operation, OperationArgs, OperationKind, Outcome
from objects.spec import BootSecrets
from objects.task import DriveChanges
from service.periodic import wait_until
from service.vault import API, Vault, new_key
from tests.support import fleet
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import PATIENCE, World, world

MASTER = Vault([new_key()])
SECRETS = BootSecrets(user_data="bWFya2VkLWh1bnRlcjI=", admin_pass="marked-password")
RECEIVED = Received(
    user_data_sha256=hashlib.sha256(b"bWFya2VkLWh1bnRlcjI=").hexdigest(), admin_pass_set=True, files=0, key_name="k"
)
ARGS = OperationArgs(image_id="new", drive=DriveChanges(has_secrets=True, key_name="k", public_key="ssh-rsa k"))


@pytest.fixture(params=USUAL)
def cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path, {"cell1": ["a1"]}, request.param) as made:
        made.vault = MASTER
        yield made


def boot(cloud: World) -> str:
    [server] = cloud.uuids(cloud.accept(size=fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)))
    assert wait_until(lambda: cloud.mapped(server).state == "active", PATIENCE)
    return server


def rebuild(cloud: World, server: str, *, sealed: bool = True) -> Operation:
    """As the API accepts it."""
    now, name = cloud.api.current_time(), str(uuid.uuid4())
    asked = NewOperation(
        uuid=name,
        server_uuid=server,
        kind=OperationKind.REBUILD,
        scope=None,
        user_id="u",
        request_id=f"req-{uuid.uuid4()}",
        deadline=now + 60.0,
        args=ARGS,
        sealed=MASTER.seal_secrets(API, name, SECRETS) if sealed else None,
    )
    return cloud.api.write(accepting.accept_operation, asked, now)


def operator(conductor: Conductor, vault: Vault) -> Operator:
    context = ConductorContext(conductor.ledger, conductor.registry, vault=vault)
    return Operator(context, conductor.deleter, conductor.builder)


def in_cell(cloud: World) -> list[str | None]:
    """The sealed texts of tasks in the cell."""
    return list(cloud.databases["cell1"].read(lambda tx: tx.execute(sa.select(table.c.sealed)).scalars().all()))


def received(cloud: World, server: str) -> Received | None:
    return received_by(cloud.journal("a1"))[server]


def test_a_rebuilt_guest_has_them_no_database_does(cloud: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    cloud.start()
    server = boot(cloud)
    operation = cloud.ended(rebuild(cloud, server))
    assert (operation.outcome, received(cloud, server)) == (Outcome.DONE, RECEIVED)
    assert (cloud.api.read(operations.kept_secrets, [operation.uuid]), in_cell(cloud)) == ({}, [])
    found = cloud.api.read(mappings.get, server)
    assert found is not None
    assert found.image_id == "new"
    assert "marked" not in caplog.text
    assert "bWFya2Vk" not in caplog.text
    cloud.settle()


def test_a_cell_gets_them_sealed_per_task(cloud: World) -> None:
    cloud.start()
    server = boot(cloud)
    cloud.agents["cell1"].services["a1"].stop(0.0)
    operation = rebuild(cloud, server)
    assert wait_until(lambda: bool(in_cell(cloud)), PATIENCE)
    [sealed] = in_cell(cloud)
    own = Vault(MASTER.keys_of(cloud.mapped(server).cell_uuid or ""))
    assert own.open(tasks.secrets_name(server, operation.number), sealed or "") == SECRETS
    with pytest.raises(errors.Misconfigured):
        own.open(tasks.secrets_name(server, operation.number + 4), sealed or "")
    cloud.start_agent("a1")
    assert cloud.ended(operation).outcome is Outcome.DONE
    assert received(cloud, server) == RECEIVED


def test_without_the_key_the_operation_waits(cloud: World, caplog: pytest.LogCaptureFixture) -> None:
    cloud.start_cells()
    cloud.start_agent("a1")
    conductor = cloud.conductor("one")
    spec = cloud.accept(size=fleet.flavor(vcpus=1, memory_mb=512, root_gb=1))
    conductor.builder.schedule_and_build([spec.batch_id])
    [server] = cloud.uuids(spec)

    def told() -> bool:
        conductor.keep()
        return cloud.mapped(server).state == "active"

    assert wait_until(told, PATIENCE)
    operation = rebuild(cloud, server)
    for keys in ([], [new_key()], MASTER.keys_of(API)):
        operator(conductor, Vault(keys)).run_round()
        assert in_cell(cloud) == []
    assert "[secrets] keys" in caplog.text
    assert operation.uuid in caplog.text
    operator(conductor, MASTER).run_round()

    def ended() -> bool:
        conductor.keep()
        operator(conductor, MASTER).run_round()
        [found] = cloud.api.read(operations.get, [operation.uuid])
        return found.outcome is Outcome.DONE

    assert wait_until(ended, PATIENCE)
    assert received(cloud, server) == RECEIVED


def test_a_rebuild_with_lost_secrets_fails_with_reason(cloud: World) -> None:
    cloud.start()
    server = boot(cloud)
    operation = cloud.ended(rebuild(cloud, server, sealed=False))
    assert operation.outcome is Outcome.FAILED
    assert "no longer stored" in (operation.fault or "")
    assert received(cloud, server) is None
