"""The lock has what setup.cfg asks for, within its bounds, and nothing that could change between two installations."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
LOCK = (CHECKOUT / "requirements.lock").read_text()
PINNED = re.compile(r"^([a-z0-9.-]+)==([^ ;]+)( ; [^\\]+)? \\$((?:\n +--hash=sha256:[0-9a-f]{64}(?: \\)?)+)", re.MULTILINE)


def asked_for() -> list[Requirement]:
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    texts = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    return [Requirement(line) for text in texts for line in text.splitlines() if line]


def test_each_requirement_is_locked_within_its_bounds() -> None:
    locked: dict[str, list[str]] = {}
    for name, version, _, _ in PINNED.findall(LOCK):
        locked.setdefault(canonicalize_name(name), []).append(version)
    for requirement in asked_for():
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in the lock: make lock"
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement}, but {versions}: make lock"


def test_each_requirement_has_an_upper_bound() -> None:
    unbounded = [str(r) for r in asked_for() if not any(s.operator in ("<", "<=", "==", "~=") for s in r.specifier)]
    assert unbounded == []


def test_the_lock_holds_only_pinned_packages_with_hashes() -> None:
    assert PINNED.sub("", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE)).strip() == ""


def test_the_libvirt_binding_is_pinned_with_its_hash() -> None:
    text = re.sub(r"^#.*\n", "", (CHECKOUT / "requirements-libvirt.txt").read_text(), flags=re.MULTILINE)

    assert [name for name, *_ in PINNED.findall(text)] == ["libvirt-python"]
    assert PINNED.sub("", text).strip() == ""
