"""What cannot be built ends where it belongs, with its reason, and leaves nothing on its host."""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compute.libvirt.attachments import Attachments
from compute.libvirt.connection import LibvirtConnection
from compute.libvirt.opts import Attachment
from compute.main import ComputeService
from objects import errors
from objects.instance import FailureClass, State
from objects.port import FixedAddress, Port
from service.periodic import wait_until
from tests.support import libvirt_host
from tests.support.disk_images import qcow2
from tests.support.libvirt_cell import LibvirtCell, libvirt_cell
from tests.support.libvirt_driver import PATIENCE_S, left_of

BAD, GOOD = "bad", "good"
"""The hosts: what is wrong with a host is wrong with the first one."""

Spoil = Callable[[LibvirtCell, str], dict[str, Any]]
"""Spoils an image, and returns what a build is asked with."""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibvirtCell]:
    place = tmp_path_factory.mktemp("bad-input")
    with libvirt_host.private_daemon(place / "host") as daemon, libvirt_cell(place / "cell", daemon) as cell:
        cell.host(BAD, networks={"br": "bridge:br-none"})
        cell.host(GOOD, networks={"br": "user", "lab": "user"})
        for host in (BAD, GOOD):
            cell.start(host)
        yield cell


@pytest.fixture
def image(cell: LibvirtCell) -> Iterator[str]:
    """An image that is in no cache yet, for a test to spoil."""
    name = str(uuid.uuid4())
    file = cell.path / "image"
    file.write_bytes(os.urandom(4096))
    cell.store.add_image(file, name=name, image_id=name, disk_format="raw", min_ram=0)
    yield name
    cell.store.delete(name)


def content(cell: LibvirtCell, image: str) -> Path:
    return cell.path / "images/added" / image / "content"


def change_record(cell: LibvirtCell, image: str, **changes: object) -> None:
    record = msgspec.structs.replace(cell.store.get_record(image), **changes)
    content(cell, image).with_name("record.json").write_bytes(msgspec.json.encode(record))


def port(physical_network: str) -> Port:
    return Port(network_id="n1", network="net", mac="fa:16:3e:00:00:01", physical_network=physical_network)


# -- nobody could build it ---------------------------------------------------------------------------------------------------------


def is_missing(cell: LibvirtCell, image: str) -> dict[str, Any]:
    return {"image": str(uuid.uuid4())}


def is_corrupt(cell: LibvirtCell, image: str) -> dict[str, Any]:
    content(cell, image).write_bytes(os.urandom(4096))
    return {"image": image}


def is_cut_off(cell: LibvirtCell, image: str) -> dict[str, Any]:
    os.truncate(content(cell, image), 1000)
    return {"image": image}


def is_too_long(cell: LibvirtCell, image: str) -> dict[str, Any]:
    os.truncate(content(cell, image), 10_000)
    return {"image": image}


def holds(cell: LibvirtCell, image: str, data: bytes) -> dict[str, Any]:
    """The file was put into the store by hand, with a record that is right."""
    content(cell, image).write_bytes(data)
    change_record(cell, image, disk_format="qcow2", size=len(data), hash_value=hashlib.sha512(data).hexdigest())
    return {"image": image}


def names_a_file_of_the_host(cell: LibvirtCell, image: str) -> dict[str, Any]:
    return holds(cell, image, qcow2(backing_file="/etc/passwd"))


def is_larger_than_the_flavor(cell: LibvirtCell, image: str) -> dict[str, Any]:
    return holds(cell, image, qcow2(virtual_size=2 << 30))


def wants_more_disk(cell: LibvirtCell, image: str) -> dict[str, Any]:
    change_record(cell, image, min_disk=2)
    return {"image": image}


def wants_more_memory(cell: LibvirtCell, image: str) -> dict[str, Any]:
    change_record(cell, image, min_ram=1024)
    return {"image": image}


def has_an_unknown_property(cell: LibvirtCell, image: str) -> dict[str, Any]:
    return {"image_properties": {"hw_tpm_version": "2.0"}}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (is_missing, "is not in the image store"),
        (is_corrupt, "is corrupt: its sha512 begins with"),
        (is_cut_off, "has 1000 bytes, but its record says 4096"),
        (is_too_long, "has more than the 4096 bytes"),
        (names_a_file_of_the_host, "is not safe: it has a backing file"),
        (is_larger_than_the_flavor, "needs 2 GiB of disk, and flavor nano has 1"),
        (wants_more_disk, "needs 2 GiB of disk, and flavor nano has 1"),
        (wants_more_memory, "needs 1024 MiB of memory, and flavor nano has 16"),
        (has_an_unknown_property, "hw_tpm_version"),
    ],
)
def test_a_request_no_host_can_build_ends_immediately(cell: LibvirtCell, image: str, spoil: Spoil, reason: str) -> None:
    one = cell.boot(GOOD, BAD, **spoil(cell, image))
    row = cell.wait(one, State.ERROR)
    assert [(attempt.host, attempt.failure.kind) for attempt in row.history] == [(GOOD, FailureClass.REQUEST)]
    assert reason in (row.fault or "")
    assert cell.left(one) == []
    assert not list(Path(cell.settings[GOOD].cache_path).glob("*.part"))


