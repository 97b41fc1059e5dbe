"""Threads that meet a type for the first time at once. Without a lock around that, msgspec ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys, threading, types
import msgspec
from objects import typed

sys.setswitchinterval(1e-6)
FIELDS = range(20)
for number in range(40):
    lines = ["import msgspec", "class Inner(msgspec.Struct):", *(f"    a{n}: 'list[dict[str, int]] | None' = None" for n in FIELDS)]
    lines += ["class Outer(msgspec.Struct):", *(f"    a{n}: 'Inner | None' = None" for n in FIELDS)]
    module = sys.modules[f"fresh{number}"] = types.ModuleType(f"fresh{number}")
    exec("\\n".join(lines), module.__dict__)
    data = {f"a{n}": {f"a{m}": [{"x": 1}] for m in FIELDS} for n in FIELDS}
    text = msgspec.json.encode(data)
    together = threading.Barrier(8)

    def use(turn):
        together.wait()
        typed.decode_json(text, module.Outer) if turn % 2 else typed.convert_data(data, module.Outer)

    threads = [threading.Thread(target=use, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_type_may_be_met_by_concurrent_threads() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
