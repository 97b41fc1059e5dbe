"""Options of the group ``libvirt`` that shape guests and the host's resources."""

from __future__ import annotations

from oslo_config import cfg

from objects.base import Object

GUEST = [
    cfg.StrOpt(
        "virt_type",
        default="kvm",
        choices=[("kvm", "guests run on the CPU's virtualization"), ("qemu", "QEMU emulates the CPU, which is slow: for tests")],
        help="How guests are run.",
    ),
]


class GuestSettings(Object, frozen=True, kw_only=True):
    """The options of ``GUEST``, with their names and defaults."""

    virt_type: str = "kvm"
    cpu_mode: str | None = None
    cpu_models: tuple[str, ...] = ()
    machine_type: str = ""
    disk_cache: str = "auto"
    disk_io: str = ""
    disk_discard: str = "unmap"
    tb_cache_mb: int = 32
    memory_balloon: bool = False
    rng_device: str = "/dev/urandom"
    vnc_listen: str = ""
    cpu_dedicated_set: str = ""
    cpu_shared_set: str = ""
