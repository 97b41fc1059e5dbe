"""What a flavor's extra specs and an image's properties ask of a guest. All of them are read here, and none is ignored.

``hw:NAME`` of the flavor and ``hw_NAME`` of the image are one property. The table in ``docs/libvirt.md`` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from compute.libvirt.capabilities import cpu_list
from objects import errors
from objects.base import Object
from objects.flavor import Flavor
from objects.text import one_line

DISK_BUSES = ("virtio", "scsi", "sata", "ide", "usb")
CDROM_BUSES = ("sata", "ide", "scsi", "usb")
SCSI_MODELS = {"virtio-scsi": "virtio-scsi", "lsilogic": "lsilogic", "lsisas1068": "lsisas1068", "lsisas1078": "lsisas1078"}
VIF_MODELS = ("virtio", "e1000", "e1000e", "rtl8139", "pcnet", "ne2k_pci")
VIDEO_MODELS = ("vga", "cirrus", "qxl", "virtio", "bochs", "none")
WATCHDOG_ACTIONS = ("disabled", "reset", "poweroff", "pause", "none")
PAGE_SIZES = ("small", "large", "any")
MAX_NUMA_NODES = 128
MAX_SERIAL_PORTS = 4
"""As many as a PC has."""

INFORMATIVE = frozenset(
    {
        "hw_auto_disk_config",
        "hw_pci_numa_affinity_policy",
        "hw:pci_numa_affinity_policy",
        "hw_rescue_bus",
        "hw_rescue_device",
        "os_admin_user",
        "os_distro",
        "os_hash_algo",
        "os_hash_value",
        "os_hidden",
        "os_require_quiesce",
        "os_skip_agent_inject_files_at_boot",
        "os_skip_agent_inject_ssh",
        "os_version",
    }
)
"""They say something about the image, or about a feature that no guest here has, and change nothing in the guest."""

SWITCHES_OFF = (
    "cpu_realtime",
    "ephemeral_encryption",
    "firmware_stateless",
    "ipxe_boot",
    "locked_memory",
    "mem_encryption",
    "virtio_packed_ring",
)
"""Features that no guest here has. A property that switches them off is met."""

_FAMILIES = ("hw_", "hw:", "os_", "os:", "hw_rng:", "hw_video:", "quota:", "pci_passthrough:", "accel:")
"""Extra specs and properties that bear on a guest begin so."""
_YES, _NO = (
    frozenset({"1", "true", "t", "yes", "y", "on"}),
    frozenset({"0", "false", "f", "no", "n", "off", "none", "disabled", ""}),
)
_SIZE = re.compile(r"(\d{1,9})(|k|kb|kib|m|mb|mib|g|gb|gib)", re.IGNORECASE)
_KIB = {"": 1, "k": 1, "m": 1024, "g": 1024**2}
_MACHINE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class NumaNode(Object, frozen=True, kw_only=True):
    """One NUMA node that the guest sees: its vCPUs and MiB."""

    vcpus: tuple[int, ...]
    memory_mb: int


class CpuTopology(Object, frozen=True, kw_only=True):
    """The sockets, cores per socket and threads per core that the guest sees."""

    sockets: int
    cores: int
    threads: int


class GuestLimits(Object, frozen=True, kw_only=True):
    """Limits of ``quota:*``, by libvirt's name of each."""

    cpu: dict[str, int] = msgspec.field(default_factory=dict)
    disk: dict[str, int] = msgspec.field(default_factory=dict)
    inbound: dict[str, int] = msgspec.field(default_factory=dict)
    outbound: dict[str, int] = msgspec.field(default_factory=dict)


