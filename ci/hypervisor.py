"""A hypervisor for a run of the tests: QEMU, libvirt and its Python binding, installed where they are missing.

``python ci/hypervisor.py`` installs them for this interpreter, or says why it cannot. ``SC_TEST_LIBVIRT=none`` does without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compute.libvirt import private_daemon
from deploy import packages
from deploy.unavailable import Unavailable
from objects import errors
from tests.support import libvirt_host
from tests.support.servers import NONE

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements-libvirt.txt"
BUILD_PROGRAMS = {"pkg-config": "pkg-config", "gcc": "gcc"}
"""Programs that the binding is built with, and Debian's packages of them."""
HEADERS_PACKAGE, PYTHON_HEADERS_PACKAGE = "libvirt-dev", "python3-dev"


def provide_hypervisor(environ: Mapping[str, str] = os.environ) -> None:
    """Install what is missing, and end what killed test runs have left. Raises Unavailable, and then tests are to skip."""
    if environ.get(libvirt_host.VARIABLE) == NONE:
        raise Unavailable(f"{libvirt_host.VARIABLE}={NONE} says to do without")
    _provide_programs()
    if not _has_binding():
        _build_binding()
    libvirt_host.sweep()


def _provide_programs() -> None:
    try:
        private_daemon.find_programs()
    except errors.Misconfigured:
        packages.install_packages(*private_daemon.PACKAGES)
        try:
            private_daemon.find_programs()
        except errors.Misconfigured as why:
            raise Unavailable(str(why)) from None


def _has_binding() -> bool:
    # In a process of its own: an import that has failed is remembered.
    return subprocess.run([sys.executable, "-c", "import libvirt"], check=False, capture_output=True).returncode == 0


def _build_binding() -> None:
    missing = [package for program, package in BUILD_PROGRAMS.items() if shutil.which(program) is None]
    tool = shutil.which("pkg-config")
    if tool is None or subprocess.run([tool, "--exists", "libvirt"], check=False).returncode:
        missing.append(HEADERS_PACKAGE)
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append(PYTHON_HEADERS_PACKAGE)
    if missing:
        packages.install_packages(*missing)
    options = ["--quiet", "--no-deps", "--require-hashes", "--no-build-isolation", "--requirement", str(REQUIREMENTS)]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *options], check=False, capture_output=True, text=True)
    if done.returncode:
        messages = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["pip failed"]
        raise Unavailable(f"libvirt-python cannot be built: {messages[0].strip()}")


def main() -> int:
    try:
        provide_hypervisor()
    except Unavailable as why:
        print(f"The hypervisor could not be had: {why}")
        return 1
    print("libvirt, QEMU and libvirt-python are here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
