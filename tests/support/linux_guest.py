"""A small Linux guest of Debian's packages, which are not installed: kernel, busybox, and a boot loader for its disk.

It takes its addresses from its config drive or by DHCP, tells on its console what it finds (``linux_guest.sh``), and obeys the
power button. It is made once for each version of these packages and of this file, and kept in the user's cache.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.unavailable import Unavailable

KERNEL, TOOLS = "linux-image-cloud-amd64", ("busybox-static", "syslinux", "mtools")
MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_scsi", "virtio_net", "virtio_balloon", "virtio-rng", "ata_piix", "ahci", "sd_mod"),
    *("sr_mod", "isofs", "vfat", "nls_ascii", "nls_cp437", "button", "evdev", "e1000"),
)
MEMORY_MB = 96
"""The least memory that it boots with, and some."""
FILE_SYSTEM_MB = 20
DISK_BYTES = (FILE_SYSTEM_MB + 1) << 20
"""The size of its disk image: a file system, and behind it the number of its starts."""
COMMAND_LINE = "console=ttyS0 quiet panic=1 mitigations=off nokaslr"
READY = "tiny: READY"

FLATTEN = r"""# JSON as lines PATH=VALUE, such as networks.0.link=tap1
{ s = s $0 "\n" }
END { at = 1; value("") }
function blank() { while (substr(s, at, 1) ~ /[ \t\r\n]/) at++ }
function text(   out, c) {
    at++
    while ((c = substr(s, at, 1)) != "\"" && c != "") { if (c == "\\") { at++; c = substr(s, at, 1) } out = out c; at++ }
    at++
    return out
}
function many(path, end,   i, key, c) {
    at++; blank()
    if (substr(s, at, 1) == end) { at++; return }
    for (i = 0; ; i++) {
        blank(); key = i
        if (end == "}") { key = text(); blank(); at++ }
        value(path == "" ? key : path "." key)
        blank(); c = substr(s, at, 1); at++
        if (c != ",") return
    }
}
function value(path,   c, from) {
    blank(); c = substr(s, at, 1)
    if (c == "{") many(path, "}")
    else if (c == "[") many(path, "]")
    else if (c == "\"") print path "=" text()
    else { from = at; while (substr(s, at, 1) ~ /[-+0-9.a-zA-Z]/) at++; print path "=" substr(s, from, at - from) }
}
"""
UDHCPC = """#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev "$interface"
[ -z "$router" ] || ip route add default via "$router"
"""


class LinuxGuest(NamedTuple):
    """Its kernel and initial file system for a direct boot, and a disk of format qcow2 that boots them."""

    kernel: Path
    initrd: Path
    disk: Path


@functools.cache
def linux_guest(cache: Path | None = None) -> LinuxGuest:
    """The guest, made now if it is not in the cache. Raises Unavailable if its packages cannot be had."""
    packages = [_kernel_package(), *TOOLS]
    script = Path(__file__).with_suffix(".sh")
    made_of = [_ask("apt-get", "download", "--print-uris", *packages).encode(), script.read_bytes(), Path(__file__).read_bytes()]
    key = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "superconductor-guests"
    place = cache / f"linux-{key}"
    guest = LinuxGuest(place / "vmlinuz", place / "initrd", place / "disk.qcow2")
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as name:
            made = Path(name) / "guest"
            made.mkdir()
            _make(Path(name), packages, made)
            try:
                made.rename(place)
            except OSError:  # another process was first
                if not place.exists():
                    raise
    return guest


def _make(work: Path, packages: Sequence[str], made: Path) -> None:
    debs, root, tree = work / "debs", work / "root", work / "tree"
    for folder in (debs, root):
        folder.mkdir()
    _ask("apt-get", "download", *packages, folder=debs)
    for deb in debs.glob("*.deb"):
        _ask("dpkg", "-x", str(deb), str(root))
    [kernel] = root.glob("boot/vmlinuz-*")
    shutil.copy(kernel, made / "vmlinuz")
    _make_tree(root, tree)
    (work / "initrd.cpio").write_bytes(_cpio(tree))
    with (made / "initrd").open("wb") as packed:
        subprocess.run(["gzip", "-9", "-c", work / "initrd.cpio"], stdout=packed, check=True)
    _make_disk(root, made, work / "disk.raw")


def _make_tree(root: Path, tree: Path) -> None:
    for name in ("bin", "dev", "etc", "lib", "mnt", "proc", "sys", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy(root / "bin/busybox", tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    script = Path(__file__).with_suffix(".sh").read_text()
    _write(tree / "init", script.replace("COUNTER_SECTOR", str(FILE_SYSTEM_MB << 11)))
    _write(tree / "lib/udhcpc", UDHCPC)
    _write(tree / "lib/flatten.awk", FLATTEN)
    found = {_plain(file.stem): file for file in root.glob("lib/modules/*/kernel/**/*.ko")}
    order: list[Path] = []
    for name in MODULES:
        _add_module(_plain(name), found, order)
    for module in order:
        shutil.copy(module, tree / "lib" / module.name)
    _write(tree / "lib/order", "\n".join(module.name for module in order))


def _add_module(name: str, found: dict[str, Path], order: list[Path]) -> None:
    """The module after those that it depends on, as it says itself. One that is not there is built into the kernel."""
    file = found.get(name)
    if file is None or file in order:
        return
    needed = re.search(rb"\0depends=([^\0]*)\0", file.read_bytes())
    for other in needed[1].decode().split(",") if needed and needed[1] else ():
        _add_module(_plain(other), found, order)
    order.append(file)


def _make_disk(root: Path, made: Path, raw: Path) -> None:
    """A file system without partitions that SYSLINUX boots from."""
    with raw.open("wb") as file:
        file.truncate(FILE_SYSTEM_MB << 20)
    settings = raw.with_name("syslinux.cfg")
    settings.write_text(f"DEFAULT tiny\nPROMPT 0\nLABEL tiny\n KERNEL vmlinuz\n INITRD initrd\n APPEND {COMMAND_LINE}\n")
    tools = f"{root / 'usr/bin'}:{os.environ.get('PATH', '')}"
    _ask("mformat", "-i", str(raw), "::", path=tools)
    _ask("mcopy", "-i", str(raw), *(str(made / name) for name in ("vmlinuz", "initrd")), str(settings), "::", path=tools)
    _ask("syslinux", str(raw), path=tools)
    with raw.open("r+b") as file:
        file.truncate(DISK_BYTES)
    _ask("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(made / "disk.qcow2"))


def _cpio(tree: Path) -> bytes:
    """The tree as an archive of the format newc, https://docs.kernel.org/driver-api/early-userspace/buffer-format.html."""
    out = io.BytesIO()
    entries = [(str(path.relative_to(tree)), path) for path in sorted(tree.rglob("*"))]
    for number, (name, mode, content) in enumerate([*_members(entries), ("TRAILER!!!", 0, b"")]):
        links = 1
        fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0")
        out.write(b"\0" * (-out.tell() % 4) + content)
        out.write(b"\0" * (-out.tell() % 4))
    return out.getvalue()


