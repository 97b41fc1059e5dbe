"""A deployment with the files that install it, made by the command on databases and a virtual host of its own; and its image.

The image needs mmdebstrap, buildah and podman; whoever has none of them skips. Its build takes minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ci import wheels
from ci.side_environment import HELM
from rpc import agents
from tests.support import guide, machine, vhosts
from tests.support.bus import url_of
from tests.support.databases import closed_port, named_databases

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "installing.md"
TAG = "localhost/superconductor-test:1"
PROGRAMS = {"mmdebstrap": "mmdebstrap", "buildah": "buildah", "podman": "podman", "runc": "runc", **machine.PROGRAMS}
"""Programs that these tests need, and Debian's packages of them."""


def skip_without_programs() -> None:
    """Skip where the tests cannot run. ``make test STAGES=install`` installs what is missing."""
    if not os.environ.get(HELM.variable):
        pytest.skip("an image takes minutes: make test STAGES=install builds it")
    if os.geteuid() != 0:
        pytest.skip("only root can make the root file system of an image and boot it")
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed; make test STAGES=install installs it")


class InstallSite:
    """``folder`` has ``cloud``, and ``meant`` what stands for texts of the page here."""

    def __init__(self, folder: Path, meant: Mapping[str, str]) -> None:
        self.folder = folder
        self.cloud = folder / "cloud"
        self.install = self.cloud / "install"
        self.port = int(meant["8774"])
        text = PAGE.read_text()
        for here, there in meant.items():
            text = text.replace(here, there)
        self.page = text

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2.1"

    def make(self) -> None:
        """Follow the page as far as it makes the files."""
        path = f"{guide.programs(self.folder)}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        for block in guide.blocks(self.page):
            if not block.info.startswith("machine"):
                subprocess.run(["bash", "-e", "-c", block.text], cwd=self.folder, env=environment, check=True)


@contextlib.contextmanager
def install_site(folder: Path) -> Iterator[InstallSite]:
    with contextlib.ExitStack() as stack:
        bus = stack.enter_context(contextlib.contextmanager(url_of)("rabbit"))
        databases = stack.enter_context(named_databases("mariadb", ("api", "cell0", "cell1")))
        for name, url in (("bus", bus), ("database", databases)):
            (folder / f"{name}.url").write_text(url)
        stack.callback(vhosts.delete_users, [f"{agents.prefix_of(urlsplit(bus).path)}cell1-host1"])
        site = InstallSite(folder, {"8774": str(closed_port())})
        site.make()
        yield site


class Image:
    """The image of this checkout, in a store of its own. ``wheel``: what is installed in it."""

    def __init__(self, folder: Path) -> None:
        self.wheel = wheels.build_wheel(folder / "dist")
        storage = ["--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "overlay"]
        self._buildah = storage
        self.podman = ["podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc", *storage]

    def build(self, script: Path) -> None:
        """By the script that the command has written."""
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "BUILDAH_GLOBAL_OPTIONS": " ".join(self._buildah),
            "BUILDAH_OPTIONS": "--isolation chroot",
        }
        done = subprocess.run(
            [script, self.wheel, TAG], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:]
        assert done.stdout.splitlines()[-1] == TAG

    def unpack(self, target: Path) -> None:
        """Its root file system."""
        target.mkdir()
        name = self._do("create", TAG, "true")
        archive = target.with_suffix(".tar")
        self._do("export", "--output", str(archive), name)
        self._do("rm", name)
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", target], check=True)
        archive.unlink()

    def run(self, name: str, configuration: Path, *command: str, state: Path | None = None) -> None:
        """Start a container as the chart's pods are: no capability, nothing to write but a volume, by the network of the host."""
        limits = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
        confined = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp"]
        volumes = [f"--volume={configuration}:/etc/superconductor/superconductor.conf.d:ro"]
        volumes += [f"--volume={state}:/var/lib/superconductor/hosts"] if state else []
        self._do("run", "--detach", f"--name={name}", "--network=host", *limits, *confined, *volumes, TAG, *command)

    def ask(self, name: str, *command: str) -> str:
        """What a command in a running container says."""
        return self._do("exec", name, *command)

    def logs(self, name: str) -> str:
        done = subprocess.run([*self.podman, "logs", name], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def stop(self, name: str, timeout: int) -> int:
        """SIGTERM, and SIGKILL after ``timeout`` seconds; its exit status."""
        self._do("stop", f"--time={timeout}", name)
        return int(self._do("inspect", "--format={{.State.ExitCode}}", name))

    def close(self) -> None:
        subprocess.run([*self.podman, "rm", "--force", "--all", "--time=0"], capture_output=True, check=False)
        subprocess.run([*self.podman, "rmi", "--force", "--all"], capture_output=True, check=False)

    def _do(self, *words: str) -> str:
        done = subprocess.run([*self.podman, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout.strip()
