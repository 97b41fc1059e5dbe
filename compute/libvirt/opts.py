"""Options of the driver ``libvirt``: the group ``[libvirt]``."""

from __future__ import annotations

import re

import msgspec
from oslo_config import cfg

from compute.libvirt.guest_options import GUEST, GuestSettings, guest_settings
from objects import errors
from objects.base import Object
from service.config import Listing
from service.option_maker import OptionMaker

GROUP = "libvirt"


class LibvirtSettings(Object, frozen=True, kw_only=True):
    """``[libvirt]``: seconds, KiB. The defaults are those of the options."""

    connection_uri: str = "qemu:///system"
    open_timeout: float = 10.0
    guests: GuestSettings = GuestSettings()
    instances_path: str = "/var/lib/superconductor/instances"
    config_drive_path: str = "/run/superconductor/config-drives"
    cache_path: str = "/var/lib/superconductor/image-cache"
    cache_ttl: float = 86400.0
    networks: dict[str, str] = msgspec.field(default_factory=dict)
    dhcp_hosts_path: str = ""
    force_config_drive: bool = True
    shutdown_timeout: float = 60.0
    console_log_kb: int = 1024
    peer_instances_path: str = ""
    peer_uri: str = ""

    def parse_attachments(self) -> dict[str, Attachment]:
        """``networks``, parsed. Raises ``errors.Misconfigured``."""
        attachments_by_network = {}
        for name, text in self.networks.items():
            match = _NETWORK.fullmatch(text.strip())
            if match is None:
                raise errors.Misconfigured(
                    f"[libvirt] networks: {name}:{text[:80]} is none of {name}:bridge:NAME, {name}:network:NAME and {name}:user"
                )
            attachments_by_network[name] = Attachment(kind=match["kind"] or "user", name=match["name"] or "")
        return attachments_by_network


_option = OptionMaker(LibvirtSettings)


CONNECTION = [
    _option("connection_uri", "URI of this host's libvirt. It must run on this machine."),
    _option("open_timeout", "Seconds after which a libvirt that does not answer counts as down.", min=1.0),
    cfg.StrOpt(
        "virt_type",
        default="kvm",
        choices=[("kvm", "the processor's virtualization"), ("qemu", "emulation: slow, but works everywhere")],
        help="How guests run.",
    ),
]

PATHS = [
    _option("instances_path", "Folder of the guests' disks and consoles, one folder per guest. No other agent may use it."),
    _option(
        "config_drive_path",
        "Folder of the guests' config drives, which hold user data and passwords. It must be on a file system in memory.",
    ),
    _option("cache_path", "Folder of the images that guests of this host were made from. Agents on one machine may share it."),
    _option("cache_ttl", "Seconds after which an image in the cache is removed that no guest uses.", min=0.0),
]

GUESTS = [
    _option(
        "networks",
        "What the physical networks of the region are on this host: bridge:NAME, a bridge of the operator's; network:NAME, a "
        "network of libvirt; or user, an isolated network of QEMU. For instance physnet1:bridge:br-ex,lab:user",
    ),
    _option(
        "dhcp_hosts_path",
        "Folder in which the agent keeps a file for each port with its MAC and its addresses, for the option dhcp-hostsdir of "
        "a dnsmasq of the operator's. Empty: none.",
    ),
    _option(
        "force_config_drive",
        "Give every guest a config drive, as there is no metadata service. Otherwise only those have one whose users asked "
        "for it, or whose user data, password, key or addresses are on it.",
    ),
    _option(
        "shutdown_timeout",
        "Seconds that a guest has to stop by itself when it is stopped or rebooted. Then it is turned off.",
        min=0.0,
    ),
    _option(
        "console_log_kb",
        "Size in KiB beyond which the log of a guest's console is cut to its end. It is looked at with each audit.",
        min=16,
    ),
    _option(
        "peer_instances_path",
        "Folder of another host's guests, with {host} for its name, if this host can read it, as on a network file system. "
        "Disks of servers that are migrated, resized or evacuated are copied from there.",
    ),
    _option(
        "peer_uri",
        "URI of another host's libvirt, with {host} for its name, for instance qemu+tls://{host}/system. Disks of servers "
        "that are migrated or resized are copied over it if peer_instances_path is empty. Both empty: this host receives no such "
        "disks.",
    ),
]

OPTIONS = [*CONNECTION, *PATHS, *GUESTS]

_NETWORK = re.compile(r"(?:(?P<kind>bridge|network):(?P<name>[A-Za-z0-9._-]{1,64})|user)")


class Attachment(Object, frozen=True, kw_only=True):
    """What a physical network is on this host. ``kind``: bridge, network or user. ``name``: of the bridge or network."""

    kind: str
    name: str = ""


def list_opts() -> Listing:
    """For the generator of the sample configuration, and for loading a configuration."""
    return [(GROUP, [*OPTIONS, *GUEST])]


def read_settings(conf: cfg.ConfigOpts) -> LibvirtSettings:
    """Read the group. Raises ``errors.Misconfigured``."""
    values = {option.dest: conf[GROUP][option.dest] for option in OPTIONS if option.dest != "virt_type"}
    read = LibvirtSettings(guests=guest_settings(conf[GROUP]), **values)
    read.parse_attachments()
    for option, value in (("peer_uri", read.peer_uri), ("peer_instances_path", read.peer_instances_path)):
        if value and "{host}" not in value:
            raise errors.Misconfigured(f"[libvirt] {option} must contain {{host}}, which stands for the name of the other host")
    return read
