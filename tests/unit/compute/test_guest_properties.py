"""Every property of flavor and image that bears on a guest is honoured or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.libvirt.guest_properties import INFORMATIVE, CpuTopology, GuestProperties, NumaNode, read_properties
from objects import errors
from objects.flavor import Flavor

DOCUMENT = Path(__file__).parents[3] / "docs" / "libvirt.md"


def read(
    specs: dict[str, str] | None = None, image: dict[str, str] | None = None, vcpus: int = 4, memory_mb: int = 1024
) -> GuestProperties:
    flavor = Flavor(flavor_id="1", name="f", vcpus=vcpus, memory_mb=memory_mb, extra_specs=specs or {})
    return read_properties(flavor, image or {}, vcpus, memory_mb)


def refused(specs: dict[str, str] | None = None, image: dict[str, str] | None = None) -> str:
    with pytest.raises(errors.BuildAborted) as caught:
        read(specs, image)
    return str(caught.value)


def test_nothing_is_asked_by_default() -> None:
    assert read() == GuestProperties()
    others = {"capabilities:arch": "x86_64", "trait:HW_CPU_X86_AVX2": "required", "resources:CUSTOM_GPU": "1", "note": "x"}
    assert read(others, {"description": "x", "min_disk": "3"}) == GuestProperties()


def test_flavor_and_image_name_one_property() -> None:
    assert read({"hw:watchdog_action": "reset"}).watchdog == read(image={"hw_watchdog_action": "Reset"}).watchdog == "reset"
    both = refused({"hw:watchdog_action": "reset"}, {"hw_watchdog_action": "pause"})
    assert both == "hw:watchdog_action of the flavor is 'reset', but hw_watchdog_action of the image is 'pause'."


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("hw_disk_bus", "xen", "hw_disk_bus: 'xen' is none of virtio, scsi, sata, ide, usb."),
        ("hw_qemu_guest_agent", "maybe", "hw_qemu_guest_agent: 'maybe' is neither true nor false."),
        ("hw_serial_port_count", "9", "hw_serial_port_count: '9' is not a whole number from 1 to 4."),
        ("hw_machine_type", "q35'/>", "is not the name of a machine type"),
        ("hw_tpm_model", "tpm-crb", "The driver libvirt does not offer hw_tpm_model."),
        ("hw_mem_encryption", "true", "The driver libvirt does not offer hw_mem_encryption."),
        ("hw_nonsense", "1", "does not offer hw_nonsense"),
        ("os_command_line", "quiet", "does not offer os_command_line"),
        ("hw_vm_mode", "xen", "hw_vm_mode: 'xen' is none of hvm."),
        ("vm_mode", "xen", "only hvm is offered"),
        ("kernel_id", "a", "guests boot from their disk only"),
        ("hw_video_ram", "64", "more MiB than hw_video:ram_max_mb of the flavor, 0"),
        ("hw_cpu_policy", "dedicated", "hw_cpu_policy: dedicated needs a flavor with hw:cpu_policy = dedicated"),
        ("hw_mem_page_size", "large", "needs a flavor with hw:mem_page_size = large or any"),
        ("hw_emulator_threads_policy", "isolate", "needs a flavor with"),
        ("hw_cpu_thread_policy", "require", "require needs hw_cpu_policy = dedicated"),
        ("hw_numa_cpus.0", "0", "need hw_numa_nodes"),
    ],
)
def test_an_image_requesting_the_impossible_is_refused(name: str, value: str, said: str) -> None:
    assert said in refused(image={name: value})


@pytest.mark.parametrize(
    "key", ["hw:pmem", "quota:memory_limit", "pci_passthrough:alias", "hw:cpu_dedicated_mask", "accel:device_profile"]
)
def test_an_extra_spec_that_is_unknown(key: str) -> None:
    assert refused({key: "x"}) == f"The driver libvirt does not offer {key}."


def test_informative_and_disabled_properties_change_nothing() -> None:
    image = {name: "x" for name in INFORMATIVE if name.startswith(("hw_", "os_"))} | {"os_glance_stage_host": "x"}
    assert read(image=image | {"hw_mem_encryption": "false", "hw_locked_memory": "no"}) == GuestProperties()


@given(
    st.dictionaries(st.sampled_from(["hw_a", "hw_numa_mem.x", "os_b", "hw_cpu_cores", "hw_mem_page_size"]), st.text(), min_size=1)
)
def test_any_value_is_honoured_or_refused_in_brief(image: dict[str, str]) -> None:
    said = ""
    try:
        read(image=image)
    except errors.BuildAborted as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) <= 500


def test_topology() -> None:
    def shape(vcpus: int, specs: dict[str, str], image: dict[str, str] | None = None) -> tuple[int, int, int]:
        found = read(specs, image, vcpus).topology
        assert found is not None
        return found.sockets, found.cores, found.threads

    assert shape(8, {"hw:cpu_sockets": "2"}) == (2, 4, 1)
    assert shape(8, {"hw:cpu_threads": "2"}) == (4, 1, 2)
    assert shape(8, {"hw:cpu_max_sockets": "2"}) == (2, 4, 1)
    assert shape(8, {"hw:cpu_sockets": "2"}, {"hw_cpu_sockets": "1"}) == (1, 8, 1)
    assert shape(8, {"hw:cpu_max_sockets": "4"}, {"hw_cpu_max_sockets": "8"}) == (4, 2, 1)
    assert read({"hw:cpu_cores": "4"}).topology == CpuTopology(sockets=1, cores=4, threads=1)
    assert "allow no topology of 4 vCPUs" in refused({"hw:cpu_sockets": "3"})


def test_numa_nodes() -> None:
    assert read({"hw:numa_nodes": "2"}).numa_nodes == (NumaNode(vcpus=(0, 1), memory_mb=512), NumaNode(vcpus=(2, 3), memory_mb=512))
    uneven = {
        "hw:numa_nodes": "2",
        "hw:numa_cpus.0": "0,2-3",
        "hw:numa_cpus.1": "1",
        "hw:numa_mem.0": "1000",
        "hw:numa_mem.1": "24",
    }
    assert read(uneven).numa_nodes == (NumaNode(vcpus=(0, 2, 3), memory_mb=1000), NumaNode(vcpus=(1,), memory_mb=24))
    assert "cannot be divided" in refused({"hw:numa_nodes": "3"})
    assert "must be in one node" in refused(uneven | {"hw:numa_cpus.1": "0"})
    assert "have 1001 MiB, the flavor has 1024" in refused(uneven | {"hw:numa_mem.1": "1"})
    assert "for each of the 2 nodes" in refused({"hw:numa_nodes": "2", "hw:numa_mem.5": "1"})


def test_page_sizes() -> None:
    assert [read({"hw:mem_page_size": text}).page_size for text in ("large", "2048", "2MB", "1GB", "4 ".strip())] == [
        "large",
        "2048",
        "2048",
        "1048576",
        "4",
    ]
    assert read({"hw:mem_page_size": "any"}, {"hw_mem_page_size": "1GB"}).page_size == "1048576"
    assert "none of small, large, any" in refused({"hw:mem_page_size": "huge"})


def test_limits() -> None:
    specs = {
        "quota:cpu_shares": "512",
        "quota:disk_read_iops_sec": "100",
        "quota:vif_inbound_average": "10",
        "quota:vif_inbound_peak": "20",
    }
    quota = read(specs).quota
    assert (quota.cpu, quota.disk, quota.inbound) == ({"shares": 512}, {"read_iops_sec": 100}, {"average": 10, "peak": 20})
    assert "need quota:vif_outbound_average" in refused({"quota:vif_outbound_peak": "20"})


def test_the_document_names_every_property() -> None:
    """A property that the code reads is in the table, and one in the table is read."""
    text = DOCUMENT.read_text()
    code = (Path(__file__).parents[3] / "compute" / "libvirt" / "guest_properties.py").read_text()
    names = set(re.findall(r'reader\.(?:choice|flag|number|numbered|both|text)\(\s*"([a-z_]+)"', code)) - {"type", "allowed"}
    missing = [name for name in names if not re.search(rf"(?:[:_]|\b){name}\b", text)]
    assert missing == []
    assert [name for name in sorted(INFORMATIVE) if name.replace("hw:", "hw_") not in text] == []
