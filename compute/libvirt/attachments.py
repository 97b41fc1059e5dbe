"""What the ports of a guest are attached to on this host, and what the host's DHCP servers are told of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from compute.libvirt import binding
from compute.libvirt.connection import LibvirtConnection
from compute.libvirt.opts import Attachment
from objects import errors, text
from objects.port import Port

LOG = logging.getLogger(__name__)

libvirt = binding.load_libvirt()

_BOTH = libvirt.VIR_NETWORK_UPDATE_AFFECT_LIVE | libvirt.VIR_NETWORK_UPDATE_AFFECT_CONFIG


class Attachments:
    """The physical networks of this host."""

    def __init__(self, connection: LibvirtConnection, attachments: Mapping[str, Attachment], dhcp_hosts_path: str) -> None:
        self._connection = connection
        self._attachments = attachments
        self._dhcp_hosts = Path(dhcp_hosts_path) if dhcp_hosts_path else None

    def attachment_of(self, port: Port) -> Attachment:
        """What this port is attached to. Raises ``errors.BuildFailed`` if the host does not have its network."""
        attachment = self._attachments.get(port.physical_network)
        if attachment is None:
            raise errors.BuildFailed(
                f"This host is not attached to the physical network '{port.physical_network}' of network '{port.network}': see "
                "[libvirt] networks."
            )
        if attachment.kind == "bridge" and not (Path("/sys/class/net") / attachment.name / "bridge").is_dir():
            raise errors.BuildFailed(
                f"The bridge '{attachment.name}' of physical network '{port.physical_network}' does not exist."
            )
        return attachment

    def announce_addresses(self, ports: tuple[Port, ...], hostname: str) -> None:
        """Tell the DHCP servers the planned addresses. Raises ``errors.BuildFailed``."""
        self.forget_addresses(ports)
        for port in ports:
            attachment = self._attachments.get(port.physical_network)
            if attachment is not None and attachment.kind == "network":
                self._update_network(attachment.name, libvirt.VIR_NETWORK_UPDATE_COMMAND_ADD_LAST, port)
            if self._dhcp_hosts is not None and port.addresses:
                self._write(self._dhcp_hosts, port, hostname)

    def forget_addresses(self, ports: tuple[Port, ...]) -> None:
        """Take back what was announced. What is not there is no error."""
        for port in ports:
            attachment = self._attachments.get(port.physical_network)
            if attachment is not None and attachment.kind == "network":
                try:
                    self._update_network(attachment.name, libvirt.VIR_NETWORK_UPDATE_COMMAND_DELETE, port)
                except errors.BuildFailed as error:
                    LOG.debug("Port %s: %s", port.mac, error)
            if self._dhcp_hosts is not None:
                _file_of(self._dhcp_hosts, port).unlink(missing_ok=True)

    def _write(self, folder: Path, port: Port, hostname: str) -> None:
        """dnsmasq reads a file as soon as it is there, so it must be complete then."""
        shown = [f"[{address.address}]" if address.ip_version == 6 else address.address for address in port.addresses]
        entry = ",".join([port.mac, *shown, hostname])
        if not entry.isprintable():  # a second line would be an entry of another guest
            raise errors.BuildFailed(f"The MAC, an address or the hostname of a port is no text of one line: {entry!r:.200}")
        file = _file_of(folder, port)
        new = file.with_name(f".{file.name}.new")
        try:
            new.write_text(f"{entry}\n")
            os.replace(new, file)
        except OSError as error:
            raise errors.BuildFailed(f"[libvirt] dhcp_hosts_path: {folder} cannot be used: {error.strerror}.") from error

    def _update_network(self, name: str, command: int, port: Port) -> None:
        for host in _host_entries(port):
            try:
                network = self._connection.get().networkLookupByName(name)
                network.update(command, libvirt.VIR_NETWORK_SECTION_IP_DHCP_HOST, -1, host, _BOTH)
            except libvirt.libvirtError as error:
                doing = f"give the network '{name}' the address of {port.mac}"
                raise self._connection.translate_error(error, errors.BuildFailed, doing) from error


def _host_entries(port: Port) -> Iterator[str]:
    """The DHCP entry of the port's IPv4 address. libvirt has none for IPv6 addresses by MAC."""
    for address in port.addresses:
        if address.ip_version == 4:
            yield ElementTree.tostring(ElementTree.Element("host", {"mac": port.mac, "ip": address.address}), encoding="unicode")


def _file_of(folder: Path, port: Port) -> Path:
    return folder / text.file_name(port.mac.replace(":", ""))
