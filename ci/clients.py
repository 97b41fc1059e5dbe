"""Real clients and a real identity service for the stage ``clients``, in virtual environments of their own.

``python ci/clients.py`` makes them, or says why it cannot.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy.unavailable import Unavailable
from tests.support.client_programs import ANSIBLE, CLIENTS

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = {CLIENTS: ROOT / "requirements-clients.txt", ANSIBLE: ROOT / "requirements-ansible.txt"}


def provide_environments() -> None:
    """Make the environments that are missing or have other packages than their file names. Raises Unavailable."""
    for folder, requirements in REQUIREMENTS.items():
        stamp = folder / ".installed"
        if stamp.exists() and stamp.read_text() == requirements.read_text():
            continue
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(folder / "bin" / "pip"), "install", "--quiet", "--requirement", str(requirements)])
        stamp.write_text(requirements.read_text())


def _run(command: list[str]) -> None:
    print("  $", *command, flush=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        messages = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()] or ["it failed"]
        raise Unavailable(f"{' '.join(command)}: {messages[0].strip()}")


def main() -> int:
    try:
        provide_environments()
    except Unavailable as why:
        print(f"The clients could not be had: {why}")
        return 1
    print(f"{CLIENTS} and {ANSIBLE} are here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
