"""Run the stages of the check one after another in the environment of this interpreter, and say what each took.

``make test`` runs all of them in one virtual environment; each is also a tox environment of the same name. A failed stage does not
keep the later ones from running; the exit status says whether any failed.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

PARALLEL = ("-n", os.environ.get("TEST_PROCESSES", "2"))
"""Tests run in this many processes; set TEST_PROCESSES=0 to debug one."""

PYTEST = (sys.executable, "-m", "pytest", "-q", "-rfE", *PARALLEL)
"""Tests that want a MariaDB, PostgreSQL or RabbitMQ skip where none answers: they are counted rather than listed."""

Command = Sequence[str | Path]


class StageFailed(Exception):
    """A command of a stage ended with an error; its output has said why."""


def run(*command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    """Run one command, its output on ours, with ``environment`` added to our own. Raises ``StageFailed``."""
    print("  $", " ".join(str(part) for part in command), flush=True)
    variables = {**os.environ, **(environment or {})}
    if subprocess.run([str(part) for part in command], cwd=cwd, env=variables, check=False).returncode:
        tool = command[2] if command[1] == "-m" else command[0]
        raise StageFailed(Path(tool).name)


def run_all(commands: Sequence[Command]) -> None:
    """Run every command even when an earlier one fails, so that one run shows all there is to mend."""
    failed = []
    for command in commands:
        try:
            run(*command)
        except StageFailed as error:
            failed.append(str(error))
    if failed:
        raise StageFailed(", ".join(failed))


def lint() -> None:
    run_all(
        [
            (BIN / "ruff", "check", "."),
            (BIN / "ruff", "format", "--check", "."),
            (BIN / "lint-imports", "--no-logo"),
        ]
    )


def typing() -> None:
    run(sys.executable, "-m", "mypy")


def unit() -> None:
    run(*PYTEST, "tests/unit", "tests/packaging")


def functional() -> None:
    """Rooms together; then, with the machine to themselves, the tests that kill processes."""
    run_all([(*PYTEST, "tests/functional"), (*PYTEST, "-n", "0", "tests/faults")])


def wheel() -> None:
    """Build the wheel from a copy of what belongs in it, install it into an environment of its own, and test that."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        place = Path(name)
        copy_sources(place / "source")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place / "dist", place / "source")
        (built,) = (place / "dist").glob("*.whl")
        run(sys.executable, "-m", "venv", place / "venv")
        python = place / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", f"{built}[test]")
        run(python, ROOT / "ci" / "stages.py", "installed")


def installed() -> None:
    """Test the package that is installed for this interpreter from a folder without our sources, which could hide what it lacks."""
    with tempfile.TemporaryDirectory(prefix="installed-") as name:
        place = Path(name)
        for item in ("tests", "etc", "docs"):
            shutil.copytree(ROOT / item, place / item, ignore=shutil.ignore_patterns("__pycache__"))
        for item in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / item, place / item)
        run(
            *(*PYTEST, "--import-mode=importlib", "-p", "no:cacheprovider", "tests/packaging", "tests/unit"),
            cwd=place,
            environment={"SUPERCONDUCTOR_CHECKOUT": str(ROOT)},
        )


def bench_smoke() -> None:
    """Run every benchmark for a moment: not for its figures, but to see that it still works."""
    run_all([(sys.executable, path, "--smoke") for path in sorted(ROOT.glob("bench/[!_]*.py"))])


def copy_sources(target: Path) -> None:
    """Copy the listed packages and the files that describe them: a build in the checkout would find files of builds before."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for package in config["options"]["packages"].split():
        if "." not in package:
            shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    for item in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / item, target / item)


STAGES: dict[str, Callable[[], None]] = {
    "lint": lint,
    "typing": typing,
    "unit": unit,
    "functional": functional,
    "wheel": wheel,
    "bench-smoke": bench_smoke,
}
PARTS: dict[str, Callable[[], None]] = {"installed": installed}
"""What can be asked for by name but is part of another stage."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the stages of the check, all of them unless some are named.")
    parser.add_argument("stages", nargs="*", metavar="stage", help=", ".join(STAGES))
    names = parser.parse_args(arguments).stages or list(STAGES)
    if unknown := [name for name in names if name not in STAGES | PARTS]:
        parser.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(STAGES)}")

    results: list[tuple[str, float, str]] = []
    for name in names:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        try:
            (STAGES | PARTS)[name]()
        except StageFailed as error:
            result = f"FAILED ({error})"
        else:
            result = "ok"
        results.append((name, time.monotonic() - began, result))
        print(f"== {name}: {result}, {results[-1][1]:.1f} s\n", flush=True)

    if names != ["installed"]:
        for name, seconds, result in results:
            print(f"{name:<12} {seconds:7.1f} s  {result}")
        print(f"{'all':<12} {sum(seconds for _, seconds, _ in results):7.1f} s")
    return int(any(result != "ok" for _, _, result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
