"""A virtual environment with Nova, whose schemas the Compute API is compared with. Nothing of ours is installed in it.

``SC_TEST_NOVA`` names an interpreter that has Nova; without it the environment is ``.venv-nova``, made if it is missing (440 MB).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "SC_TEST_NOVA"
FOLDER = ROOT / ".venv-nova"
REQUIREMENT = "nova==34.0.0"


class NotInstalled(Exception):
    """Nova could not be installed; pip's output has said why."""


def provide(told: Mapping[str, str] = os.environ) -> Path:
    """The interpreter that has Nova. Raises NotInstalled."""
    if given := told.get(VARIABLE):
        return Path(given)
    python = FOLDER / "bin" / "python"
    installed = FOLDER / ".installed"
    if not installed.exists() or installed.read_text() != REQUIREMENT:
        print(f"  installing {REQUIREMENT} in {FOLDER}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        _run(str(python), "-m", "pip", "install", "--quiet", REQUIREMENT)
        installed.write_text(REQUIREMENT)
    return python


def _run(*command: str) -> None:
    if subprocess.run(command, check=False).returncode:
        raise NotInstalled(f"{REQUIREMENT} could not be installed in {FOLDER}; name an interpreter that has it in {VARIABLE}")
