"""The config drive: a small disc from which cloud-init in a guest reads its metadata, keys, user data and network.

Its format is OpenStack's, label ``config-2``: https://docs.openstack.org/nova/latest/user/metadata.html
"""

from __future__ import annotations

import base64
import binascii
import io
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from compute.driver import Guest, GuestSpec
from objects import errors
from objects.port import FixedAddress, Port
from objects.spec import BootSecrets
from service.private_files import FILE_MODE

LABEL = "config-2"
CONTENT = "content"
"""The folder of injected files."""
VERSIONS = ("2018-08-27", "latest")
"""The folders with equal files. cloud-init takes the newest dated one that it knows."""

DRIVE_LIMIT_BYTES = 1024**2
"""The largest sum of the files; the API's limits keep it below."""
RANDOM_SEED_BYTES = 512


def config_drive_files(
    guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, *, launch_index: int = 0, remade: bool = False
) -> dict[str, bytes]:
    """The files of a guest's config drive, by name; those of the folder ``CONTENT`` by their path.

    ``launch_index``: the place of the server among those of its request, from 0. ``remade``: the drive was made once more after
    its secrets were forgotten; ``meta_data.json`` then says so under ``superconductor``.

    Without ports there is no ``network_data.json``, and cloud-init asks for an address by DHCP.

    Raises errors.BuildAborted if user data or an injected file is not base64 text, or the files are too large.
    """
    secrets = secrets or BootSecrets()
    files = {
        "meta_data.json": _encode_json(_make_metadata(guest, spec, secrets, launch_index, remade)),
        "vendor_data.json": _encode_json({}),
    }
    if secrets.user_data:
        files["user_data"] = _decode_base64(secrets.user_data, "user data")
    files |= {_content_path(number): _decode_base64(file.contents, "personality") for number, file in enumerate(secrets.files)}
    if spec.ports:
        files["network_data.json"] = _encode_json(network_data(spec.ports))
    size = sum(map(len, files.values()))
    if size > DRIVE_LIMIT_BYTES:
        raise errors.BuildAborted(
            f"The config drive would have {size} bytes of {DRIVE_LIMIT_BYTES}: give less user data or metadata."
        )
    return files


def rebuilt_drive_files(
    path: Path, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, *, removes_user_data: bool, had_drive: bool
) -> dict[str, bytes]:
    """The files of the next config drive of a guest that is rebuilt. Its old one at ``path`` tells what is stored nowhere else.

    From the old drive come the tenant's metadata, and the user data unless the ``secrets`` have new one or ``removes_user_data``.
    ``had_drive``: the guest had a drive. If the file is missing, a restart of the host has removed it: ``meta_data.json`` then says
    under ``superconductor`` that the user data is lost.

    Raises errors.BuildFailed if the old drive cannot be read, and what ``config_drive_files`` does.
    """
    secrets = secrets or BootSecrets()
    old = read_config_drive(path) if path.exists() else {}
    metadata: dict[str, Any] = msgspec.json.decode(old["meta_data.json"]) if old else {}
    keeps = not removes_user_data and secrets.user_data is None
    if keeps and "user_data" in old:
        secrets = msgspec.structs.replace(secrets, user_data=base64.b64encode(old["user_data"]).decode())
    lost = "superconductor" in metadata if old else had_drive
    spec = msgspec.structs.replace(spec, metadata=metadata.get("meta", {}))
    return config_drive_files(guest, spec, secrets, launch_index=metadata.get("launch_index", 0), remade=keeps and lost)


def read_config_drive(path: Path) -> dict[str, bytes]:
    """The files of a disc image that ``write_config_drive`` has written, by name, without injected ones.

    Raises errors.BuildFailed if it cannot be read.
    """
    import pycdlib  # here: as in ``_make_image``
    from pycdlib.pycdlibexception import PyCdlibException

    folder = f"/openstack/{VERSIONS[0]}"
    files: dict[str, bytes] = {}
    disc = pycdlib.PyCdlib()
    try:
        disc.open(str(path))
        for _, _, names in disc.walk(joliet_path=folder):
            for name in names:
                content = io.BytesIO()
                disc.get_file_from_iso_fp(content, joliet_path=f"{folder}/{name}")
                files[name] = content.getvalue()
        disc.close()
    except (PyCdlibException, OSError) as error:
        raise errors.BuildFailed(f"The config drive {path} cannot be read: {error}") from error
    return files