# -- another host may build it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "reason"),
    [({"ports": [port("br")]}, "The bridge 'br-none'"), ({"ports": [port("lab")]}, "not attached to the physical network 'lab'")],
    ids=["bridge", "network"],
)
def test_a_build_chooses_a_host_with_its_network(cell: LibvirtCell, asked: dict[str, Any], reason: str) -> None:
    one = cell.boot(BAD, GOOD, **asked)
    row = cell.wait(one, State.ACTIVE)
    assert (row.host, [attempt.failure.kind for attempt in row.history]) == (GOOD, [FailureClass.HOST])
    assert reason in row.history[0].failure.message
    assert left_of(cell.settings[BAD]) == []
    cell.delete(one)
    assert cell.left(one) == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"flavor": {"extra_specs": {"quota:cpu_period": "1"}}}, "libvirt could not define the guest"),
        ({"flavor": {"extra_specs": {"quota:cpu_shares": "100"}}}, "libvirt could not start the guest"),
        ({"image_properties": {"hw_machine_type": "virt"}}, "machine type"),
        ({"ports": [port("nowhere")]}, "not attached to the physical network 'nowhere'"),
    ],
    ids=["refused", "no cgroups", "of another processor", "network"],
)
def test_a_build_refused_everywhere_tries_every_host(cell: LibvirtCell, asked: dict[str, Any], reason: str) -> None:
    one = cell.boot(BAD, GOOD, **asked)
    row = cell.wait(one, State.ERROR)
    assert [(each.host, each.failure.kind) for each in row.history] == [(host, FailureClass.HOST) for host in (BAD, GOOD)]
    assert all(reason in each.failure.message for each in row.history), row.history
    assert cell.left(one) == []


SIZE_OF_THE_IMAGE = {"root_gb": 0}
"""A host with less than a GiB of disk has no room for any other flavor."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_host_without_room(cell: LibvirtCell, small: Path) -> None:
    """First for the image, then for the disk."""
    file = cell.path / "large"
    file.write_bytes(os.urandom(1 << 20))
    large = str(uuid.uuid4())
    cell.store.add_image(file, name="large", image_id=large, disk_format="raw")
    (small / "rest").write_bytes(bytes(64 << 10))
    cell.host("full", cache_path=str(small / "cache"), instances_path=str(small / "instances"))
    cell.start("full")
    try:
        one = cell.boot("full", image=large, flavor=SIZE_OF_THE_IMAGE)
        assert "No space left on device" in (cell.wait(one, State.ERROR).fault or "")
        assert [file for file in (small / "cache").iterdir() if file.suffix != ".lock"] == []
        (small / "rest").write_bytes(bytes(180 << 10))
        two = cell.boot("full", GOOD, flavor=SIZE_OF_THE_IMAGE)
        row = cell.wait(two, State.ACTIVE)
        assert (row.host, [each.failure.kind for each in row.history]) == (GOOD, [FailureClass.HOST])
        assert "No space left on device" in row.history[0].failure.message
        assert left_of(cell.settings["full"]) == []
    finally:
        cell.stop("full")


def test_a_host_whose_file_system_is_read_only(cell: LibvirtCell, small: Path) -> None:
    """It covers the folder of the guests, in which root could write whatever its mode."""
    instances = small / "instances"
    cell.host("read-only", instances_path=str(instances))
    cell.start("read-only")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", instances], check=True)
    try:
        one = cell.boot("read-only", GOOD, flavor=SIZE_OF_THE_IMAGE)
        row = cell.wait(one, State.ACTIVE)
        assert (row.host, [each.failure.kind for each in row.history]) == (GOOD, [FailureClass.HOST])
        assert "Read-only file system" in row.history[0].failure.message
        assert left_of(cell.settings["read-only"]) == []
    finally:
        subprocess.run(["umount", instances], check=True)
        cell.stop("read-only")


# -- nobody is at fault ------------------------------------------------------------------------------------------------------------


def test_a_build_waits_for_the_image_store(cell: LibvirtCell, image: str) -> None:
    """An image whose record cannot be read is like a store that is away."""
    folder, away = cell.path / "images", cell.path / "away"
    folder.rename(away)
    one = cell.boot(GOOD)
    record = content(cell, image).with_name("record.json")
    assert wait_until(lambda: cell.row(one).state is State.BUILDING, PATIENCE_S)
    waits = cell.agents[GOOD]
    assert wait_until(lambda: phase(waits, one) == "waiting", PATIENCE_S)
    assert cell.left(one) == []
    away.rename(folder)
    assert cell.wait(one, State.ACTIVE).history == ()
    whole = record.read_bytes()
    record.write_bytes(whole[:20])
    two = cell.boot(GOOD, image=image)
    assert wait_until(lambda: phase(waits, two) == "waiting", PATIENCE_S)
    record.write_bytes(whole)
    assert cell.wait(two, State.ACTIVE).history == ()


def phase(agent: ComputeService, one: str) -> str:
    """Where the agent is with this build."""
    entry = agent._audit._guests.read_phases().get(one)
    return entry[0].value if entry else ""


def test_nothing_is_left(cell: LibvirtCell) -> None:
    """After all that was tried here: what is there belongs to an ACTIVE instance."""
    for host in (BAD, GOOD):
        assert {name.removesuffix(".iso") for name in left_of(cell.settings[host])} <= {
            one.uuid for one in cell.drivers[host].guests()
        }


def test_the_mac_of_a_port_is_no_path(tmp_path: Path) -> None:
    """What a message says names a file for the DHCP server."""
    (tmp_path / "dhcp").mkdir()
    attachments = Attachments(LibvirtConnection("test:///default", 1.0), {"lab": Attachment(kind="user")}, str(tmp_path / "dhcp"))
    address = FixedAddress(address="10.0.2.17", prefix=24)
    port = Port(network_id="n1", network="net", mac="../escaped", physical_network="lab", addresses=(address,))
    attachments.announce_addresses((port,), "one")
    assert [entry.name for entry in tmp_path.iterdir()] == ["dhcp"]
    attachments.forget_addresses((port,))
    assert list((tmp_path / "dhcp").iterdir()) == []
    with pytest.raises(errors.BuildFailed, match="no text of one line"):
        attachments.announce_addresses((port,), "one\nfa:16:3e:00:00:02,10.0.2.18")
