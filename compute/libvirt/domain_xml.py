"""The XML of a guest's domain, as a pure function of what was asked and of the host."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from compute.driver import Guest, GuestSpec
from compute.libvirt.capabilities import HostFacts, MachineFacts, cpu_text
from compute.libvirt.cpu_plan import CpuPlan, Taken, plan_cpus
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.guest_properties import GuestProperties, read_properties
from objects import errors, typed
from objects.base import Object
from objects.spec import DISK_PREFIXES
from objects.text import REPLACEMENT, one_line

METADATA_NAMESPACE = "urn:superconductor:guest:1"
METADATA_PREFIX = "sc"
METADATA_ELEMENT = "guest"
"""The element in the domain's metadata that makes it a guest of ours. Its text is the identity, ``spawned`` is "0" or "1"."""
TAKEN_NAMESPACE = "urn:superconductor:taken:1"
"""Of the element with what the guest has taken for itself, as JSON. libvirt keeps one element per namespace."""

TITLE_SIZE = 255
"""Bytes of UTF-8 of the domain's title, which is the server's name."""
MAX_QUEUES = 16
"""Queues of a network interface with hw_vif_multiqueue_enabled, if the guest has as many vCPUs."""
SPINLOCK_RETRIES = 8191
"""Attempts of a Windows guest to take a spinlock before it tells the hypervisor; Microsoft's recommendation for guests."""
TB_CACHE_SINCE = 8_000_000
"""The version of libvirt that knows ``<tb-cache>``."""

_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""
_X86 = ("x86_64", "i686")
SPARE_SLOTS = 4
"""Network interfaces that a guest of a PCI Express machine can be given while it runs, at least."""
_HYPERV = ("relaxed", "vapic", "spinlocks", "vpindex", "synic", "stimer", "frequencies")


class DomainDisk(Object, frozen=True, kw_only=True):
    """One disk, in the order of the list; the guest boots from the first. ``bus`` empty: as the image or the host says.

    ``format``: ``qcow2`` or ``raw``. ``device``: ``disk`` or ``cdrom``. ``serial``: for the guest; virtio shows 20 characters.
    """

    path: str
    format: str = "qcow2"
    bus: str = ""
    serial: str = ""
    device: str = "disk"


class DomainNic(Object, frozen=True, kw_only=True):
    """One network interface. ``kind``: ``bridge``, ``network`` (of libvirt) or ``user``. ``source``: the name of either."""

    mac: str
    kind: str
    source: str = ""
    mtu: int | None = None


class DomainRequest(Object, frozen=True, kw_only=True):
    """Everything that the XML of a domain is made of.

    ``name``: of the domain. ``add_identity``: JSON, without secrets.
    ``image_properties``: those of the image store with those given to the API.
    ``config_drive``: path of an ISO file. ``console_log``: path. ``direct_io``: whether the disks' file system takes O_DIRECT.
    ``others``: what the other guests of the host have taken (``taken_of`` their XML).
    """

    guest: Guest
    name: str
    spec: GuestSpec
    host: HostFacts
    settings: GuestSettings
    disks: tuple[DomainDisk, ...]
    console_log: str
    identity: str
    image_properties: dict[str, str] = msgspec.field(default_factory=dict)
    spawned: bool = False
    config_drive: str | None = None
    nics: tuple[DomainNic, ...] = ()
    direct_io: bool = True
    others: tuple[Taken, ...] = ()


def domain_name(uuid: str) -> str:
    """The name of the domain of a server, by the server's uuid. See ``Domains.name_for``."""
    return f"sc-{uuid}"


def make_domain_xml(request: DomainRequest) -> str:
    """The domain's XML. Raises ``errors.BuildFailed`` if another host may do it, ``errors.BuildAborted`` if none would."""
    guest, host = request.guest, request.host
    properties = read_properties(request.spec.flavor, request.image_properties, guest.vcpus, guest.memory_mb)
    machine = _machine_for(properties, request)
    plan = plan_cpus(properties, guest.vcpus, guest.memory_mb, host, request.settings, request.others, guest.numa_nodes)
    making = _Making(request=request, properties=properties, machine=machine, plan=plan)
    making.add_identity()
    making.add_resources()
    making.add_system()
    making.add_features()
    making.add_cpu()
    making.add_clock()
    for name, action in (("on_poweroff", "destroy"), ("on_reboot", "restart"), ("on_crash", "destroy")):
        making.add_element(making.root, name, action)
    making.add_devices()
    making.visible_uuid()
    return ET.tostring(making.root, encoding="unicode")


