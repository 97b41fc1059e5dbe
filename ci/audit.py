"""Look for mistakes that matter to security in our code, and for known ones in what is installed.

    python ci/audit.py           both; the exit status tells whether something was found, or nothing could be asked

pip-audit asks the package index for advisories. An index that has none audits nothing, so the audit fails there, unless
ACCEPT_UNAUDITED is set to anything but an empty text.
"""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ADVISORIES_TIMEOUT_S = 120
"""Seconds that all the questions about advisories may take."""

ACCEPT = "ACCEPT_UNAUDITED"
"""Variable that accepts a run in which no package could be audited."""


def main() -> int:
    return int(not all([is_code_clean(), are_dependencies_clean()]))


def is_code_clean() -> bool:
    """Whether bandit finds nothing in what is installed at users'. What is left out, and why, is in ``pyproject.toml``."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = [package for package in config["options"]["packages"].split() if "." not in package]
    command = [sys.executable, "-m", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *folders]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def are_dependencies_clean() -> bool:
    """Whether packages of this environment were audited, and none has a known advisory."""
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--timeout", "10", "--progress-spinner", "off"]
        try:
            done = subprocess.run(
                [*command, "--format", "json", "--output", report],
                cwd=ROOT,
                check=False,
                capture_output=True,
                timeout=ADVISORIES_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return accept_unaudited(f"the package index did not answer within {ADVISORIES_TIMEOUT_S} s")
        if not report.exists():
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            return accept_unaudited(lines[-1][:300] if lines else f"pip-audit ended with status {done.returncode}")
        return are_packages_clean(json.loads(report.read_bytes())["dependencies"])


def are_packages_clean(packages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether pip-audit's report on these packages names audited ones and no advisory. It lists what it skipped beside them."""
    skipped = [package for package in packages if "skip_reason" in package]
    audited = [package for package in packages if "skip_reason" not in package]
    advisories = [(package, advisory) for package in audited for advisory in package.get("vulns", ())]
    for package, advisory in advisories:
        fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
        print(f"  {package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    print(f"  {len(audited)} packages audited, {len(advisories)} advisories, {len(skipped)} packages not audited")
    if not audited:
        return accept_unaudited(
            f"the package index has no advisories: {skipped[0]['skip_reason']}" if skipped else "no package was found"
        )
    for package in skipped:
        print(f"  not audited: {package['name']}: {package['skip_reason']}")
    return not advisories


def accept_unaudited(why: str) -> bool:
    """No package was audited: whether that is accepted."""
    accepted = bool(os.environ.get(ACCEPT))
    print(f"  NOT AUDITED: {why}")
    print("  Accepted." if accepted else f"  Use an index with advisories, or accept that with: make test {ACCEPT}=1")
    return accepted


if __name__ == "__main__":
    sys.exit(main())