class GuestProperties(Object, frozen=True, kw_only=True):
    """The properties of one guest. Empty text or None: not asked for.

    ``secure_boot``: ``required``, ``optional``, ``disabled``. ``page_size``: ``small``, ``large``, ``any`` or KiB as text.
    ``numa_nodes``: those that the guest sees; more than none ask for it. ``rng_bytes`` per ``rng_period_ms``. ``video_ram_kib``.
    """

    architecture: str = ""
    machine_type: str = ""
    firmware: str = ""
    secure_boot: str = ""
    windows: bool = False
    disk_bus: str = ""
    cdrom_bus: str = ""
    scsi_model: str = ""
    vif_model: str = "virtio"
    vif_multiqueue: bool = False
    rng: bool = True
    rng_bytes: int | None = None
    rng_period_ms: int | None = None
    watchdog: str = ""
    video_model: str = ""
    video_ram_kib: int | None = None
    tablet_bus: str = ""
    guest_agent: bool = False
    boot_menu: bool | None = None
    serial_ports: int = 1
    hpet: bool | None = None
    pmu: bool | None = None
    hide_hypervisor: bool = False
    topology: CpuTopology | None = None
    dedicated_cpus: bool = False
    thread_policy: str = "prefer"
    emulator_threads: str = ""
    page_size: str = ""
    numa_nodes: tuple[NumaNode, ...] = ()
    quota: GuestLimits = GuestLimits()


def read_properties(flavor: Flavor, image: Mapping[str, str], vcpus: int, memory_mb: int) -> GuestProperties:
    """The properties of a guest of this flavor and image, with this many vCPUs and MiB.

    Raises ``errors.BuildAborted`` for a value that is invalid, for two that contradict each other, and for what no host offers.
    """
    reader = _Reader(flavor.extra_specs, image)
    properties = GuestProperties(
        architecture=reader.text_value("architecture") or image.get("architecture", "").lower(),
        machine_type=_machine_type(reader),
        firmware=reader.choice_value("firmware_type", ("bios", "uefi")),
        secure_boot=reader.choice_value("secure_boot", ("required", "optional", "disabled"), scope="os"),
        windows=reader.text_value("type", scope="os") == "windows",
        disk_bus=reader.choice_value("disk_bus", DISK_BUSES),
        cdrom_bus=reader.choice_value("cdrom_bus", CDROM_BUSES),
        scsi_model=SCSI_MODELS.get(reader.choice_value("scsi_model", tuple(SCSI_MODELS)), ""),
        vif_model=reader.choice_value("vif_model", VIF_MODELS) or "virtio",
        vif_multiqueue=bool(reader.flag_value("vif_multiqueue_enabled")),
        rng=reader.choice_value("rng_model", ("virtio", "none")) != "none"
        and reader.flag_value("allowed", scope="hw_rng") is not False,
        rng_bytes=reader.number_value("rate_bytes", scope="hw_rng"),
        rng_period_ms=reader.number_value("rate_period", scope="hw_rng"),
        watchdog=_watchdog_action(reader),
        video_model=reader.choice_value("video_model", VIDEO_MODELS),
        video_ram_kib=_video_ram(reader),
        tablet_bus=_tablet_bus(reader),
        guest_agent=bool(reader.flag_value("qemu_guest_agent")),
        boot_menu=reader.flag_value("boot_menu"),
        serial_ports=reader.number_value("serial_port_count", most=MAX_SERIAL_PORTS) or 1,
        hpet=reader.flag_value("time_hpet"),
        pmu=reader.flag_value("pmu"),
        hide_hypervisor=_hide_hypervisor(reader, flavor.extra_specs, image),
        topology=_choose_topology(reader, vcpus),
        dedicated_cpus=reader.choice_value("cpu_policy", ("dedicated", "shared"), granted=("dedicated",)) == "dedicated",
        thread_policy=reader.choice_value("cpu_thread_policy", ("prefer", "isolate", "require"), granted=("isolate",)) or "prefer",
        emulator_threads=reader.choice_value("emulator_threads_policy", ("share", "isolate"), granted=("isolate",)),
        page_size=_page_size(reader),
        numa_nodes=_numa_nodes(reader, vcpus, memory_mb),
        quota=_read_limits(reader),
    )
    if reader.choice_value("vm_mode", ("hvm",)) == "" and image.get("vm_mode", "hvm").lower() not in ("hvm", ""):
        _abort_build("Image property vm_mode: only hvm is offered.")
    _check_cpus(properties)
    for name in ("kernel_id", "ramdisk_id"):
        if image.get(name):
            _abort_build(f"Image property {name}: guests boot from their disk only.")
    reader.check_rest()
    return properties


