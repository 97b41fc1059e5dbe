"""Wheels of this checkout, built from a copy of what belongs in them: plain ones, and ones with compiled modules.

``python ci/wheels.py FOLDER`` makes a virtual environment in FOLDER with the compiled wheel, which is what ``make compiled`` does.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci.commands import run

ROOT = Path(__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip")
COMPILED = {"SUPERCONDUCTOR_COMPILED": "1"}
"""What setup.py reads, and tests of what is installed: see docs/decisions/0030-compiled-by-mypyc.md."""


class NotBuilt(Exception):
    """A command ended with an error; its output has said why."""


def no_compiler() -> str | None:
    """Why modules cannot be compiled here; None: they can."""
    words = (sysconfig.get_config_var("CC") or "cc").split()
    if not any(shutil.which(name) for name in (os.environ.get("CC", words[0]), "cc")):
        return f"there is no C compiler ({words[0]})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python are not installed"
    return None


def install_into(folder: Path, *, compiled: bool, level: int = 3) -> Path:
    """Make ``folder`` a virtual environment with a wheel built for it and what tests need; its interpreter. Raises NotBuilt.

    ``level``: how much the C compiler is to optimise what is compiled; 0 is built soonest.
    """
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        place = Path(name)
        built = build(place / "dist", compiled=compiled, level=level)
        locked = ("--require-hashes", "--only-binary", ":all:", "--requirement", ROOT / "requirements.lock")
        _run(*PIP, "download", "--quiet", "--dest", place / "locked", *locked)
        _run(sys.executable, "-m", "venv", "--clear", folder)
        python = folder / "bin" / "python"
        # Only what the wheel asks for, so that a requirement it forgot is missed.
        offline = ("--no-index", "--find-links", place / "locked")
        _run(python, "-m", "pip", "install", "--quiet", *offline, f"{built}[test]")
    return python


def build(folder: Path, *, compiled: bool = False, level: int = 3) -> Path:
    """Build the wheel of this checkout into ``folder``; its path. Raises NotBuilt."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        source, made = Path(name) / "source", Path(name) / "dist"
        copy_sources(source)
        variables = {**COMPILED, "MYPYC_OPT_LEVEL": str(level)} if compiled else dict.fromkeys(COMPILED, "")
        # Built by the locked packages of this environment, not by what an isolated one would fetch.
        _run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source, variables=variables)
        (built,) = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, folder))


def copy_sources(target: Path) -> None:
    """Copy the listed packages and the files that describe them: a build in the checkout would find files of builds before."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for package in config["options"]["packages"].split():
        if "." not in package:
            shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    for item in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / item, target / item)


def _run(*command: str | Path, variables: dict[str, str] | None = None) -> None:
    words = [str(part) for part in command]
    print("  $", *words, flush=True)
    if run(words, ROOT, {**os.environ, **(variables or {})}):
        raise NotBuilt(words[0])


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a virtual environment with the compiled wheel.")
    parser.add_argument("folder", type=Path)
    if why := no_compiler():
        print(f"Nothing was compiled: {why}")
        return 1
    try:
        python = install_into(parser.parse_args().folder.resolve(), compiled=True)
    except NotBuilt:
        return 1
    print(f"Compiled for {python}; for instance: {python} bench/decisions.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
