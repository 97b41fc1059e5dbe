"""The simulated hypervisor: scripted outcomes, guests that outlive it, one holder per host."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import msgspec
import pytest

from compute.consoles import FILE_LIMIT, Consoles
from compute.driver import Guest
from compute.journal import Received, read_entries, read_guests, received_by
from compute.opts import ComputeSettings, SimulatedSettings
from compute.simulated import METADATA_KEY, SimulatedDriver, SpawnOutcome, cut_power, journal_path, scripted_outcome
from objects import errors
from objects.spec import BootSecrets, InjectedFile
from objects.task import DriveChanges, Power
from service.periodic import wait_until
from tests.support.agents import A_SPEC

UUIDS = [f"uuid-{n}" for n in range(2000)]


def a_guest(uuid: str = "uuid-1", **changes: object) -> Guest:
    fields = {"uuid": uuid, "name": uuid, "node": "h1", "fence": 1, "attempt": 1, "builder": "h1:a", "vcpus": 1}
    owner = {"project_id": A_SPEC.project_id, "user_id": A_SPEC.user_id}
    return Guest(**{**fields, **owner, "memory_mb": 512, "disk_gb": 1, **changes})  # type: ignore[arg-type]  # a test's shorthand


def a_driver(path: Path, *, host: str = "h1", **simulated: float) -> SimulatedDriver:
    return SimulatedDriver(ComputeSettings(host=host, simulated=SimulatedSettings(state_path=str(path), **simulated)))  # type: ignore[arg-type]  # as above


def test_the_rate_is_the_share_of_failing_builds() -> None:
    failed = [uuid for uuid in UUIDS if scripted_outcome("h1", uuid, 0.25, {}) is SpawnOutcome.FAIL]
    assert 400 < len(failed) < 600
    assert not [uuid for uuid in UUIDS if scripted_outcome("h1", uuid, 0.0, {}) is not SpawnOutcome.OK]
    assert not [uuid for uuid in UUIDS if scripted_outcome("h1", uuid, 1.0, {}) is not SpawnOutcome.FAIL]


def test_the_outcome_depends_on_host_and_instance_alone() -> None:
    first = [scripted_outcome("h1", uuid, 0.5, {}) for uuid in UUIDS]
    assert first == [scripted_outcome("h1", uuid, 0.5, {}) for uuid in UUIDS]
    assert first != [scripted_outcome("h2", uuid, 0.5, {}) for uuid in UUIDS]


@pytest.mark.parametrize("outcome", ["fail", "abort", "hang", "ok"])
def test_metadata_decides_over_the_rate(outcome: str) -> None:
    assert scripted_outcome("h1", "uuid-1", 1.0 if outcome == "ok" else 0.0, {METADATA_KEY: outcome}) == outcome


def test_metadata_of_another_meaning_is_left_alone() -> None:
    assert scripted_outcome("h1", "uuid-1", 0.0, {METADATA_KEY: "explode", "role": "fail"}) is SpawnOutcome.OK


def test_each_outcome_as_the_agent_sees_it(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    cancel = threading.Event()
    with pytest.raises(errors.BuildFailed, match="told to fail"):
        driver.spawn(a_guest(metadata={METADATA_KEY: "fail"}), A_SPEC, None, cancel)
    with pytest.raises(errors.BuildAborted, match="told to abort"):
        driver.spawn(a_guest(metadata={METADATA_KEY: "abort"}), A_SPEC, None, cancel)
    driver.spawn(a_guest("uuid-9"), A_SPEC, None, cancel)
    assert [guest.uuid for guest in driver.guests()] == ["uuid-9"]


def test_a_hanging_spawn_ends_when_cancelled(tmp_path: Path) -> None:
    driver, cancel, ended = a_driver(tmp_path), threading.Event(), threading.Event()

    def spawn() -> None:
        with pytest.raises(errors.BuildFailed, match="cancelled"):
            driver.spawn(a_guest(metadata={METADATA_KEY: "hang"}), A_SPEC, None, cancel)
        ended.set()

    threading.Thread(target=spawn, daemon=True).start()
    assert not ended.wait(0.05)
    cancel.set()
    assert wait_until(ended.is_set, 90.0)
    assert driver.guests() == []


def test_a_cancelled_spawn_leaves_no_guest_without_delay(tmp_path: Path) -> None:
    driver, cancel = a_driver(tmp_path), threading.Event()
    cancel.set()
    with pytest.raises(errors.BuildFailed, match="cancelled"):
        driver.spawn(a_guest(), A_SPEC, None, cancel)
    assert driver.guests() == []


def test_guests_outlive_the_driver_without_written_metadata(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    driver.spawn(a_guest(metadata={"password": "s3cret"}), A_SPEC, None, threading.Event())
    driver.close()
    assert b"s3cret" not in journal_path(str(tmp_path), "h1").read_bytes()
    again = a_driver(tmp_path)
    assert again.guests() == [a_guest()]
    assert read_guests(journal_path(str(tmp_path), "h1")) == [a_guest()]


def test_a_power_cut_stops_guests_of_stopped_agents(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    driver.spawn(a_guest(), A_SPEC, None, threading.Event())
    with pytest.raises(errors.Misconfigured, match="Another agent uses"):
        cut_power(str(tmp_path), "h1")
    assert [guest.power for guest in driver.guests()] == [Power.ON]
    driver.close()
    cut_power(str(tmp_path), "h1")
    assert [guest.power for guest in a_driver(tmp_path).guests()] == [Power.OFF]


def test_one_holder_per_host(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    with pytest.raises(errors.Misconfigured, match="Another agent uses"):
        a_driver(tmp_path)
    a_driver(tmp_path, host="h2").close()
    driver.close()
    a_driver(tmp_path).close()


def test_an_impossible_state_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(errors.Misconfigured, match="state_path"):
        a_driver(tmp_path / "file" / "below")


def test_readable_lines_of_a_damaged_journal_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = journal_path(str(tmp_path), "h1")
    driver = a_driver(tmp_path)
    driver.spawn(a_guest(), A_SPEC, None, threading.Event())
    driver.close()
    damaged = b"rubbish\n" + path.read_bytes() + b'{"spawned": {"uuid": "\xff"}}\n'
    for number in (1, 2):
        path.write_bytes(damaged)
        driver = a_driver(tmp_path)
        assert [guest.uuid for guest in driver.guests()] == [a_guest().uuid]
        driver.close()
        assert path.with_name(f"{path.name}.damaged-{number}").read_bytes() == damaged
    assert read_guests(path) == [a_guest()]
    assert "line 1" in caplog.text


def test_after_close_nothing_is_written(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    driver.close()
    with pytest.raises(errors.BuildFailed, match="closed"):
        driver.spawn(a_guest(), A_SPEC, None, threading.Event())
    assert read_guests(journal_path(str(tmp_path), "h1")) == []


def test_the_repr_of_a_guest_hides_metadata() -> None:
    assert "s3cret" not in repr(a_guest(metadata={"password": "s3cret"}))


def test_guests_stay_with_a_renamed_host(tmp_path: Path) -> None:
    first = a_driver(tmp_path, host="h1")
    first.spawn(a_guest(), A_SPEC, None, threading.Event())
    first.close()
    second = a_driver(tmp_path, host="h2")
    assert second.guests() == [a_guest()]
    with pytest.raises(errors.Misconfigured, match="shared_folder"):
        a_driver(tmp_path, host="h3")
    second.close()


def test_hosts_sharing_a_folder_have_separate_guests(tmp_path: Path) -> None:
    first = a_driver(tmp_path, host="h1", shared_folder=True)
    first.spawn(a_guest(), A_SPEC, None, threading.Event())
    first.close()
    second = a_driver(tmp_path, host="h2", shared_folder=True)
    assert second.guests() == []
    second.close()


def test_boots_write_and_destroys_leave_no_console(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    driver.spawn(a_guest(image_id="i-1"), A_SPEC, None, threading.Event())
    boot = driver.console_output("uuid-1", 4000).decode().splitlines()
    assert (boot[0], boot[-1]) == ("uuid-1: boots from image i-1 on h1", "uuid-1: ready")
    assert any(line.endswith("UUID uuid-1") for line in boot)
    assert driver.console_output("uuid-1", 6) == b"ready\n"
    assert not (tmp_path / "h1.consoles").exists()

    driver.rebuild(a_guest(image_id="i-2"), DriveChanges(), None)
    driver.reboot("uuid-1", hard=True)
    log = driver.console_output("uuid-1", 4000).decode().splitlines()
    assert log == [*boot, "uuid-1: is rebuilt from image i-2", "uuid-1: reboots hard", *boot[1:]]

    driver.destroy("uuid-1")
    assert list((tmp_path / "h1.consoles").iterdir()) == []
    with pytest.raises(errors.NotFound, match="no guest"):
        driver.console_output("uuid-1", 1000)


def test_a_console_log_does_not_grow_without_end(tmp_path: Path) -> None:
    log = Consoles(tmp_path / "logs")
    for _ in range(5):
        log.write(a_guest(), "x" * (FILE_LIMIT // 2))
    log.write(a_guest(), "last")
    assert log.read(a_guest(), 10 * FILE_LIMIT).endswith(b"x\nlast\n")
    assert len(log.read(a_guest(), 10 * FILE_LIMIT)) < 2 * FILE_LIMIT


def test_a_rebuilt_guest_retains_user_data_and_key(tmp_path: Path) -> None:
    """And nothing else of what it got before; also in a file that was rewritten."""

    def received(driver: SimulatedDriver) -> Received:
        driver.close()
        entries = read_entries(tmp_path / "h1.guests")
        a_driver(tmp_path).close()
        assert received_by(read_entries(tmp_path / "h1.guests")) == received_by(entries)
        return received_by(entries)["uuid-1"] or Received()

    first = BootSecrets(user_data="b25l", admin_pass="one", files=(InjectedFile(path="/a", contents=""),))
    driver = a_driver(tmp_path)
    driver.spawn(a_guest(), A_SPEC, first, threading.Event())
    driver.rebuild(a_guest(), DriveChanges(key_name="k"), None)
    one = hashlib.sha256(b"b25l").hexdigest()
    assert received(driver) == Received(user_data_sha256=one, key_name="k")

    driver = a_driver(tmp_path)
    driver.rebuild(a_guest(), DriveChanges(), BootSecrets(admin_pass="two"))
    assert received(driver) == Received(user_data_sha256=one, admin_pass_set=True, key_name="k")

    driver = a_driver(tmp_path)
    driver.rebuild(a_guest(), DriveChanges(key_name=""), BootSecrets(user_data="dHdv"))
    assert received(driver) == Received(user_data_sha256=hashlib.sha256(b"dHdv").hexdigest(), key_name="")

    driver = a_driver(tmp_path)
    driver.rebuild(a_guest(), DriveChanges(removes_user_data=True), None)
    assert received(driver) == Received(key_name="")


class TestNumaNodes:
    def test_a_host_divides_what_it_has(self, tmp_path: Path) -> None:
        [node] = a_driver(tmp_path, numa_nodes=3, vcpus=8, memory_mb=9000).nodes()
        assert [(each.vcpus, each.memory_mb) for each in node.numa_nodes] == [(3, 3000), (3, 3000), (2, 3000)]
        assert a_driver(tmp_path / "plain").nodes()[0].numa_nodes == ()

    def test_a_guest_keeps_its_nodes(self, tmp_path: Path) -> None:
        driver = a_driver(tmp_path, numa_nodes=2)
        driver.spawn(a_guest(numa_nodes=(1,)), A_SPEC, None, threading.Event())
        driver.set_power("uuid-1", Power.OFF, hard=True)
        driver.close()
        assert [guest.numa_nodes for guest in a_driver(tmp_path, numa_nodes=2).guests()] == [(1,)]

    @pytest.mark.parametrize(("asked", "tied"), [("2", ()), ("2", (0,)), ("3", (0, 1))])
    def test_a_guest_on_unclaimed_nodes_is_refused(self, tmp_path: Path, asked: str, tied: tuple[int, ...]) -> None:
        spec = msgspec.structs.replace(A_SPEC, flavor=msgspec.structs.replace(A_SPEC.flavor, extra_specs={"hw:numa_nodes": asked}))
        with pytest.raises(errors.PolicyViolated, match="asks for NUMA nodes"):
            a_driver(tmp_path, numa_nodes=2).spawn(a_guest(numa_nodes=tied, vcpus=6), spec, None, threading.Event())


def test_a_reboot_takes_its_time(tmp_path: Path) -> None:
    """A client that looks once a second can then see that the server reboots."""
    driver = a_driver(tmp_path, task_delay=0.3)
    driver.spawn(a_guest(), A_SPEC, None, threading.Event())
    for task in (
        lambda: driver.reboot("uuid-1", hard=True),
        lambda: driver.rebuild(a_guest(), DriveChanges(), None),
        lambda: driver.set_password("uuid-1", "secret"),
    ):
        before = driver.console_output("uuid-1", FILE_LIMIT)
        at_it = threading.Thread(target=task)
        at_it.start()
        assert driver.console_output("uuid-1", FILE_LIMIT) == before
        at_it.join(30)
        assert driver.console_output("uuid-1", FILE_LIMIT) != before
