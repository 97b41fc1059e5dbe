"""The XML of a domain is what was asked, for any text, and nothing else."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.driver import Guest, GuestSpec
from compute.libvirt.capabilities import HostFacts
from compute.libvirt.cpu_plan import Taken
from compute.libvirt.domain_xml import (
    METADATA_NAMESPACE,
    SPARE_SLOTS,
    DomainDisk,
    DomainNic,
    DomainRequest,
    make_domain_xml,
    make_metadata_xml,
    taken_of,
)
from compute.libvirt.guest_options import GuestSettings
from objects import errors
from objects.flavor import Flavor
from tests.support.libvirt_facts import emulating, server

UUID = "11111111-1111-4111-8111-111111111111"
OTHER_UUID = "22222222-2222-4222-8222-222222222222"
EMULATING, SERVER = emulating(), server()
QEMU = GuestSettings(virt_type="qemu")
USER_NIC = DomainNic(mac="fa:16:3e:00:00:01", kind="user")


def request(
    image: dict[str, str] | None = None,
    specs: dict[str, str] | None = None,
    *,
    host: HostFacts = EMULATING,
    settings: GuestSettings = QEMU,
    name: str = "web",
    server_uuid: str = "",
    **more: Any,
) -> DomainRequest:
    flavor = Flavor(flavor_id="1", name="small", vcpus=2, memory_mb=512, extra_specs=specs or {})
    guest = Guest(
        uuid=UUID,
        name=name,
        node="h",
        fence=1,
        attempt=1,
        builder="h:1",
        vcpus=2,
        memory_mb=512,
        disk_gb=1,
        server_uuid=server_uuid,
    )
    values: dict[str, Any] = {
        "guest": guest,
        "name": f"sc-{UUID}",
        "spec": GuestSpec(project_id="p", user_id="u", flavor=flavor, hostname="web"),
        "host": host,
        "settings": settings,
        "disks": (DomainDisk(path="/g/disk", serial=UUID),),
        "console_log": "/g/console.log",
        "identity": '{"uuid":"x"}',
        "image_properties": image or {},
        "nics": (USER_NIC,),
    }
    return DomainRequest(**(values | more))


def made(*args: Any, **kwargs: Any) -> ET.Element:
    return ET.fromstring(make_domain_xml(request(*args, **kwargs)))


def attributes(root: ET.Element, path: str) -> dict[str, str]:
    element = root.find(path)
    assert element is not None, path
    return dict(element.attrib)


def exists(root: ET.Element, path: str) -> bool:
    return root.find(path) is not None


def test_an_ordinary_guest() -> None:
    root = made(config_drive="/run/x.iso")
    assert root.get("type") == "qemu"
    assert (root.findtext("name"), root.findtext("uuid"), root.findtext("title")) == (f"sc-{UUID}", UUID, "web")
    assert (root.findtext("memory"), root.findtext("vcpu"), root.findtext("os/type")) == ("512", "2", "hvm")
    assert [root.findtext(f"on_{what}") for what in ("poweroff", "reboot", "crash")] == ["destroy", "restart", "destroy"]
    assert attributes(root, "os/type")["machine"] == "pc-i440fx-7.2"
    assert attributes(root, "devices/serial")["type"] == "pty"
    assert attributes(root, "devices/serial/log") == {"file": "/g/console.log", "append": "on"}
    targets = [dict(target.attrib) for target in root.iterfind("devices/disk/target")]
    assert targets == [{"dev": "vda", "bus": "virtio"}, {"dev": "hda", "bus": "ide"}]
    assert attributes(root, "devices/disk/driver")["cache"] == "none"
    assert root.findtext("features/tcg/tb-cache") == "32"
    assert attributes(root, "devices/controller") == {"type": "usb", "model": "none"}
    assert attributes(root, "devices/memballoon")["model"] == "none"
    assert not any(exists(root, path) for path in ("cpu", "cputune", "numatune", "devices/video", "devices/graphics"))


def test_the_metadata_is_the_identity_and_its_mark() -> None:
    def found(root: ET.Element, path: str) -> tuple[str | None, str | None]:
        element = root.find(path)
        assert element is not None
        return element.get("spawned"), element.text

    path = f"metadata/{{{METADATA_NAMESPACE}}}guest"
    assert found(made(), path) == ("0", '{"uuid":"x"}')
    assert found(made(spawned=True), path) == ("1", '{"uuid":"x"}')
    assert make_metadata_xml("<&>", spawned=True) == '<guest spawned="1">&lt;&amp;&gt;</guest>'


ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=80)


@given(ANY_TEXT, ANY_TEXT, st.sampled_from(["name", "path", "log", "drive", "serial", "source"]))
def test_any_text_leaves_the_structure_as_it_is(text: str, value: str, where: str) -> None:
    identity = json.dumps({"a": text.encode(errors="replace").decode()}, ensure_ascii=False)
    nics = (DomainNic(mac="fa:16:3e:00:00:01", kind="bridge", source=value if where == "source" else "b"),)
    disk = DomainDisk(path=value if where == "path" else "p", serial=value if where == "serial" else "s")
    root = made(
        name=value if where == "name" else "n",
        identity=identity,
        nics=nics,
        disks=(disk,),
        console_log=value if where == "log" else "l",
        config_drive=value if where == "drive" else "d",
    )
    plain = made(name="n", identity="{}", nics=nics, disks=(DomainDisk(path="p", serial="s"),), console_log="l", config_drive="d")
    optional = {"title", "serial"}
    assert [each.tag for each in root.iter() if each.tag not in optional] == [
        each.tag for each in plain.iter() if each.tag not in optional
    ]
    stored = root.findtext(f"metadata/{{{METADATA_NAMESPACE}}}guest")
    assert stored is not None
    assert json.loads(stored) == json.loads(identity)
    assert "\n" not in root.findtext("title", "")


def test_the_guest_sees_the_uuid_of_its_server() -> None:
    names = {"qemu": "http://libvirt.org/schemas/domain/qemu/1.0"}
    same, other = made(server_uuid=UUID), made(server_uuid=OTHER_UUID)
    assert same.find("qemu:commandline", names) is None
    values = [each.get("value") for each in other.iterfind("qemu:commandline/qemu:arg", names)]
    assert values == ["-smbios", f"type=1,uuid={OTHER_UUID}"]
    serials = [root.findtext("sysinfo/system/entry[@name='serial']") for root in (same, other)]
    assert serials == [UUID, OTHER_UUID]


@pytest.mark.parametrize(
    ("image", "path", "expected"),
    [
        ({"hw_machine_type": "q35"}, "os/type", {"machine": "pc-q35-7.2"}),
        ({"hw_machine_type": "pc-q35-6.2"}, "os/type", {"machine": "pc-q35-6.2"}),
        ({"hw_disk_bus": "scsi"}, "devices/controller[@type='scsi']", {"model": "virtio-scsi"}),
        ({"hw_disk_bus": "scsi", "hw_scsi_model": "lsilogic"}, "devices/controller[@type='scsi']", {"model": "lsilogic"}),
        ({"hw_disk_bus": "ide"}, "devices/disk/target", {"dev": "hda", "bus": "ide"}),
        ({"hw_disk_bus": "usb"}, "devices/controller", {"model": "qemu-xhci"}),
        ({"hw_vif_model": "e1000"}, "devices/interface/model", {"type": "e1000"}),
        ({"os_type": "windows"}, "clock", {"offset": "localtime"}),
        ({"os_type": "windows"}, "features/hyperv/spinlocks", {"state": "on", "retries": "8191"}),
        ({"hw_qemu_guest_agent": "yes"}, "devices/channel/target", {"name": "org.qemu.guest_agent.0"}),
        ({"hw_watchdog_action": "reset"}, "devices/watchdog", {"action": "reset"}),
        ({"hw_video_model": "vga"}, "devices/video/model", {"type": "vga"}),
        ({"hw_input_bus": "virtio"}, "devices/input", {"type": "tablet", "bus": "virtio"}),
        ({"hw_boot_menu": "true"}, "os/bootmenu", {"enable": "yes"}),
        ({"hw_time_hpet": "true"}, "clock/timer[@name='hpet']", {"present": "yes"}),
        ({"hw_pmu": "off"}, "features/pmu", {"state": "off"}),
        ({"hw_cpu_cores": "2"}, "cpu/topology", {"sockets": "1", "cores": "2", "threads": "1"}),
    ],
)
def test_properties_of_an_image(image: dict[str, str], path: str, expected: dict[str, str]) -> None:
    found = attributes(made(image), path)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ({"hw_machine_type": "virt"}, "no machine type 'virt'"),
        ({"hw_machine_type": "q35", "hw_disk_bus": "ide"}, "pc-q35-7.2 have no ide disks"),
        ({"hw_firmware_type": "uefi"}, "no UEFI firmware"),
        ({"hw_architecture": "aarch64"}, "The image is for aarch64"),
        ({"img_hide_hypervisor_id": "true"}, "this host emulates"),
        ({"hw_vif_multiqueue_enabled": "true"}, "has one queue"),
    ],
)
def test_what_another_host_may_do(image: dict[str, str], said: str) -> None:
    with pytest.raises(errors.BuildFailed, match=said):
        made(image)


def test_what_no_host_does() -> None:
    with pytest.raises(errors.BuildAborted, match="required needs hw_firmware_type = uefi"):
        made({"os_secure_boot": "required"})
    with pytest.raises(errors.BuildAborted, match="does not offer hw_tpm_version"):
        made({"hw_tpm_version": "2.0"})
    with pytest.raises(errors.BuildFailed, match="offers no guests of type xen"):
        made(settings=GuestSettings(virt_type="xen"))


def test_uefi_and_secure_boot() -> None:
    secure = {"hw_firmware_type": "uefi", "os_secure_boot": "required", "hw_machine_type": "q35"}
    root = made(secure, host=SERVER)
    assert attributes(root, "os") == {"firmware": "efi"}
    assert [dict(each.attrib) for each in root.iterfind("os/firmware/feature")] == [
        {"enabled": "yes", "name": "secure-boot"},
        {"enabled": "yes", "name": "enrolled-keys"},
    ]
    assert attributes(root, "features/smm") == {"state": "on"}
    plain = made(secure | {"os_secure_boot": "optional", "hw_machine_type": "pc"}, host=SERVER)
    assert attributes(plain, "os/firmware/feature")["enabled"] == "no"
    with pytest.raises(errors.BuildFailed, match="no secure boot for machine type pc-i440fx"):
        made(secure | {"hw_machine_type": "pc"}, host=SERVER)


def test_cpu_modes() -> None:
    def cpu(host: HostFacts = SERVER, **changes: Any) -> ET.Element:
        found = made(host=host, settings=GuestSettings(**changes)).find("cpu")
        assert found is not None
        return found

    assert cpu().get("mode") == "host-model"
    assert cpu(cpu_mode="host-passthrough", cpu_features=("-svm", "+avx")).find("feature[@name='svm']").get("policy") == "disable"  # type: ignore[union-attr]  # found above
    assert cpu(EMULATING, virt_type="qemu", cpu_mode="custom", cpu_models=("EPYC", "Penryn")).findtext("model") == "Penryn"
    with pytest.raises(errors.BuildFailed, match="can run none of"):
        cpu(EMULATING, virt_type="qemu", cpu_mode="custom", cpu_models=("EPYC",))
    with pytest.raises(errors.BuildFailed, match="offers no cpu_mode host-passthrough"):
        cpu(EMULATING, virt_type="qemu", cpu_mode="host-passthrough")


def test_dedicated_cpus_huge_pages_and_cells() -> None:
    specs = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2", "hw:mem_page_size": "2MB"}
    settings = GuestSettings(cpu_dedicated_set="0-7")
    text = make_domain_xml(request(specs=specs, host=SERVER, settings=settings))
    root = ET.fromstring(text)
    assert [dict(pin.attrib) for pin in root.iterfind("cputune/vcpupin")] == [
        {"vcpu": "0", "cpuset": "0"},
        {"vcpu": "1", "cpuset": "4"},
    ]
    assert attributes(root, "numatune/memory") == {"mode": "strict", "nodeset": "0-1"}
    assert attributes(root, "memoryBacking/hugepages/page") == {"size": "2048", "unit": "KiB", "nodeset": "0-1"}
    assert attributes(root, "cpu/numa/cell[@id='1']") == {"id": "1", "cpus": "1", "memory": "256", "unit": "MiB"}
    taken = taken_of(text)
    assert taken.cpus == (0, 4)
    again = request(specs=specs, host=SERVER, settings=settings, others=(taken,))
    assert taken_of(make_domain_xml(again)).cpus == (1, 5)


def test_a_guest_is_tied_to_its_claimed_node() -> None:
    asked = request(host=SERVER, settings=GuestSettings())
    root = ET.fromstring(
        make_domain_xml(msgspec.structs.replace(asked, guest=msgspec.structs.replace(asked.guest, numa_nodes=(1,))))
    )
    assert attributes(root, "numatune/memory") == {"mode": "strict", "nodeset": "1"}
    assert {pin.get("cpuset") for pin in root.iterfind("cputune/vcpupin")} == {"4-7"}
    assert attributes(root, "cputune/emulatorpin") == {"cpuset": "4-7"}
    assert root.find("cpu/numa") is None


def test_other_guests_stay_off_dedicated_cpus() -> None:
    assert attributes(made(settings=GuestSettings(virt_type="qemu", cpu_dedicated_set="0")), "vcpu")["cpuset"] == "1"
    assert [taken_of(text) for text in ("", "<domain/>", "<x", make_domain_xml(request()))] == [Taken()] * 4


def test_disks_interfaces_and_limits() -> None:
    disks = tuple(DomainDisk(path=f"/{number}", format="raw") for number in range(28))
    nics = (
        DomainNic(mac="fa:16:3e:00:00:01", kind="bridge", source="br0", mtu=1450),
        DomainNic(mac="fa:16:3e:00:00:02", kind="network", source="default"),
    )
    specs = {
        "quota:disk_read_iops_sec": "9",
        "quota:vif_inbound_average": "10",
        "quota:cpu_shares": "7",
        "hw:vif_multiqueue_enabled": "1",
    }
    root = made(specs=specs, disks=disks, nics=nics, direct_io=False)
    assert [target.get("dev") for target in root.iterfind("devices/disk/target")][-3:] == ["vdz", "vdaa", "vdab"]
    assert [boot.get("order") for boot in root.iterfind("devices/disk/boot")][:2] == ["1", "2"]
    assert attributes(root, "devices/disk/driver")["cache"] == "writeback"
    assert root.findtext("devices/disk/iotune/read_iops_sec") == "9"
    assert attributes(root, "devices/interface/source") == {"bridge": "br0"}
    assert attributes(root, "devices/interface/mtu") == {"size": "1450"}
    assert attributes(root, "devices/interface/driver") == {"queues": "2"}
    assert attributes(root, "devices/interface/bandwidth/inbound") == {"average": "10"}
    assert attributes(root, "devices/interface[2]/source") == {"network": "default"}
    assert root.findtext("cputune/shares") == "7"


def test_a_screen_only_if_the_operator_says_so() -> None:
    root = made(settings=msgspec.structs.replace(QEMU, vnc_listen="127.0.0.1", memory_balloon=True))
    assert attributes(root, "devices/graphics/listen") == {"type": "address", "address": "127.0.0.1"}
    assert attributes(root, "devices/video/model") == {"type": "vga"}
    assert attributes(root, "devices/memballoon") == {"model": "virtio"}
    root = made(settings=msgspec.structs.replace(QEMU, vnc_enabled=True))
    assert attributes(root, "devices/graphics") == {"type": "vnc"}
    assert attributes(root, "devices/graphics/listen") == {"type": "none"}
    assert attributes(root, "devices/video/model") == {"type": "vga"}


@pytest.mark.parametrize(("machine", "spare"), [("q35", True), ("pc", False)])
def test_a_machine_with_pci_express_has_spare_slots(machine: str, spare: bool) -> None:
    root = made({"hw_machine_type": machine}, host=SERVER)
    ports = root.findall("devices/controller[@model='pcie-root-port']")
    devices = sum(len(root.findall(f"devices/{name}")) for name in ("disk", "interface", "memballoon"))
    assert len(ports) >= devices + SPARE_SLOTS if spare else ports == []
