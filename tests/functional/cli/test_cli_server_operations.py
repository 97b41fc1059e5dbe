"""Commands that operate on a server, against an API that really listens: which operation each asks for, and what it prints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from cli.shared import waiting
from db.api.operations import operations
from db.api.projects import flavors
from db.api.rows.tables import instance_mappings
from db.api.rows.tables import operations as table
from objects.flavor import Flavor
from objects.operation import Operation, OperationArgs, OperationKind
from objects.spec import BootSecrets
from objects.task import DriveChanges, Power
from tests.functional.cli.test_cli_server_commands import VAULT, typing_at
from tests.support.api import IMAGE, Front
from tests.support.commands import Operator
from tests.support.pools import make_network, ports_of

LARGE = Flavor(flavor_id="9", name="large", vcpus=8, memory_mb=4096, root_gb=10)


class Typist:
    """Types commands about one server, ``web``, which is ACTIVE on host h1."""

    def __init__(self, front: Front, operator: Operator) -> None:
        self.front, self.operator = front, operator
        self.uuid = front.boot()
        front.hand_over()
        front.activate(self.uuid)
        front.follow_feed()

    def asks(self, line: str, power: Power = Power.ON) -> Operation:
        """The operation that the command asks for while the server has this power. It is withdrawn then."""
        self._write(power)
        said = self.operator(f"server {line}")
        assert (said.status, said.err) == (0, ""), said
        self.said = said.out
        found = self.front.database.read(operations.open_for, [self.uuid])[self.uuid]
        self.secrets = self._secrets(found)
        self.front.database.write(lambda tx: tx.execute(sa.delete(table)))
        return found

    def refused(self, line: str, power: Power = Power.ON) -> str:
        self._write(power)
        return self.operator.refused(f"server {line}")

    def _write(self, power: Power) -> None:
        row = instance_mappings.c.instance_uuid == self.uuid
        self.front.database.write(lambda tx: tx.execute(sa.update(instance_mappings).where(row).values(power=power)))

    def _secrets(self, operation: Operation) -> BootSecrets | None:
        sealed = self.front.database.read(operations.kept_secrets, [operation.uuid])
        return VAULT.open(operation.uuid, sealed[operation.uuid]) if sealed else None


@pytest.fixture
def typist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Typist]:
    (tmp_path / "images").mkdir()
    front = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images")), VAULT)
    front.database.write(flavors.create, LARGE)
    with typing_at(front, tmp_path, capsys) as operator:
        yield Typist(front, operator)
    front.close()


def test_power_and_shelving(typist: Typist) -> None:
    for line, power, kind in (
        ("stop web", Power.ON, OperationKind.STOP),
        ("start web", Power.OFF, OperationKind.START),
        ("pause web", Power.ON, OperationKind.PAUSE),
        ("unpause web", Power.PAUSED, OperationKind.UNPAUSE),
        ("suspend web", Power.ON, OperationKind.SUSPEND),
        ("resume web", Power.SUSPENDED, OperationKind.RESUME),
        ("shelve web", Power.ON, OperationKind.SHELVE),
    ):
        assert typist.asks(line, power).kind is kind
    assert [typist.asks(f"reboot web{hard}").args.hard for hard in ("", " --hard")] == [False, True]
    assert "while it is in vm_state stopped" in typist.refused("pause web", Power.OFF)


def test_moves(typist: Typist) -> None:
    resize = typist.asks("resize web --flavor large")
    assert (resize.kind, resize.args.flavor_id, resize.waits_for_user) == (OperationKind.RESIZE, "9", True)
    assert [typist.asks(f"migrate web{verify}").waits_for_user for verify in ("", " --verify")] == [False, True]
    assert typist.asks("migrate web --live").kind is OperationKind.LIVE_MIGRATE
    assert typist.asks("migrate web --live", Power.PAUSED).kind is OperationKind.LIVE_MIGRATE
    assert "while it is in vm_state suspended" in typist.refused("migrate web --live", Power.SUSPENDED)
    typist.front.heartbeat("h1", at=time.time() - 1e6)
    typist.front.heartbeat("h2")
    assert typist.asks("evacuate web").kind is OperationKind.EVACUATE
    assert "it is not waiting for a resize" in typist.refused("resize web --confirm")


def test_images_and_backups(typist: Typist) -> None:
    made = typist.asks("image create web --name golden --property os=linux")
    assert made.kind is OperationKind.CREATE_IMAGE
    assert typist.said == f"web: image {made.uuid}\n"
    assert made.args.image is not None
    assert (made.args.image.name, made.args.image.properties["os"]) == ("golden", "linux")
    backup = typist.asks("backup create web --name monday --type weekly --rotate 3")
    assert (backup.kind, typist.said) == (OperationKind.CREATE_BACKUP, f"web: image {backup.uuid}\n")
    assert backup.args.image is not None
    assert (backup.args.image.backup_type, backup.args.image.rotation) == ("weekly", 3)
    assert "--name" in typist.operator.refused("server image create web", 2)


def test_a_rescue_prints_the_rescue_password(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("given-pass\n")
    rescue = typist.asks(f"rescue web --image {IMAGE} --password @{tmp_path}/password")
    assert (rescue.kind, rescue.args.image_id) == (OperationKind.RESCUE, IMAGE)
    assert (typist.said, typist.secrets and typist.secrets.admin_pass) == ("web: password given-pass\n", "given-pass")
    made = typist.asks("rescue web", Power.OFF)
    assert made.args.image_id is None
    assert typist.secrets is not None
    assert typist.said == f"web: password {typist.secrets.admin_pass}\n"
    assert typist.asks("unrescue web", Power.RESCUED).kind is OperationKind.UNRESCUE
    assert "while it is in vm_state active" in typist.refused("unrescue web")


def test_a_new_password_is_never_printed(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("new-pass\n")
    change = typist.asks(f"password web --password @{tmp_path}/password")
    assert (change.kind, change.args) == (OperationKind.CHANGE_PASSWORD, OperationArgs(drive=DriveChanges(has_secrets=True)))
    assert (typist.said, typist.secrets and typist.secrets.admin_pass) == ("", "new-pass")
    assert "new-pass" not in typist.refused(f"password web --password @{tmp_path}/password", Power.OFF)
    typist.operator.refused("server password web", 2)


def test_a_crash_dump(typist: Typist) -> None:
    for power in (Power.ON, Power.PAUSED, Power.RESCUED):
        assert typist.asks("dump create web", power).kind is OperationKind.CRASH_DUMP
    assert "while it is in vm_state stopped" in typist.refused("dump create web", Power.OFF)


def test_interfaces(typist: Typist) -> None:
    blue = make_network(typist.front.database, "10.0.0.0/28", name="blue")
    added = typist.asks(f"add network web {blue.uuid} --fixed-ip 10.0.0.9 --tag back")
    [port] = ports_of(typist.front.database, typist.uuid)[typist.uuid]
    assert (added.kind, added.args.mac, port.tag) == (OperationKind.ATTACH_INTERFACE, port.mac, "back")
    assert typist.said.startswith("web: port ")
    assert typist.said.endswith(" with 10.0.0.9\n")
    for reference in (port.mac, "10.0.0.9"):
        assert typist.asks(f"remove port web {reference}").kind is OperationKind.DETACH_INTERFACE
    assert f"({port.mac})" in typist.refused("remove port web 10.0.0.10")
    assert "already in use" in typist.refused(f"add network web {blue.uuid} --fixed-ip 10.0.0.9")
    assert typist.asks("add network web blue").kind is OperationKind.ATTACH_INTERFACE
    assert "No network is named 'green'. Networks: blue." in typist.refused("add network web green")


@pytest.mark.parametrize("line", ["stop web", "add network web blue", f"boot other --flavor 1 --image {IMAGE} --network blue"])
def test_a_wait_that_ends_early_is_no_success(typist: Typist, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No conductor runs here, so nothing that is accepted ends."""
    monkeypatch.setattr(waiting, "WAIT_TIMEOUT_S", 0.0)
    make_network(typist.front.database, "10.0.0.0/28", name="blue")
    said = typist.operator(f"server {line} --wait")
    assert (said.status, "is not over after" in said.err) == (1, True)