def make_metadata_xml(identity: str, *, spawned: bool) -> str:
    """The metadata element for ``virDomainSetMetadata``, which adds namespace and prefix itself."""
    element = ET.Element(METADATA_ELEMENT, {"spawned": str(int(spawned))})
    element.text = _json_text(identity)
    return ET.tostring(element, encoding="unicode")


def taken_of(domain_xml: str) -> Taken:
    """What the guest of this domain has taken for itself; empty for a domain that is not ours."""
    try:
        root = ET.fromstring(domain_xml)  # noqa: S314 - libvirt wrote it
        text = root.findtext(f"metadata/{{{TAKEN_NAMESPACE}}}taken")
        return typed.decode_json(text, Taken) if text else Taken()
    except (ET.ParseError, msgspec.MsgspecError):
        return Taken()


def _xml_text(value: str) -> str:
    """The text without what XML cannot hold."""
    return _NOT_XML.sub(REPLACEMENT, value)


def _json_text(value: str) -> str:
    """JSON without what XML cannot hold: such characters can only stand in its strings, where an escape means the same."""
    return _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", value)


def _machine_for(properties: GuestProperties, request: DomainRequest) -> MachineFacts:
    """The machine type of the guest, if this host can run it at all."""
    host, settings = request.host, request.settings
    if settings.virt_type not in host.virt_types:
        raise errors.BuildFailed(f"libvirt offers no guests of type {settings.virt_type} on this host.")
    architecture = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}.get(properties.architecture, properties.architecture)
    if architecture and architecture != host.arch and not (architecture == "i686" and host.arch == "x86_64"):
        raise errors.BuildFailed(f"The image is for {architecture[:40]}, and this host runs guests for {host.arch}.")
    name = properties.machine_type or settings.machine_type
    machine = host.machine_facts(name)
    if request.guest.vcpus > machine.max_vcpus:
        raise errors.BuildFailed(f"Guests of machine type {machine.name} have {machine.max_vcpus} vCPUs at most here.")
    return msgspec.structs.replace(machine, name=host.machine_types[name] if name else machine.name)


