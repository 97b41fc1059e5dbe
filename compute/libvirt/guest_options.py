"""Options of the group ``libvirt`` that shape guests and divide the host's CPUs."""

from __future__ import annotations

from oslo_config import cfg

from compute.libvirt.capabilities import cpu_list
from objects import errors
from objects.base import Object
from service.option_maker import OptionMaker

OVERHEAD_MB = {"kvm": 64, "qemu": 100}
"""MiB that QEMU takes for each guest beside the guest's own memory, by virtualization type; see docs/libvirt.md."""


class GuestSettings(Object, frozen=True, kw_only=True):
    """The options of ``GUEST`` and ``virt_type``, with the defaults of the options."""

    virt_type: str = "kvm"
    cpu_mode: str | None = None
    cpu_models: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()
    machine_type: str = ""
    disk_cache: str = "auto"
    disk_io: str = ""
    disk_discard: str = "unmap"
    tb_cache_mb: int = 32
    memory_balloon: bool = False
    rng_device: str = "/dev/urandom"
    vnc_enabled: bool = False
    vnc_listen: str = ""
    guest_overhead_mb: int | None = None
    cpu_dedicated_set: str = ""
    cpu_shared_set: str = ""
    report_numa_nodes: bool = False

    def split_cpus(self, online: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dedicated and the shared CPUs among those of the host. Raises ``errors.Misconfigured``."""
        dedicated = _parse_cpus("cpu_dedicated_set", self.cpu_dedicated_set, online)
        shared = _parse_cpus("cpu_shared_set", self.cpu_shared_set, online)
        if both := sorted({*dedicated} & {*shared}):
            raise errors.Misconfigured(f"[libvirt] cpu_shared_set and cpu_dedicated_set must not share a CPU; both have {both[0]}.")
        return dedicated, shared or tuple(cpu for cpu in online if cpu not in dedicated)

    def check_options(self) -> None:
        """Raise ``errors.Misconfigured`` for values or combinations that cannot work on any host."""
        for option in ("cpu_dedicated_set", "cpu_shared_set"):
            _parse_cpus(option, getattr(self, option), None)
        if self.cpu_mode == "custom" and not self.cpu_models:
            raise errors.Misconfigured("[libvirt] cpu_models: name at least one model, as cpu_mode is custom.")
        if self.cpu_models and self.cpu_mode != "custom":
            raise errors.Misconfigured("[libvirt] cpu_models: set cpu_mode = custom, or name no models.")
        if self.cpu_mode == "host-passthrough" and self.virt_type != "kvm":
            raise errors.Misconfigured("[libvirt] cpu_mode: host-passthrough needs virt_type = kvm.")
        if self.cpu_features and self.effective_cpu_mode == "none":
            raise errors.Misconfigured("[libvirt] cpu_features: set cpu_mode to another value than none.")
        if self.disk_io == "native" and self.disk_cache not in ("none", "directsync"):
            raise errors.Misconfigured("[libvirt] disk_io: native needs disk_cache = none or directsync.")

    @property
    def effective_overhead_mb(self) -> int:
        """``guest_overhead_mb``, or the default of the virtualization type. Emulation keeps the translated code too."""
        return OVERHEAD_MB[self.virt_type] if self.guest_overhead_mb is None else self.guest_overhead_mb

    @property
    def effective_cpu_mode(self) -> str:
        """``cpu_mode``, or the default of the virtualization type."""
        return self.cpu_mode or ("host-model" if self.virt_type == "kvm" else "none")


_option = OptionMaker(GuestSettings)


GUEST = [
    _option(
        "cpu_mode",
        "CPU of guests.",
        choices=[
            ("host-model", "the named model closest to the host's CPU; guests can migrate to hosts that have as much"),
            ("host-passthrough", "the host's CPU; guests can migrate to equal hosts only"),
            ("maximum", "all that the hypervisor can offer"),
            ("custom", "the first of cpu_models that the host can run"),
            ("none", "QEMU's default"),
        ],
        sample_default="<host-model with kvm, none with qemu>",
    ),
    _option("cpu_models", "Names of CPU models, the best first, for cpu_mode = custom."),
    _option(
        "cpu_features", "CPU features that guests get (+NAME or NAME) or do not get (-NAME) in addition. Not with cpu_mode = none."
    ),
    _option(
        "machine_type",
        "Machine type of guests whose image has no property hw_machine_type, for instance q35. Empty: libvirt's default.",
    ),
    _option(
        "disk_cache",
        "Cache mode of disks.",
        choices=[
            ("auto", "none if the disks' file system can bypass the host's page cache, otherwise writeback"),
            ("none", "past the host's page cache"),
            ("writeback", "through the host's page cache; guests that flush lose nothing"),
            ("writethrough", "each write waits for the disk"),
            ("directsync", "past the page cache, and each write waits for the disk"),
            ("unsafe", "ignores flushes: a power cut destroys disks"),
        ],
    ),
    _option(
        "disk_io",
        "How QEMU writes to disks. native needs the cache mode none or directsync.",
        choices=[
            ("", "QEMU's default"),
            ("native", "Linux's asynchronous input and output"),
            ("threads", "a pool of threads"),
            ("io_uring", "io_uring, which the kernel must allow"),
        ],
    ),
    _option(
        "disk_discard",
        "What happens when a guest discards blocks of a disk.",
        choices=[("unmap", "the host gets the space back"), ("ignore", "nothing")],
    ),
    _option(
        "tb_cache_mb",
        "MiB per guest that QEMU may use for translated code, with virt_type = qemu and libvirt 8.0. 0: QEMU's default.",
        min=0,
    ),
    _option("memory_balloon", "Give guests a memory balloon, which reports how much memory they use."),
    _option("rng_device", "Where the random numbers of guests come from, on the host."),
    _option(
        "vnc_enabled", "Give each new guest a screen over VNC for remote consoles. It listens nowhere: only libvirt connects to it."
    ),
    _option(
        "vnc_listen",
        "Address at which each guest has a screen over VNC too. Whoever can reach it can use all of them: there is no "
        "password. Empty: it does not listen, and without vnc_enabled there is none.",
    ),
    _option(
        "guest_overhead_mb",
        "Memory in MiB that QEMU takes for each guest beside the guest's own. For each guest the host offers that much less.",
        kind=cfg.IntOpt,
        min=0,
        sample_default="<64 with kvm, 100 with qemu>",
    ),
    _option(
        "cpu_dedicated_set",
        "CPUs of the host for guests with hw:cpu_policy = dedicated, for instance 4-15. The host offers them as the resource "
        "class CUSTOM_PCPU. Empty: none.",
    ),
    _option("cpu_shared_set", "CPUs of the host for all other guests. Empty: those that are not in cpu_dedicated_set."),
    _option(
        "report_numa_nodes",
        "Report the host's NUMA nodes. Each new guest is then tied to one of them, or to as many as its flavor asks for with "
        "hw:numa_nodes. Guests that run already count on every node.",
    ),
]


def guest_settings(values: cfg.ConfigOpts.GroupAttr) -> GuestSettings:
    """The settings of the group ``libvirt``, which has these options and ``virt_type``. Raises ``errors.Misconfigured``."""
    read = {option.dest: values[option.dest] for option in GUEST}
    lists = {name: tuple(value) for name, value in read.items() if isinstance(value, list)}
    settings = GuestSettings(virt_type=values.virt_type, **(read | lists))
    settings.check_options()
    return settings


def _parse_cpus(option: str, text: str, online: tuple[int, ...] | None) -> tuple[int, ...]:
    try:
        cpus = cpu_list(text)
    except ValueError:
        raise errors.Misconfigured(f"[libvirt] {option}: {text[:80]!r} is not a set of CPUs such as 0-3,6.") from None
    if online is not None and (absent := [cpu for cpu in cpus if cpu not in online]):
        raise errors.Misconfigured(f"[libvirt] {option}: this host has no CPU {absent[0]} that is online.")
    return cpus