def write_config_drive(path: Path, files: Mapping[str, bytes]) -> None:
    """Write these files to a disc image at ``path``, replacing it as a whole. Only its owner may read it.

    ``path`` should be on a file system in memory, because the files hold secrets. Not for two threads with the same ``path``.
    Raises errors.BuildFailed if it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            with os.fdopen(descriptor, "wb") as image:
                image.write(_make_image(files))
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise errors.BuildFailed(f"The config drive cannot be written to {path}: {error.strerror or error}") from error


def network_data(ports: Sequence[Port]) -> dict[str, Any]:
    """The content of ``network_data.json``: a link of each port, a network of each address, and all name servers once."""
    links: list[dict[str, Any]] = []
    networks: list[dict[str, Any]] = []
    services: dict[str, dict[str, str]] = {}
    for number, port in enumerate(ports):
        link = f"nic{number}"
        links.append({"id": link, "type": "phy", "ethernet_mac_address": port.mac, "mtu": port.mtu})
        for address in port.addresses:
            networks.append(
                {"id": f"network{len(networks)}", "link": link, "network_id": port.network_id, **_static_network(address)}
            )
            services |= {server: {"type": "dns", "address": server} for server in address.dns}
        if not port.addresses:
            networks.append({"id": f"network{len(networks)}", "link": link, "network_id": port.network_id, "type": "ipv4_dhcp"})
    return {"links": links, "networks": networks, "services": list(services.values())}


def _static_network(address: FixedAddress) -> dict[str, Any]:
    subnet = ipaddress.ip_interface(f"{address.address}/{address.prefix}")
    anywhere = str(type(subnet.ip)(0))  # 0.0.0.0 or ::
    route = {"network": anywhere, "netmask": anywhere, "gateway": address.gateway}
    return {
        "type": f"ipv{address.ip_version}",
        "ip_address": address.address,
        "netmask": str(subnet.netmask),
        "routes": [route] if address.gateway else [],
        "services": [{"type": "dns", "address": server} for server in address.dns],
    }


def _make_metadata(guest: Guest, spec: GuestSpec, secrets: BootSecrets, launch_index: int, remade: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "uuid": guest.server_uuid or guest.uuid,
        "name": guest.name,
        "hostname": spec.hostname,
        "launch_index": launch_index,
        "availability_zone": spec.availability_zone,
        "project_id": spec.project_id,
        "meta": spec.metadata,
        "devices": [_nic_device(port.mac, port.tag) for port in spec.ports if port.tag],
        "random_seed": base64.b64encode(os.urandom(RANDOM_SEED_BYTES)).decode(),
    }
    if spec.key_name and spec.public_key:
        metadata["public_keys"] = {spec.key_name: spec.public_key}
        kind = "x509" if spec.public_key.startswith("-----BEGIN CERTIFICATE") else "ssh"
        metadata["keys"] = [{"name": spec.key_name, "type": kind, "data": spec.public_key}]
    if secrets.files:
        metadata["files"] = [{"path": file.path, "content_path": f"/{_content_path(n)}"} for n, file in enumerate(secrets.files)]
    if secrets.admin_pass:
        metadata["admin_pass"] = secrets.admin_pass
    if remade:
        metadata["superconductor"] = {"remade_without_secrets": True}
    return metadata


def _nic_device(mac: str, tag: str) -> dict[str, Any]:
    return {"type": "nic", "bus": "none", "address": "none", "mac": mac, "tags": [tag]}


def _content_path(number: int) -> str:
    """The name of an injected file in the config drive, outside of the folders of versions."""
    return f"{CONTENT}/{number:04}"


def _decode_base64(text: str, label: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise errors.BuildAborted(f"The {label} is not base64 text.") from error


def _encode_json(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(content)


def _make_image(files: Mapping[str, bytes]) -> bytes:
    """An ISO 9660 image with Rock Ridge and Joliet names. The folders of all versions share the bytes of their files."""
    import pycdlib  # here: slow to import, and part of an extra

    disc = pycdlib.PyCdlib()
    disc.new(interchange_level=3, rock_ridge="1.09", joliet=3, vol_ident=LABEL)
    disc.add_directory("/OPENSTACK", rr_name="openstack", joliet_path="/openstack")
    for version in VERSIONS:
        disc.add_directory(f"/OPENSTACK/{_plain_name(version)}", rr_name=version, joliet_path=f"/openstack/{version}")
    first, *others = VERSIONS
    injected = {name: content for name, content in files.items() if name.startswith(f"{CONTENT}/")}
    if injected:
        disc.add_directory(f"/OPENSTACK/{_plain_name(CONTENT)}", rr_name=CONTENT, joliet_path=f"/openstack/{CONTENT}")
    for path, content in injected.items():
        name = path.removeprefix(f"{CONTENT}/")
        disc.add_fp(io.BytesIO(content), len(content), _image_path(CONTENT, name), rr_name=name, joliet_path=f"/openstack/{path}")
    for name, content in ((name, content) for name, content in files.items() if name not in injected):
        at = _image_path(first, name)
        disc.add_fp(io.BytesIO(content), len(content), at, rr_name=name, joliet_path=f"/openstack/{first}/{name}")
        for version in others:
            disc.add_hard_link(iso_old_path=at, iso_new_path=_image_path(version, name), rr_name=name)
            disc.add_hard_link(iso_old_path=at, joliet_new_path=f"/openstack/{version}/{name}")
    image = io.BytesIO()
    disc.write_fp(image)
    disc.close()
    return image.getvalue()


def _image_path(folder: str, name: str) -> str:
    stem, _, ending = name.partition(".")
    return f"/OPENSTACK/{_plain_name(folder)}/{_plain_name(stem)}.{_plain_name(ending)};1"


def _plain_name(name: str) -> str:
    """A name in the few characters that ISO 9660 itself allows."""
    return name.upper().replace("-", "_")
