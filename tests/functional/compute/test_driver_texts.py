"""Whatever text a driver raises or reports: its build ends as any other, and the neighbours notice nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from compute.driver import Guest
from compute.driver_checks import CheckedDriver
from compute.opts import ComputeSettings
from compute.simulated import SimulatedDriver
from objects import errors, stats, text
from objects.compute_node import ComputeNode
from objects.instance import State
from objects.spec import BootSecrets
from objects.task import DriveChanges
from service.periodic import wait_until
from tests.support.agents import A_SPEC, GatedDriver, settings
from tests.support.ground import GROUNDS
from tests.support.world import PATIENCE, world

TEXTS = {
    "surrogate": b"no such file: /img/\xff".decode("utf-8", "surrogateescape"),
    "nul": "bad \x00 header",
    "long": "é" * 70_000,
    "terminal": "\x1b]0;owned\x07\x9b31m",
    "lines": "a\n2026-01-01 00:00:00.000 1 INFO api.main [-] forged",
    "not a character": "\uffff\U0010ffff",
    "quotes": "\\'\"%s{}" * 2000,
}


@pytest.mark.parametrize("ground", GROUNDS)
def test_a_build_goes_on_whatever_its_driver_raises(tmp_path: Path, ground: str) -> None:
    """Each text is raised on both hosts: every server ends in ERROR and says so, and the one after them becomes ACTIVE."""
    with world(tmp_path, {"cell1": ["a1", "a2"]}, ground, embedded=True) as cloud:
        cloud.start()
        agents = [cloud.agents[cell].drivers[host] for host, cell in cloud.homes.items()]
        failed = []
        for words in TEXTS.values():
            for driver in agents:
                driver.raises = OSError(words)
            [uuid] = cloud.uuids(cloud.accept(1))
            failed.append(uuid)
            assert wait_until(lambda: cloud.mapped(uuid).state == "error", PATIENCE), words[:80]  # noqa: B023 - called at once
        for driver in agents:
            driver.raises = None
        [innocent] = cloud.uuids(cloud.accept(1))
        assert wait_until(lambda: cloud.mapped(innocent).state == "active", PATIENCE)
        told = {server.uuid: server.fault for server in cloud.evidence().servers}
        for uuid in failed:
            row = cloud.row(uuid)
            assert row.fault == told[uuid]
            assert row.state is State.ERROR
            assert row.fault is not None
            assert text.is_safe(row.fault)
            assert len(row.fault.encode()) <= text.FAULTS_SIZE
            assert "Build timed out" not in row.fault


class OddDriver(GatedDriver):
    """Reports guests and a node that nobody ordered, besides those that it has."""

    def __init__(self, made: ComputeSettings) -> None:
        super().__init__(made)
        self.odd_guests: list[Guest] = []

    def guests(self) -> list[Guest]:
        return [*self.odd_guests, *super().guests()]

    def nodes(self) -> list[ComputeNode]:
        [node] = super().nodes()
        odd = msgspec.structs.replace(node, node="n\0")
        return [odd, msgspec.structs.replace(node, hypervisor_type="sim\x1b", attributes={"a\0": ["b\udcff"]})]


@pytest.mark.parametrize("odd", ["\0", "\udcff", "x" * 256, "\x1b[31m"])
def test_guests_and_nodes_with_odd_names_are_omitted(tmp_path: Path, odd: str) -> None:
    driver = OddDriver(settings(tmp_path))
    good = Guest(uuid="u", name="n", node="h1", fence=1, attempt=1, builder="b", vcpus=1, memory_mb=1, disk_gb=1)
    driver.odd_guests = [msgspec.structs.replace(good, **{field: odd}) for field in ("uuid", "node", "builder")] + [good]
    checked = CheckedDriver(driver)
    assert checked.guests() == [good]
    [node] = checked.nodes()
    stats.check_stats(node)
    assert (node.node, text.is_safe(node.hypervisor_type), list(node.attributes)) == ("h1", True, ["a\N{REPLACEMENT CHARACTER}"])
    checked.close()


class EarlierDriver(SimulatedDriver):
    """As drivers were written before a rebuild could change a config drive."""

    def rebuild(self, guest: Guest) -> None:  # type: ignore[override]  # as in that release
        super().rebuild(guest, DriveChanges(), None)


def test_an_older_driver_refuses_a_new_drive(tmp_path: Path) -> None:
    driver = EarlierDriver(settings(tmp_path))
    bare = Guest(uuid="u", name="n", node="h1", fence=1, attempt=1, builder="b", vcpus=1, memory_mb=1, disk_gb=1)
    guest = msgspec.structs.replace(bare, project_id=A_SPEC.project_id, user_id=A_SPEC.user_id)
    driver.spawn(guest, A_SPEC, None, threading.Event())
    checked = CheckedDriver(driver)  # type: ignore[arg-type]  # as above
    rebuilt = msgspec.structs.replace(guest, image_id="new")
    with pytest.raises(errors.TaskFailed, match="cannot make a new config drive"):
        checked.rebuild(rebuilt, DriveChanges(has_secrets=True), BootSecrets(admin_pass="p"))
    assert checked.guests() == [guest]
    checked.rebuild(rebuilt, DriveChanges(), None)
    assert checked.guests() == [rebuilt]
    checked.close()
