"""What is installed under our import names: all of it, only ours, and working.

The same tests look at an editable installation and, from outside the checkout, at the built wheel.
"""

from __future__ import annotations

import configparser
import importlib
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from objects import errors
from service.release import DISTRIBUTION

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
NOT_SHIPPED = {"bench", "chaos", "ci", "deploy", "docs", "etc", "tests", "build", "dist"}


def listed_packages() -> list[str]:
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    return config["options"]["packages"].split()


def test_the_changelog_describes_the_version() -> None:
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    newest = re.search(r"^## (.*)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest is not None
    assert re.fullmatch(rf"{re.escape(config['metadata']['version'])} \(\d{{4}}-\d\d-\d\d\)|Unreleased", newest[1])


DRIVERS = {
    "api.consoles.proxy": ("websockets",),
    "db.sql.psycopg_connection": ("psycopg",),
    "db.sql.pymysql_connection": ("pymysql",),
}
"""Modules that only those need who have installed the extra with that library."""

ROOMS = sorted({name.split(".")[0] for name in listed_packages()})


def shipped_files(room: str) -> set[str]:
    return {
        str(path.relative_to(CHECKOUT))
        for path in (CHECKOUT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_exactly_the_folders_with_modules_are_listed() -> None:
    folders = {path.parent.relative_to(CHECKOUT) for path in CHECKOUT.glob("[!.]*/**/*.py")}
    found = {".".join(folder.parts) for folder in folders if folder.parts[0] not in NOT_SHIPPED}

    assert sorted(listed_packages()) == sorted(found)


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_of_a_room_is_installed(room: str) -> None:
    imported = importlib.import_module(room)
    assert imported.__file__ is not None, f"{room} is not a package: it lacks __init__.py"
    site = Path(imported.__file__).parents[1]

    assert [name for name in sorted(shipped_files(room)) if not (site / name).exists()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_an_import_name_has_one_owner(room: str) -> None:
    owners = {
        dist.name
        for dist in metadata.distributions()
        if any(file.parts[0] in (room, f"{room}.py") for file in dist.files or ())
        or room in (dist.read_text("top_level.txt") or "").split()
    }

    assert owners == {DISTRIBUTION}
    assert room not in sys.stdlib_module_names


def has_libvirt() -> bool:
    """Whether libvirt's binding is installed. The folder ``tests/libvirt`` can be found under its name too."""
    found = find_spec("libvirt")
    return found is not None and found.origin is not None


def test_every_entry_point_leads_somewhere() -> None:
    found = list(metadata.distribution(DISTRIBUTION).entry_points)

    assert found
    for entry_point in found:
        if entry_point.value.startswith("compute.libvirt.driver:") and not has_libvirt():
            with pytest.raises(errors.Misconfigured, match="libvirt-python is not installed"):
                entry_point.load()
        else:
            assert entry_point.load() is not None, entry_point


def test_every_module_imports_and_none_loads_eventlet() -> None:
    code = f"""
import importlib, pkgutil, sys
from importlib.util import find_spec
from objects import errors
for room in {ROOMS!r}:
    for module in pkgutil.walk_packages(importlib.import_module(room).__path__, room + "."):
        if not module.name.endswith((".env", ".__main__")):  # run by Alembic, and by python -m
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:
                if missing.name not in {DRIVERS!r}.get(module.name, ()):
                    raise
            except errors.Misconfigured:
                if find_spec("libvirt") is not None or not module.name.startswith("compute.libvirt."):
                    raise
print(sys.modules.get("eventlet"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_distributions_cannot_be_uploaded_and_state_their_licence() -> None:
    said = metadata.metadata(DISTRIBUTION)

    assert "Private :: Do Not Upload" in said.get_all("Classifier", [])
    assert said["License"] == "Apache-2.0"
    assert any(str(file).endswith("LICENSE") for file in metadata.files(DISTRIBUTION) or ())