@dataclass(slots=True)
class _Making:
    """A domain's XML in the making."""

    request: DomainRequest
    properties: GuestProperties
    machine: MachineFacts
    plan: CpuPlan
    root: ET.Element = field(default_factory=lambda: ET.Element("domain"))
    names: Counter[str] = field(default_factory=Counter)
    """By prefix, how many disks have a name."""

    def add_element(
        self, parent: ET.Element, tag: str, text: str | int | None = None, /, **attributes: str | int | None
    ) -> ET.Element:
        """A new element in ``parent``. Attributes that are None are left out; ``type_`` stands for ``type``."""
        texts = {name.rstrip("_"): _xml_text(str(value)) for name, value in attributes.items() if value is not None}
        element = ET.SubElement(parent, tag, texts)
        if text is not None:
            element.text = _xml_text(str(text))
        return element

    @property
    def is_x86(self) -> bool:
        return self.request.host.arch in _X86

    @property
    def is_q35(self) -> bool:
        return self.machine.name.startswith("pc-q35")

    def add_identity(self) -> None:
        guest = self.request.guest
        self.root.set("type", self.request.settings.virt_type)
        self.add_element(self.root, "name", self.request.name)
        self.add_element(self.root, "uuid", guest.uuid)
        if title := one_line(_xml_text(guest.name), TITLE_SIZE):
            self.add_element(self.root, "title", title)
        metadata = self.add_element(self.root, "metadata")
        spawned = str(int(self.request.spawned))
        identity = ET.SubElement(
            metadata,
            f"{METADATA_PREFIX}:{METADATA_ELEMENT}",
            {f"xmlns:{METADATA_PREFIX}": METADATA_NAMESPACE, "spawned": spawned},
        )
        identity.text = _json_text(self.request.identity)
        if self.plan.taken != Taken():
            taken = ET.SubElement(metadata, "sctaken:taken", {"xmlns:sctaken": TAKEN_NAMESPACE})
            taken.text = msgspec.json.encode(self.plan.taken).decode()

    def add_resources(self) -> None:
        guest, plan = self.request.guest, self.plan
        self.add_element(self.root, "memory", guest.memory_mb, unit="MiB")
        self.add_element(self.root, "vcpu", guest.vcpus, placement="static", cpuset=cpu_text(plan.shared) or None)
        huge = [(index, node) for index, node in enumerate(plan.nodes) if node.page_kib]
        if huge:
            pages = self.add_element(self.add_element(self.root, "memoryBacking"), "hugepages")
            for size in sorted({node.page_kib for _, node in huge}):
                nodes = cpu_text([index for index, node in huge if node.page_kib == size])
                self.add_element(pages, "page", size=size, unit="KiB", nodeset=nodes if plan.numa else None)
        self._add_tuning()
        if plan.nodes:
            tune = self.add_element(self.root, "numatune")
            self.add_element(tune, "memory", mode="strict", nodeset=cpu_text([node.cell for node in plan.nodes]))
            for index, node in enumerate(plan.nodes if plan.numa else ()):
                self.add_element(tune, "memnode", cellid=index, mode="strict", nodeset=node.cell)

    def _add_tuning(self) -> None:
        """Elements of ``cputune`` in the order of libvirt's schema."""
        tune = ET.Element("cputune")
        for name in ("shares", "period", "quota"):
            if name in self.properties.quota.cpu:
                self.add_element(tune, name, self.properties.quota.cpu[name])
        pins = {vcpu: cpus for node in self.plan.nodes for vcpu, cpus in node.pins.items()}
        for vcpu, cpus in sorted(pins.items()):
            self.add_element(tune, "vcpupin", vcpu=vcpu, cpuset=cpu_text(cpus))
        if self.plan.emulator:
            self.add_element(tune, "emulatorpin", cpuset=cpu_text(self.plan.emulator))
        if len(tune):
            self.root.append(tune)

    def add_system(self) -> None:
        """The firmware. SMBIOS without a uuid: libvirt takes no other than the domain's."""
        guest = self.request.guest
        if self.is_x86:
            about = self.add_element(self.add_element(self.root, "sysinfo", type_="smbios"), "system")
            self.add_element(about, "entry", "Superconductor", name="manufacturer")
            self.add_element(about, "entry", "Superconductor Server", name="product")
            self.add_element(about, "entry", guest.server_uuid or guest.uuid, name="serial")
            self.add_element(about, "entry", "Virtual Machine", name="family")
        system = self.add_element(self.root, "os")
        self._add_firmware(system)
        self.add_element(system, "type", "hvm", arch=self.machine.arch, machine=self.machine.name)
        self._secure_boot(system)
        if self.properties.boot_menu is not None:
            self.add_element(system, "bootmenu", enable="yes" if self.properties.boot_menu else "no")
        if self.is_x86:
            self.add_element(system, "smbios", mode="sysinfo")

    @property
    def _is_uefi(self) -> bool:
        return self.properties.firmware == "uefi" or (not self.properties.firmware and self.request.host.arch == "aarch64")

    @property
    def _boots_securely(self) -> bool:
        """``optional``: if this host and the machine type can."""
        can = self._is_uefi and self.is_q35 and self.machine.secure_boot
        if self.properties.secure_boot == "required" and not can:
            if self.properties.firmware != "uefi":
                raise errors.BuildAborted("Image property os_secure_boot: required needs hw_firmware_type = uefi.")
            raise errors.BuildFailed(f"This host offers no secure boot for machine type {self.machine.name}.")
        return can and self.properties.secure_boot in ("required", "optional")

    def _add_firmware(self, system: ET.Element) -> None:
        if not self._is_uefi:
            return
        if "efi" not in self.machine.firmware:
            raise errors.BuildFailed(f"This host has no UEFI firmware for machine type {self.machine.name}.")
        system.set("firmware", "efi")

    def _secure_boot(self, system: ET.Element) -> None:
        secure = self._boots_securely
        if not self._is_uefi or not self.properties.secure_boot:
            return
        firmware = ET.Element("firmware")
        self.add_element(firmware, "feature", enabled="yes" if secure else "no", name="secure-boot")
        system.append(firmware)
        if secure:
            self.add_element(firmware, "feature", enabled="yes", name="enrolled-keys")
            self.add_element(system, "loader", secure="yes")

    def add_features(self) -> None:
        properties, host, settings = self.properties, self.request.host, self.request.settings
        features = self.add_element(self.root, "features")
        if self.is_x86 or self._is_uefi:
            self.add_element(features, "acpi")
        if self.is_x86:
            self.add_element(features, "apic")
        if properties.windows and self.is_x86:
            self._add_hyperv(features)
        if properties.hide_hypervisor:
            if settings.virt_type != "kvm":
                raise errors.BuildFailed("hide_hypervisor_id: this host emulates, and its guests can see that.")
            self.add_element(self.add_element(features, "kvm"), "hidden", state="on")
        if properties.pmu is not None:
            self.add_element(features, "pmu", state="on" if properties.pmu else "off")
        if self._boots_securely:
            self.add_element(features, "smm", state="on")
        if settings.virt_type == "qemu" and settings.tb_cache_mb and host.libvirt_version >= TB_CACHE_SINCE:
            self.add_element(self.add_element(features, "tcg"), "tb-cache", settings.tb_cache_mb, unit="MiB")

    def _add_hyperv(self, features: ET.Element) -> None:
        offered = [name for name in _HYPERV if name in self.machine.hyperv]
        hyperv = self.add_element(features, "hyperv") if offered else None
        if hyperv is not None:
            for name in offered:
                self.add_element(hyperv, name, state="on", retries=SPINLOCK_RETRIES if name == "spinlocks" else None)

    def add_cpu(self) -> None:
        settings, mode = self.request.settings, self.request.settings.effective_cpu_mode
        cpu = ET.Element("cpu")
        if mode != "none":
            if mode not in self.machine.cpu_modes:
                raise errors.BuildFailed(f"libvirt offers no cpu_mode {mode} on this host; change [libvirt] cpu_mode.")
            cpu.set("mode", mode)
            if mode == "custom":
                cpu.set("match", "exact")
                self.add_element(cpu, "model", self._cpu_model(), fallback="forbid")
        if self.properties.topology is not None:
            shape = self.properties.topology
            self.add_element(cpu, "topology", sockets=shape.sockets, dies=1, cores=shape.cores, threads=shape.threads)
        for feature in settings.cpu_features if mode != "none" else ():
            policy = "disable" if feature.startswith("-") else "require"
            self.add_element(cpu, "feature", policy=policy, name=feature.lstrip("+-"))
        if self.plan.numa:
            numa = self.add_element(cpu, "numa")
            for index, node in enumerate(self.plan.nodes):
                self.add_element(numa, "cell", id=index, cpus=cpu_text(node.vcpus), memory=node.memory_mb, unit="MiB")
        if len(cpu) or cpu.attrib:
            self.root.append(cpu)

    def _cpu_model(self) -> str:
        models = self.request.settings.cpu_models
        for name in models:
            if name in self.machine.cpu_models:
                return name
        raise errors.BuildFailed(f"This host can run none of [libvirt] cpu_models: {', '.join(models)}.")

    def add_clock(self) -> None:
        """Windows keeps the local time in the hardware clock. Lost ticks are made up for, as no guest expects to lose any."""
        clock = self.add_element(self.root, "clock", offset="localtime" if self.properties.windows else "utc")
        if self.is_x86:
            if self.request.settings.virt_type == "kvm":
                self.add_element(clock, "timer", name="pit", tickpolicy="delay")
                self.add_element(clock, "timer", name="rtc", tickpolicy="catchup")
            self.add_element(clock, "timer", name="hpet", present="yes" if self.properties.hpet else "no")
            if self.properties.windows and self.request.settings.virt_type == "kvm":
                self.add_element(clock, "timer", name="hypervclock", present="yes")

    def add_devices(self) -> None:
        request, properties = self.request, self.properties
        devices = self.add_element(self.root, "devices")
        buses = [self._add_disk(devices, disk, order) for order, disk in enumerate(request.disks, start=1)]
        if request.config_drive is not None:
            buses.append(self._add_cdrom(devices, request.config_drive))
        tablet_bus = properties.tablet_bus
        uses_usb = "usb" in (*buses, tablet_bus)
        self.add_element(devices, "controller", type_="usb", model="qemu-xhci" if uses_usb else "none")
        if "scsi" in buses:
            self.add_element(devices, "controller", type_="scsi", index=0, model=properties.scsi_model or "virtio-scsi")
        for nic in request.nics:
            self._add_nic(devices, nic)
        self._add_consoles(devices)
        if properties.guest_agent:
            channel = self.add_element(devices, "channel", type_="unix")
            self.add_element(channel, "target", type_="virtio", name="org.qemu.guest_agent.0")
        if tablet_bus:
            self.add_element(devices, "input", type_="tablet", bus=tablet_bus)
        self._add_screen(devices)
        if properties.watchdog:
            self.add_element(devices, "watchdog", model="i6300esb", action=properties.watchdog)
        self.add_element(devices, "memballoon", model="virtio" if request.settings.memory_balloon else "none")
        if properties.rng:
            self._add_rng(devices)
        if self.is_q35 or self.machine.name.startswith("virt"):
            self._spare_slots(devices)

    def _spare_slots(self, devices: ET.Element) -> None:
        """Each PCI Express port takes one device, and none can be added to a guest that runs.

        libvirt puts the devices on these ports, so there are as many as devices that may need one, and the spare ones.
        """
        count = sum(len(devices.findall(name)) for name in ("disk", "interface", "controller", "channel", "memballoon", "rng"))
        self.add_element(devices, "controller", type_="pci", index=0, model="pcie-root")
        for _ in range(count + SPARE_SLOTS):
            self.add_element(devices, "controller", type_="pci", model="pcie-root-port")

    def _add_disk(self, devices: ET.Element, disk: DomainDisk, order: int) -> str:
        """Add a disk, and return its bus."""
        settings = self.request.settings
        bus = disk.bus or (self._cdrom_bus if disk.device == "cdrom" else self.properties.disk_bus or "virtio")
        cache = settings.disk_cache
        if cache == "auto":
            cache = "none" if self.request.direct_io else "writeback"
        element = self.add_element(devices, "disk", type_="file", device=disk.device)
        io, discard = settings.disk_io or None, settings.disk_discard
        self.add_element(element, "driver", name="qemu", type_=disk.format, cache=cache, io=io, discard=discard)
        self.add_element(element, "source", file=disk.path)
        self.add_element(element, "target", dev=self._next_disk_name(bus), bus=bus)
        if self.properties.quota.disk and disk.device == "disk":
            tune = self.add_element(element, "iotune")
            for name, value in self.properties.quota.disk.items():
                self.add_element(tune, name, value)
        if disk.device == "cdrom":
            self.add_element(element, "readonly")
        if disk.serial:
            self.add_element(element, "serial", disk.serial)
        self.add_element(element, "boot", order=order)
        return bus

    def _add_cdrom(self, devices: ET.Element, path: str) -> str:
        """Add the config drive, and return its bus. It is no disk to boot from."""
        bus = self._cdrom_bus
        element = self.add_element(devices, "disk", type_="file", device="cdrom")
        self.add_element(element, "driver", name="qemu", type_="raw")
        self.add_element(element, "source", file=path)
        self.add_element(element, "target", dev=self._next_disk_name(bus), bus=bus)
        self.add_element(element, "readonly")
        return bus

    @property
    def _cdrom_bus(self) -> str:
        return self.properties.cdrom_bus or next((bus for bus in ("ide", "sata") if bus in self.machine.disk_buses), "scsi")

    def _next_disk_name(self, bus: str) -> str:
        """The next free name of a disk on this bus. Raises ``errors.BuildFailed`` if the machine type has no such bus."""
        if bus not in self.machine.disk_buses:
            raise errors.BuildFailed(f"Guests of machine type {self.machine.name} have no {bus} disks on this host.")
        prefix = DISK_PREFIXES.get(bus, "sd")
        number = self.names[prefix]
        self.names[prefix] += 1
        letters = chr(ord("a") + number % 26)
        return prefix + (letters if number < 26 else chr(ord("a") + number // 26 - 1) + letters)

    def _add_nic(self, devices: ET.Element, nic: DomainNic) -> None:
        properties = self.properties
        element = self.add_element(devices, "interface", type_=nic.kind)
        self.add_element(element, "mac", address=nic.mac)
        if nic.kind != "user":
            self.add_element(element, "source", **{nic.kind: nic.source})
        self.add_element(element, "model", type_=properties.vif_model)
        queues = min(self.request.guest.vcpus, MAX_QUEUES)
        if properties.vif_multiqueue and queues > 1 and properties.vif_model == "virtio":
            if nic.kind == "user":
                raise errors.BuildFailed("hw_vif_multiqueue_enabled: an interface of QEMU's own network has one queue.")
            self.add_element(element, "driver", queues=queues)
        limits = {"inbound": properties.quota.inbound, "outbound": properties.quota.outbound}
        if nic.kind != "user":
            if any(limits.values()):
                bandwidth = self.add_element(element, "bandwidth")
                for name, values in limits.items():
                    if values:
                        self.add_element(bandwidth, name, **values)
            if nic.mtu is not None:
                self.add_element(element, "mtu", size=nic.mtu)
        elif any(limits.values()):
            raise errors.BuildFailed("quota:vif_*: an interface of QEMU's own network cannot be limited.")

    def _add_consoles(self, devices: ET.Element) -> None:
        """Serial ports that anybody on the host may open. What the guest writes to the first is also kept in a file."""
        for port in range(self.properties.serial_ports):
            serial = self.add_element(devices, "serial", type_="pty")
            if port == 0:
                self.add_element(serial, "log", file=self.request.console_log, append="on")
            self.add_element(serial, "target", port=port)

    def _add_screen(self, devices: ET.Element) -> None:
        settings, model = self.request.settings, self.properties.video_model
        if settings.vnc_listen or settings.vnc_enabled:
            if "vnc" not in self.machine.graphics:
                raise errors.BuildFailed("[libvirt] vnc_enabled, vnc_listen: QEMU on this host offers no VNC.")
            graphics = self.add_element(devices, "graphics", type_="vnc", autoport="yes" if settings.vnc_listen else None)
            if settings.vnc_listen:
                self.add_element(graphics, "listen", type_="address", address=settings.vnc_listen)
            else:
                self.add_element(graphics, "listen", type_="none")
        elif not model:
            return
        model = model or ("vga" if self.is_x86 else "virtio")
        if model not in self.machine.video_models:
            raise errors.BuildFailed(f"Image property hw_video_model: {model} is not offered on this host.")
        video = self.add_element(devices, "video")
        ram = self.properties.video_ram_kib
        if ram and model not in ("vga", "cirrus", "qxl", "bochs"):
            raise errors.BuildAborted(f"Image property hw_video_ram: video model {model} has no memory of its own.")
        self.add_element(video, "model", type_=model, vram=ram)

    def _add_rng(self, devices: ET.Element) -> None:
        if "virtio" not in self.machine.rng_models:
            if self.properties.rng_bytes:
                raise errors.BuildFailed("hw_rng: QEMU on this host offers no random numbers.")
            return
        rng = self.add_element(devices, "rng", model="virtio")
        if self.properties.rng_bytes:
            self.add_element(rng, "rate", bytes=self.properties.rng_bytes, period=self.properties.rng_period_ms)
        self.add_element(rng, "backend", self.request.settings.rng_device, model="random")

    def visible_uuid(self) -> None:
        """Show the guest another uuid than the domain's. Only QEMU's own option can: libvirt wants both equal."""
        guest = self.request.guest
        if not guest.server_uuid or guest.server_uuid == guest.uuid or not self.is_x86:
            return
        self.root.set("xmlns:qemu", "http://libvirt.org/schemas/domain/qemu/1.0")
        command = ET.SubElement(self.root, "qemu:commandline")
        for value in ("-smbios", f"type=1,uuid={guest.server_uuid}"):
            ET.SubElement(command, "qemu:arg", {"value": _xml_text(value)})
