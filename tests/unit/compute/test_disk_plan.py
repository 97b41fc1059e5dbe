"""The disks of a guest: those of its flavor, or the block devices that fit into it. Nothing is ignored."""

from __future__ import annotations

import pytest

from compute.driver import GuestSpec
from compute.libvirt.disk_plan import BlockDevice, DiskPlan, plan_disks
from objects import errors
from objects.flavor import Flavor

FLAVOR = Flavor(flavor_id="1", name="one", vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=4, swap_mb=2048)
IMAGE: BlockDevice = {"source_type": "image", "destination_type": "local", "uuid": "i", "boot_index": 0}
BLANK: BlockDevice = {"source_type": "blank", "destination_type": "local"}


def plan(*devices: BlockDevice) -> DiskPlan:
    return plan_disks(GuestSpec(project_id="p", user_id="u", flavor=FLAVOR, hostname="h", block_devices=devices))


def test_the_flavor_decides_without_blank_devices() -> None:
    assert plan() == plan(IMAGE) == DiskPlan(ephemeral_gb=4, swap_mb=2048)
    assert plan({**IMAGE, "disk_bus": "sata", "device_type": "disk"}).root_bus == "sata"


def test_blank_devices_replace_what_the_flavor_gives() -> None:
    swap = {**BLANK, "guest_format": "swap", "volume_size": 1, "disk_bus": "scsi"}
    assert plan(IMAGE, BLANK) == DiskPlan(ephemeral_gb=4)
    assert plan(IMAGE, {**BLANK, "volume_size": 2}, swap) == DiskPlan(ephemeral_gb=2, swap_mb=1024, swap_bus="scsi")


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ((IMAGE, {**IMAGE, "boot_index": -1}), "one disk with an image"),
        ((BLANK, BLANK), "one blank disk"),
        (({**BLANK, "volume_size": 5},), "4 at most"),
        (({**BLANK, "volume_size": 0},), "4 at most"),
        (({**BLANK, "guest_format": "swap", "volume_size": 3},), "2048 at most"),
        (({**BLANK, "guest_format": "ext4"},), "only be swap"),
        (({**IMAGE, "guest_format": "swap"},), "only be swap"),
        (({**IMAGE, "device_type": "cdrom"},), "only be disk"),
        (({**IMAGE, "tag": "root"},), "tag is not supported"),
    ],
)
def test_what_no_guest_can_have_is_refused(devices: tuple[BlockDevice, ...], text: str) -> None:
    with pytest.raises(errors.BuildAborted, match=text):
        plan(*devices)
