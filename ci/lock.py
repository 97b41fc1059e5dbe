"""Write ``requirements.lock``: each package that any extra of setup.cfg needs, at one version, with the hashes of its wheels.

    python ci/lock.py        take what is newest within the bounds of setup.cfg; needs uv (pip install uv)

CI, ``make venv`` and the wheels of a release install from this file with ``pip --require-hashes``, so that two runs install the
same code. Only wheels are taken: a source distribution would run its own code, and what that needs, at installation.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
OLDEST_PYTHON = "3.11"

HEAD = """\
# Each package of every extra in setup.cfg at one version, with the hashes of its wheels. Written by: make lock
"""


def read_requirements() -> list[str]:
    """What setup.cfg asks for, of all extras, each with its bounds."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    texts = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    return sorted({line.strip() for text in texts for line in text.splitlines() if line.strip()})


def required_names() -> list[str]:
    """The same without bounds."""
    return [re.split(r"[<>=!~;\s]", line, maxsplit=1)[0] for line in read_requirements()]


def resolve_lock(requested: Iterable[str]) -> str:
    """The lock of these requirements, on every platform and Python from the oldest on. Raises CalledProcessError."""
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    options = ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", "--only-binary", ":all:"]
    quiet = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command = [uv, "pip", "compile", *options, *quiet, "-"]
    return subprocess.run(command, input="\n".join(requested), cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


def main() -> int:
    try:
        resolved = resolve_lock(read_requirements())
    except FileNotFoundError:
        print("uv is needed to write the lock: pip install uv", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError:
        return 1  # uv has said why
    LOCK.write_text(HEAD + resolved)
    return 0


if __name__ == "__main__":
    sys.exit(main())
