"""The actions rescue, unrescue, changePassword and trigger_crash_dump over HTTP: states, passwords, and how servers are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.lookup.boot_secrets import PASSWORD_LENGTH
from api.opts import ApiSettings
from db import secrets
from db.api.operations import operations, steps
from db.cell.tables import instances
from objects.operation import OperationKind
from objects.task import DriveChanges, Power
from service.vault import Vault, new_key
from tests.functional.api.test_api_operations import ADMIN, NEW, READER, act, at, booted, listed, shown, twin_of
from tests.functional.api.test_api_operations import write as write_summary
from tests.functional.api.test_api_rebuild import VAULT, operation
from tests.functional.api.test_api_rebuild import kept as kept_by
from tests.support.api import IMAGE, Front, refusal
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

front = front_fixture(vault=VAULT, grounds=USUAL)


@pytest.fixture
def server(front: Front) -> str:
    """A server that is ACTIVE on host h1."""
    return booted(front)


def write(front: Front, server: str, **values: Any) -> None:
    """Into the row of its cell, and into what the API level knows of it."""
    statement = sa.update(instances).where(instances.c.uuid == server).values(**values)
    front.cell.database.write(lambda tx: tx.execute(statement))
    write_summary(front, server, **values)


def told(front: Front, server: str, power: Power, state: str = "done") -> None:
    """The host has carried out the task, its cell has told, and a sweep has read it."""
    asked = operation(front, server)
    write(front, server, power=power, task_number=asked.number, task_state=state)
    front.database.write(steps.finish_tasks, [asked.uuid], 1.0)


def test_a_server_is_rescued_and_unrescued(front: Front, server: str) -> None:
    answer = act(front, server, "rescue", {"adminPass": "given", "rescue_image_ref": IMAGE})
    assert (answer.status_code, answer.json) == (200, {"adminPass": "given"})
    asked = operation(front, server)
    assert (asked.kind, asked.args.image_id, asked.args.drive) == (OperationKind.RESCUE, IMAGE, DriveChanges(has_secrets=True))
    assert (kept := kept_by(front, server)) is not None
    assert kept.admin_pass == "given"
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("ACTIVE", "rescuing")
    told(front, server, Power.RESCUED)
    found = shown(front, server)
    assert (found["status"], found["OS-EXT-STS:vm_state"], found["OS-EXT-STS:power_state"]) == ("RESCUE", "rescued", 1)
    assert listed(front, status="RESCUE") == [server]
    assert listed(front, vm_state="rescued") == [server]
    for action, value in (("rescue", None), ("os-stop", None), ("reboot", {"type": "HARD"}), ("pause", None)):
        assert "while it is in vm_state rescued" in refusal(act(front, server, action, value), 409)
    assert act(front, server, "unrescue", None, READER).status_code == 403
    answer = act(front, server, "unrescue")
    assert (answer.status_code, answer.text) == (202, "")
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("RESCUE", "unrescuing")
    told(front, server, Power.ON)
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    assert "while it is in vm_state active" in refusal(act(front, server, "unrescue"), 409)
    actions = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert [entry["action"] for entry in actions] == ["unrescue", "rescue", "create"]


def test_a_password_is_made_for_a_rescue(front: Front, server: str) -> None:
    password = act(front, server, "rescue").json["adminPass"]
    assert len(password) == PASSWORD_LENGTH
    assert operation(front, server).args.image_id is None
    assert (kept := kept_by(front, server)) is not None
    assert kept.admin_pass == password
    told(front, server, Power.RESCUED)
    assert front.database.read(lambda tx: operations.of_server(tx, server))[0].outcome == "done"


def test_a_failed_rescue_leaves_the_server_unchanged(front: Front, server: str) -> None:
    write(front, server, power="off", task_number=4, task_state="done")
    act(front, server, "rescue")
    asked = operation(front, server)
    told(front, server, Power.RESCUED, "failed")
    assert operation(front, server).state == "starting"
    write(front, server, power="off", task_number=asked.number + 3, task_state="done")
    front.database.write(steps.finish_tasks, [asked.uuid], 1.0)
    assert (shown(front, server)["status"], kept_is_gone(front, asked.uuid)) == ("SHUTOFF", True)


def kept_is_gone(front: Front, uuid: str) -> bool:
    return front.database.read(operations.kept_secrets, [uuid]) == {}


def test_without_a_key_there_are_no_passwords(tmp_path: Path) -> None:
    front = Front(tmp_path, ApiSettings())
    server = booted(front)
    for action in ("rescue", "changePassword"):
        assert "could only store it unencrypted" in refusal(act(front, server, action, {"adminPass": "given"}), 400)
    answer = act(front, server, "rescue")
    assert (answer.status_code, answer.json) == (200, {})
    assert operation(front, server).args.drive == DriveChanges()
    front.close()


def test_a_password_is_hidden_where_disabled(tmp_path: Path) -> None:
    front = Front(tmp_path, ApiSettings(enable_instance_password=False), Vault([new_key()]))
    server = booted(front)
    answer = act(front, server, "rescue", {"adminPass": "given"})
    assert (answer.status_code, answer.json) == (200, {})
    front.close()


def test_evacuated_guest_gets_the_given_password(front: Front, server: str) -> None:
    front.heartbeat("h1", 1.0)
    answer = act(front, server, "evacuate", {"adminPass": "given"}, ADMIN)
    assert (answer.status_code, answer.text) == (200, "")
    _, spec = twin_of(front, server)
    assert spec.has_secrets
    sealed = front.database.read(secrets.of_request, spec.batch_id)
    assert sealed is not None
    assert VAULT.open(spec.batch_id, sealed).admin_pass == "given"


def test_evacuation_before_2_14_answers_with_a_password(front: Front, server: str) -> None:
    front.heartbeat("h1", 1.0)
    answer = act(front, server, "evacuate", {"onSharedStorage": False}, ADMIN | at("2.13"))
    _, spec = twin_of(front, server)
    sealed = front.database.read(secrets.of_request, spec.batch_id)
    assert sealed is not None
    assert answer.json == {"adminPass": VAULT.open(spec.batch_id, sealed).admin_pass}


def test_a_password_is_changed(front: Front, server: str) -> None:
    assert refusal(act(front, server, "changePassword", {}), 400)
    answer = act(front, server, "changePassword", {"adminPass": "another"})
    assert (answer.status_code, answer.text) == (202, "")
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("PASSWORD", "updating_password")
    assert listed(front, status="PASSWORD") == [server]
    assert listed(front, status="ACTIVE") == []
    assert (kept := kept_by(front, server)) is not None
    assert kept.admin_pass == "another"
    told(front, server, Power.ON, "failed")
    assert kept_is_gone(front, operation(front, server).uuid)
    asked = operation(front, server)
    write(front, server, power="on", task_number=asked.number + 3, task_state="done")
    front.database.write(steps.finish_tasks, [asked.uuid], 1.0)
    assert shown(front, server)["status"] == "ACTIVE"
    [action] = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"][:1]
    assert (action["action"], action["message"] is None) == ("changePassword", False)
    write(front, server, power="off", task_number=asked.number + 3, task_state="done")
    assert "while it is in vm_state stopped" in refusal(act(front, server, "changePassword", {"adminPass": "x"}), 409)


def test_a_crash_dump(front: Front, server: str) -> None:
    assert "does not exist in version 2.16" in refusal(act(front, server, "trigger_crash_dump", None, NEW | at("2.16")), 404)
    assert act(front, server, "trigger_crash_dump", {}, NEW | at("2.17")).status_code == 400
    answer = act(front, server, "trigger_crash_dump", None, NEW | at("2.17"))
    assert (answer.status_code, answer.text) == (202, "")
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    told(front, server, Power.ON)
    write(front, server, power="off", task_number=4, task_state="done")
    assert refusal(act(front, server, "trigger_crash_dump"), 409)


def test_an_evacuation_ends_a_rescue(front: Front, server: str) -> None:
    front.heartbeat("h1", 1.0)
    write(front, server, power="rescued", task_number=4, task_state="done")
    assert act(front, server, "evacuate", {}, ADMIN | at("2.94")).status_code == 200
    assert twin_of(front, server)[0].power is Power.ON
    assert operation(front, server).power_before is Power.RESCUED, "if it is given up"
