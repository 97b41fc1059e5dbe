"""Programs of servers: where they are, and Debian's package where they are missing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.unavailable import Unavailable

POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian asks this program before a package starts or restarts a service; 101 forbids it."""
POLICY_TEXT = """#!/bin/sh
# Put here by Superconductor while it installs a package, so that nothing is started. Remove it if you find it.
exit 101
"""
LOCK = Path("/run/lock/superconductor-packages")
INSTALL_TIMEOUT_S = 900
"""Seconds for one call of apt-get, which may have to wait for another one."""


def find_program(program: str, folders: Sequence[str]) -> Path | None:
    """The program in the first of ``folders`` that has it. A pattern stands for several folders, the newest version first."""
    for pattern in folders:
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), key=_version_key, reverse=True):
            if path := shutil.which(program, path=str(folder)):
                return Path(path)
    return None


def _version_key(folder: Path) -> list[int]:
    return [int(part) for part in folder.parts if part.isdigit()]


def install_packages(*names: str) -> None:
    """Install Debian's packages, without starting what is in them or upgrading what is there. Raises Unavailable."""
    package = " ".join(names)
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{package} is not installed and this machine has no apt-get: install it with its package manager")
    if os.geteuid() != 0:
        raise Unavailable(f"{package} is not installed, and only root may: apt-get install {package}")
    command = ("install", "--yes", "--no-install-recommends", "--no-upgrade", *names)
    with _nothing_starts():
        if _apt_get(*command) is None:
            return
        # The list of packages may be missing or too old.
        if (why := _apt_get("update") or _apt_get(*command)) is not None:
            raise Unavailable(f"apt-get cannot install {package}: {why}")


def _apt_get(*arguments: str) -> str | None:
    """None, or the last thing it said when it failed."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C"}
    command = ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={INSTALL_TIMEOUT_S // 3}", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **quiet},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {INSTALL_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return ((done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"])[-1]


@contextlib.contextmanager
def _nothing_starts() -> Iterator[None]:
    """Forbid the start of services while a package is installed. A policy that is not ours is left as it is, and then decides."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second would install without the policy once the first is done
        yield from _denying_policy()


def _denying_policy() -> Iterator[None]:
    is_ours = not POLICY.exists() or POLICY.read_text() == POLICY_TEXT
    if is_ours:
        POLICY.write_text(POLICY_TEXT)
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if is_ours:
            POLICY.unlink(missing_ok=True)