def _members(entries: Sequence[tuple[str, Path]]) -> Iterator[tuple[str, int, bytes]]:
    for name, path in entries:
        if path.is_symlink():
            yield name, stat.S_IFLNK | 0o777, os.readlink(path).encode()
        elif path.is_dir():
            yield name, stat.S_IFDIR | 0o755, b""
        else:
            yield name, stat.S_IFREG | 0o755, path.read_bytes()


def _kernel_package() -> str:
    found = re.search(r"Depends: (linux-image-\S+)", _ask("apt-cache", "depends", KERNEL))
    if found is None:
        raise Unavailable(f"apt-cache knows no kernel that {KERNEL} depends on: run apt-get update")
    return found[1]


def _ask(*command: str, folder: Path | None = None, path: str | None = None) -> str:
    """What the command writes. Raises Unavailable if it is missing or fails."""
    environment = {**os.environ, "LC_ALL": "C", **({"PATH": path} if path else {})}
    program = shutil.which(command[0], path=path)
    if program is None:
        raise Unavailable(f"The Linux guest cannot be made: {command[0]} is not installed")
    done = subprocess.run([program, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        why = ([line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines() or ["failed"])[0]
        raise Unavailable(f"The Linux guest cannot be made: {command[0]}: {why}")
    return done.stdout


def _write(file: Path, content: str) -> None:
    file.write_text(content)
    file.chmod(0o755)


def _plain(module: str) -> str:
    return module.replace("-", "_")
