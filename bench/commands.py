"""The CPU that a command takes, from its start to its end, against an API that does not exist or with its help only.

    python bench/commands.py              the least of 10 runs of each
    python bench/commands.py --smoke      one run of each; figures not to be quoted

CPU is that of user and system together, of the child process.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench._script import parser_of

ROOT = Path(__file__).resolve().parent.parent
NOWHERE = ("--endpoint", "http://127.0.0.1:9/v2.1")
"""Port 9 is discard: nobody serves an API there."""

COMMANDS = (
    ("--version",),
    ("--help",),
    ("status", *NOWHERE),
    ("server", "list", *NOWHERE),
    ("explain", "web", *NOWHERE),
    ("top", "--help"),
    ("standalone", "--help"),
    ("flavor", "list", "--help"),
    ("host", "list", "--help"),
)


def cpu_of(words: tuple[str, ...]) -> float:
    """Seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "cli", *words], cwd=ROOT, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    runs = 1 if parser_of(__doc__, "one run of each").parse_args().smoke else 10
    for words in COMMANDS:
        least = min(cpu_of(words) for _ in range(runs))
        print(f"{least:6.2f} s CPU  superconductor {' '.join(word for word in words if word not in NOWHERE)}")


if __name__ == "__main__":
    main()
