"""Build the wheel of this checkout from a copy of the files that belong in it, and install it into an environment of its own."""

from __future__ import annotations

import configparser
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci.commands import run

ROOT = Path(__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip")


class NotBuilt(Exception):
    """A command ended with an error; its output has said why."""


def install_into(folder: Path) -> Path:
    """Make ``folder`` a virtual environment with a wheel built for it and what tests need; its interpreter. Raises NotBuilt."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        place = Path(name)
        built = build_wheel(place / "dist")
        locked = ("--require-hashes", "--only-binary", ":all:", "--requirement", ROOT / "requirements.lock")
        _run(*PIP, "download", "--quiet", "--dest", place / "locked", *locked)
        _run(sys.executable, "-m", "venv", "--clear", folder)
        python = folder / "bin" / "python"
        # Only what the wheel asks for, so that a requirement it forgot is missed.
        offline = ("--no-index", "--find-links", place / "locked")
        _run(python, "-m", "pip", "install", "--quiet", *offline, f"{built}[test]")
    return python


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into ``folder``; its path. Raises NotBuilt."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        source, wheel_folder = Path(name) / "source", Path(name) / "dist"
        copy_sources(source)
        # Built by the locked packages of this environment, not by what an isolated one would fetch.
        _run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheel_folder, source)
        (built,) = wheel_folder.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, folder))


def copy_sources(target: Path) -> None:
    """Copy the listed packages and the files that describe them: a build in the checkout would find files of builds before."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for package in config["options"]["packages"].split():
        if "." not in package:
            shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    for item in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / item, target / item)


def _run(*command: str | Path) -> None:
    words = [str(part) for part in command]
    print("  $", *words, flush=True)
    if run(words, ROOT, dict(os.environ)):
        raise NotBuilt(words[0])
