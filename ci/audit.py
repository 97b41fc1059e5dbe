"""Look for mistakes that matter to security in our code, and for known ones in what is installed.

    python ci/audit.py           both; the exit status tells whether something was found

Advisories are asked of the package index. Where it cannot be reached that is said, and is no failure: nothing is known to be wrong.
"""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120
"""Seconds that all the questions about advisories may take."""


def main() -> int:
    return int(not all([code(), dependencies()]))


def code() -> bool:
    """Whether bandit finds nothing in what is installed at users'. What is left out, and why, is in ``pyproject.toml``."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = [package for package in config["options"]["packages"].split() if "." not in package]
    command = [sys.executable, "-m", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *folders]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def dependencies() -> bool:
    """Whether no advisory is known of any package in this environment, as far as that can be asked."""
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--timeout", "10", "--progress-spinner", "off"]
        try:
            asked = subprocess.run(
                [*command, "--format", "json", "--output", report], cwd=ROOT, check=False, capture_output=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            return _unknown(f"the package index did not answer within {PATIENCE} s")
        if not report.exists():
            said = asked.stderr.decode(errors="replace").strip().splitlines()
            return _unknown(said[-1][:300] if said else f"pip-audit ended with status {asked.returncode}")
        packages = json.loads(report.read_bytes())["dependencies"]
    found = [(package, advisory) for package in packages for advisory in package.get("vulns", ())]
    for package, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
        print(f"  {package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    print(f"  {len(packages)} packages, {len(found)} advisories")
    return not found


def _unknown(why: str) -> bool:
    print(f"  advisories could not be asked for: {why}")
    return True


if __name__ == "__main__":
    sys.exit(main())
