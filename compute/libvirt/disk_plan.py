"""Which disks a guest gets, from its flavor and the block devices of its request."""

from __future__ import annotations

from compute.driver import GuestSpec
from objects import errors
from objects.base import Object
from objects.flavor import Flavor

BlockDevice = dict[str, str | int | bool | None]

_SWAP = "swap"
_KNOWN = {"source_type", "destination_type", "uuid", "boot_index", "delete_on_termination", "volume_size", "device_name"}
_HONOURED = {"disk_bus", "device_type", "guest_format"}


class DiskPlan(Object, frozen=True, kw_only=True):
    """The disks beside the root disk, GiB and MiB, 0 for none; and the bus of each, empty for the one of the image or the host."""

    ephemeral_gb: int = 0
    swap_mb: int = 0
    root_bus: str = ""
    ephemeral_bus: str = ""
    swap_bus: str = ""


def plan_disks(spec: GuestSpec) -> DiskPlan:
    """The disks that the request asks for. Raises ``errors.BuildAborted`` for block devices that no guest can have.

    Without blank devices, a guest has the ephemeral disk and the swap disk of its flavor. With them it has those, which may be
    smaller.
    """
    flavor = spec.flavor
    plan = DiskPlan(ephemeral_gb=flavor.ephemeral_gb, swap_mb=flavor.swap_mb)
    root: list[BlockDevice] = []
    blank: list[BlockDevice] = []
    for device in spec.block_devices:
        _check_device(device)
        (root if device.get("source_type") == "image" else blank).append(device)
    if len(root) > 1:
        raise errors.BuildAborted("A guest has one disk with an image: the one with boot_index 0.")
    swaps = [device for device in blank if device.get("guest_format") == _SWAP]
    ephemerals = [device for device in blank if device.get("guest_format") != _SWAP]
    if len(swaps) > 1 or len(ephemerals) > 1:
        raise errors.BuildAborted("A guest has one blank disk and one swap disk at most.")
    return DiskPlan(
        ephemeral_gb=_size_of(ephemerals, "ephemeral disk", flavor, plan.ephemeral_gb) if blank else plan.ephemeral_gb,
        # devices give GiB, flavors MiB
        swap_mb=_size_of(swaps, "swap disk", flavor, plan.swap_mb, unit=1024) if blank else plan.swap_mb,
        root_bus=_disk_bus(root),
        ephemeral_bus=_disk_bus(ephemerals),
        swap_bus=_disk_bus(swaps),
    )


def _check_device(device: BlockDevice) -> None:
    if unknown := sorted({name for name, value in device.items() if value is not None} - _KNOWN - _HONOURED):
        raise errors.BuildAborted(f"block_device_mapping_v2: {unknown[0]} is not supported on hosts with libvirt.")
    if device.get("device_type") not in (None, "disk"):
        raise errors.BuildAborted("block_device_mapping_v2: device_type can only be disk on hosts with libvirt.")
    swaps = device.get("source_type") == "blank" and device.get("guest_format") == _SWAP
    if device.get("guest_format") is not None and not swaps:
        raise errors.BuildAborted(
            "block_device_mapping_v2: guest_format can only be swap, of a blank device, on hosts with libvirt."
        )


def _size_of(devices: list[BlockDevice], label: str, flavor: Flavor, most: int, unit: int = 1) -> int:
    """The size of the only device, at most that of the flavor, which is also what is meant without a size; 0 without a device."""
    if not devices:
        return 0
    volume_size = devices[0].get("volume_size")
    size = most if volume_size is None else int(volume_size) * unit
    if not 0 < size <= most:
        raise errors.BuildAborted(f"block_device_mapping_v2: flavor {flavor.name} has no {label} of this size: {most} at most.")
    return size


def _disk_bus(devices: list[BlockDevice]) -> str:
    return str(devices[0].get("disk_bus") or "") if devices else ""
