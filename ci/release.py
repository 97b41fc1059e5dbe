"""Make a release of the checked-out commit: its wheel in ``dist/`` and the tag ``VERSION``. It publishes neither.

    make release

``setup.cfg`` has the version. The newest section of ``CHANGELOG.md`` must name it with its date. Run the whole check first.
The subject of the commit is ``release: VERSION``, by which clones without tags find it.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci import wheels

ROOT = wheels.ROOT
SECTION = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
"""The heading of a release in the changelog: ``## 0.1.0 (2026-01-31)``."""


def read_version() -> str:
    """The version of this checkout."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config["metadata"]["version"]


def newest_described() -> str | None:
    """The version of the newest section of the changelog; None if it has no section of a release."""
    section = SECTION.search((ROOT / "CHANGELOG.md").read_text())
    return section[1] if section else None


def main() -> int:
    name = read_version()
    if newest_described() != name:
        print(f"CHANGELOG.md does not begin with {name}, the version in setup.cfg: head its newest section ## {name} (YYYY-MM-DD)")
        return 1
    if _run_git("status", "--porcelain"):
        print("Commit or discard your changes first: a release is made of a commit")
        return 1
    if _run_git("log", "-1", "--format=%s") != f"release: {name}":
        print(f"The subject of this commit is not 'release: {name}', by which clones without tags find it")
        return 1
    if _run_git("tag", "--list", name):
        print(f"The tag {name} exists: raise the version in setup.cfg, or remove the tag")
        return 1
    try:
        built = wheels.build_wheel(ROOT / "dist")
    except wheels.NotBuilt:
        return 1
    _run_git("tag", "--annotate", name, "--message", f"Superconductor {name}")
    print(f"Made {built.relative_to(ROOT)} and the tag {name}")
    return 0


def _run_git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S607 - git of the PATH


if __name__ == "__main__":
    sys.exit(main())