class _Reader:
    """The extra specs and properties that nobody has read yet."""

    def __init__(self, specs: Mapping[str, str], image: Mapping[str, str]) -> None:
        self._specs = {key: value for key, value in specs.items() if key.startswith(_FAMILIES)}
        self._image = {key: value for key, value in image.items() if key.startswith(_FAMILIES)}

    def take_both(self, name: str, scope: str = "hw") -> tuple[str | None, str | None]:
        """The values of flavor and image. They count as read."""
        return self._specs.pop(f"{scope}:{name}", None), self._image.pop(f"{scope}_{name}", None)

    def text_value(self, name: str, scope: str = "hw") -> str:
        """The value in small letters; empty if there is none. Flavor and image must not contradict each other."""
        flavor, image = (None if value is None else value.strip().lower() for value in self.take_both(name, scope))
        if flavor and image and flavor != image:
            _abort_build(f"{scope}:{name} of the flavor is {flavor[:40]!r}, but {scope}_{name} of the image is {image[:40]!r}.")
        return flavor or image or ""

    def choice_value(self, name: str, choices: tuple[str, ...], scope: str = "hw", granted: tuple[str, ...] = ()) -> str:
        """One of ``choices``, or empty. The values ``granted`` take more of a host, so the flavor must have them."""
        in_flavor = f"{scope}:{name}" in self._specs
        value = self.text_value(name, scope)
        if value and value not in choices:
            _abort_build(f"{scope}_{name}: {value[:40]!r} is none of {', '.join(choices)}.")
        if value in granted and not in_flavor:
            _abort_build(f"Image property {scope}_{name}: {value} needs a flavor with {scope}:{name} = {value}.")
        return value

    def flag_value(self, name: str, scope: str = "hw") -> bool | None:
        """True, false, or None if nothing is said."""
        value = self.text_value(name, scope)
        if value and value not in _YES | _NO:
            _abort_build(f"{scope}_{name}: {value[:40]!r} is neither true nor false.")
        return value in _YES if value else None

    def number_value(self, name: str, scope: str = "hw", least: int = 1, most: int = 2**31 - 1) -> int | None:
        """A whole number, or None."""
        value = self.text_value(name, scope)
        return _parse_number(f"{scope}_{name}", value, least, most) if value else None

    def numbered_values(self, name: str) -> dict[int, str]:
        """The values of ``hw:NAME.0`` and so on."""
        value_by_number: dict[int, str] = {}
        for keys, prefix in ((self._specs, "hw:"), (self._image, "hw_")):
            for key in [key for key in keys if key.startswith(f"{prefix}{name}.")]:
                index = _parse_number(key, key.rpartition(".")[2], 0, MAX_NUMA_NODES - 1)
                value = keys.pop(key)
                if value_by_number.setdefault(index, value) != value:
                    _abort_build(f"{key}: flavor and image contradict each other.")
        return value_by_number

    def check_rest(self) -> None:
        """Raise BuildAborted for a property that nobody has read and that is not only informative."""
        for name in SWITCHES_OFF:
            if self.flag_value(name):
                _abort_build(f"The driver libvirt does not offer hw_{name}.")
        for key in (*self._specs, *self._image):
            if key not in INFORMATIVE and not key.startswith("os_glance_"):
                _abort_build(f"The driver libvirt does not offer {key[:80]}.")


def _abort_build(text: str) -> NoReturn:
    raise errors.BuildAborted(one_line(text, 500))


def _parse_number(name: str, text: str, least: int, most: int) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= most:
        _abort_build(f"{name}: {text[:40]!r} is not a whole number from {least} to {most}.")
    return value


def _machine_type(reader: _Reader) -> str:
    value = reader.text_value("machine_type")
    if value and not _MACHINE.fullmatch(value):
        _abort_build(f"hw_machine_type: {value[:40]!r} is not the name of a machine type.")
    return value


def _watchdog_action(reader: _Reader) -> str:
    action = reader.choice_value("watchdog_action", WATCHDOG_ACTIONS)
    return "" if action == "disabled" else action


def _video_ram(reader: _Reader) -> int | None:
    """``hw_video_ram`` in KiB, which the flavor limits by ``hw_video:ram_max_mb``."""
    requested = reader.number_value("video_ram", least=0, most=2**20)
    limit = reader.number_value("ram_max_mb", scope="hw_video", least=0, most=2**20) or 0
    if requested and requested > limit:
        _abort_build(f"Image property hw_video_ram: {requested} is more MiB than hw_video:ram_max_mb of the flavor, {limit}.")
    return requested * 1024 if requested else None


def _tablet_bus(reader: _Reader) -> str:
    bus = reader.choice_value("input_bus", ("usb", "virtio"))
    pointer = reader.choice_value("pointer_model", ("usbtablet",))
    return bus or ("usb" if pointer else "")


def _hide_hypervisor(reader: _Reader, specs: Mapping[str, str], image: Mapping[str, str]) -> bool:
    values = [specs.get("hide_hypervisor_id", ""), image.get("img_hide_hypervisor_id", "")]
    return bool(reader.flag_value("hide_hypervisor_id")) or any(value.strip().lower() in _YES for value in values)


def _choose_topology(reader: _Reader, vcpus: int) -> CpuTopology | None:
    """The topology with the most sockets, then the most cores, that fits. The image's wishes replace the flavor's, and the lower
    maximum counts.
    """
    wishes, limits = [], []
    for name in ("sockets", "cores", "threads"):
        flavor, image = reader.take_both(f"cpu_{name}")
        value = image or flavor
        wishes.append(_parse_number(f"hw_cpu_{name}", value, 1, 2**16) if value else None)
        maxima = [
            _parse_number(f"hw_cpu_max_{name}", maximum, 1, 2**16) for maximum in reader.take_both(f"cpu_max_{name}") if maximum
        ]
        limits.append(min(maxima, default=0))
    if not any(wishes) and not any(limits):
        return None
    most = [limit or vcpus for limit in limits]
    if not limits[2] and not wishes[2]:
        most[2] = 1
    for sockets in range(vcpus, 0, -1):
        for cores in range(vcpus // sockets, 0, -1):
            threads = vcpus // (sockets * cores)
            topology = (sockets, cores, threads)
            if sockets * cores * threads == vcpus and all(
                one <= limit and wish in (None, one) for one, limit, wish in zip(topology, most, wishes, strict=True)
            ):
                return CpuTopology(sockets=sockets, cores=cores, threads=threads)
    _abort_build(f"hw_cpu_sockets, hw_cpu_cores, hw_cpu_threads and their maxima allow no topology of {vcpus} vCPUs.")


def _page_size(reader: _Reader) -> str:
    """The image may choose a size if the flavor leaves it open."""
    flavor, image = (None if value is None else value.strip().lower() for value in reader.take_both("mem_page_size"))
    sizes = [
        _parse_page_size("hw:mem_page_size", flavor) if flavor else "",
        _parse_page_size("hw_mem_page_size", image) if image else "",
    ]
    if sizes[1] and sizes[1] not in ("small", sizes[0]) and sizes[0] not in ("large", "any"):
        _abort_build(f"Image property hw_mem_page_size: {image} needs a flavor with hw:mem_page_size = large or any.")
    if sizes[1] == "small" and sizes[0] not in ("", "small", "any"):
        _abort_build(f"Image property hw_mem_page_size: small, but hw:mem_page_size of the flavor is {flavor}.")
    return sizes[1] or sizes[0]


def _parse_page_size(name: str, value: str) -> str:
    """A page size in KiB as text, or one of ``PAGE_SIZES``."""
    if value in PAGE_SIZES:
        return value
    match = _SIZE.fullmatch(value)
    if match is None or not int(match[1]):
        _abort_build(f"{name}: {value[:40]!r} is none of small, large, any, and no size such as 2MB or 1GB.")
    return str(int(match[1]) * _KIB[match[2][:1].lower()])


def _numa_nodes(reader: _Reader, vcpus: int, memory_mb: int) -> tuple[NumaNode, ...]:
    count = reader.number_value("numa_nodes", most=MAX_NUMA_NODES)
    cpus, memory = reader.numbered_values("numa_cpus"), reader.numbered_values("numa_mem")
    if count is None:
        if cpus or memory:
            _abort_build("hw_numa_cpus and hw_numa_mem need hw_numa_nodes.")
        return ()
    for name, texts in (("hw_numa_cpus", cpus), ("hw_numa_mem", memory)):
        if texts and sorted(texts) != list(range(count)):
            _abort_build(f"{name}: give it for each of the {count} nodes, from {name}.0 to {name}.{count - 1}, or for none.")
    if (not cpus and vcpus % count) or (not memory and memory_mb % count):
        _abort_build(f"hw_numa_nodes: {vcpus} vCPUs and {memory_mb} MiB cannot be divided among {count} nodes; say how.")
    share = vcpus // count
    sets = [_parse_vcpus(f"hw_numa_cpus.{i}", cpus[i]) if cpus else tuple(range(i * share, (i + 1) * share)) for i in range(count)]
    sizes = [
        _parse_number(f"hw_numa_mem.{i}", memory[i].strip(), 1, 2**31 - 1) if memory else memory_mb // count for i in range(count)
    ]
    if sorted(cpu for cpu_set in sets for cpu in cpu_set) != list(range(vcpus)):
        _abort_build(f"hw_numa_cpus: each of the vCPUs 0 to {vcpus - 1} must be in one node.")
    if sum(sizes) != memory_mb:
        _abort_build(f"hw_numa_mem: the nodes have {sum(sizes)} MiB, the flavor has {memory_mb}.")
    return tuple(NumaNode(vcpus=cpu_set, memory_mb=size) for cpu_set, size in zip(sets, sizes, strict=True))


def _parse_vcpus(name: str, value: str) -> tuple[int, ...]:
    try:
        return cpu_list(value)
    except ValueError:
        _abort_build(f"{name}: {value[:40]!r} is not a set of CPUs such as 0-3,6.")


def _check_cpus(properties: GuestProperties) -> None:
    if not properties.dedicated_cpus and properties.thread_policy != "prefer":
        _abort_build(f"hw_cpu_thread_policy: {properties.thread_policy} needs hw_cpu_policy = dedicated.")
    if not properties.dedicated_cpus and properties.emulator_threads == "isolate":
        _abort_build("hw_emulator_threads_policy: isolate needs hw_cpu_policy = dedicated.")


_QUOTAS = {
    "cpu_shares": ("cpu", "shares"),
    "cpu_period": ("cpu", "period"),
    "cpu_quota": ("cpu", "quota"),
    "disk_read_bytes_sec": ("disk", "read_bytes_sec"),
    "disk_read_iops_sec": ("disk", "read_iops_sec"),
    "disk_write_bytes_sec": ("disk", "write_bytes_sec"),
    "disk_write_iops_sec": ("disk", "write_iops_sec"),
    "disk_total_bytes_sec": ("disk", "total_bytes_sec"),
    "disk_total_iops_sec": ("disk", "total_iops_sec"),
    "vif_inbound_average": ("inbound", "average"),
    "vif_inbound_peak": ("inbound", "peak"),
    "vif_inbound_burst": ("inbound", "burst"),
    "vif_outbound_average": ("outbound", "average"),
    "vif_outbound_peak": ("outbound", "peak"),
    "vif_outbound_burst": ("outbound", "burst"),
}
"""By extra spec after ``quota:``, the part of the guest that is limited, and libvirt's name."""


def _read_limits(reader: _Reader) -> GuestLimits:
    limits: dict[str, dict[str, int]] = {"cpu": {}, "disk": {}, "inbound": {}, "outbound": {}}
    for name, (part, key) in _QUOTAS.items():
        value = reader.number_value(name, scope="quota", most=2**63 - 1)
        if value is not None:
            limits[part][key] = value
    for part in ("inbound", "outbound"):
        if limits[part] and "average" not in limits[part]:
            _abort_build(f"quota:vif_{part}_peak and quota:vif_{part}_burst need quota:vif_{part}_average.")
    return GuestLimits(**limits)
