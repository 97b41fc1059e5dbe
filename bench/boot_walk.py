"""How much code one boot runs through: functions, files, threads, and functions of three lines or fewer.

    python bench/boot_walk.py            one boot in an all-in-one with three simulated hosts in one cell (about a minute)
    python bench/boot_walk.py --list     and every function with its thread and number of calls, by file
    python bench/boot_walk.py --smoke    after a shorter idle period; figures not to be quoted

A profile function of every thread notes which functions of the product are called. After a first boot, those that are called while
nothing is asked for belong to loops, and do not count. The script counts what each of three further boots calls, from the POST to
ACTIVE. On a very busy machine loops run beside every boot, and the figures are too high.
Lambdas and comprehensions have no name and are not counted. A function's lines are those of its body without its docstring.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._script import print_table
from bench.boots import Bench
from cli.standalone.all_in_one import DeploymentTimes
from service.periodic import wait_until

ROOT = Path(__file__).resolve().parent.parent
NOT_PRODUCT = ("bench", "tests", "cli", ".venv")
BOOTS = 3
SETTLE_S = 3.0
"""Seconds in which loops may end what a boot has left to them."""
IDLE_S, SHORT_IDLE_S = 30.0, 3.0
"""Seconds in which the functions of idle loops are noted, over all boots: every loop of the deployment runs."""
SHORT_LINES = 3
FAST = DeploymentTimes(report_interval=1.0, stats_interval=0.5, idle_interval=1.0)
"""Loops run often, so that the idle period sees all of them."""


class Call(NamedTuple):
    """A function of the product that was called in a thread."""

    code: CodeType
    thread: str


class Tracer:
    """Counts the calls of the product's functions while it is ``counting``, in all threads that start after ``install_profile``."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self.counting = False

    def install_profile(self) -> None:
        threading.setprofile(self._count_call)

    def start(self) -> None:
        self.calls = Counter()
        self.counting = True

    def stop(self) -> Counter[Call]:
        self.counting = False
        return self.calls

    def _count_call(self, frame: FrameType, event: str, _: object) -> None:
        if self.counting and event == "call" and _is_product(frame.f_code):
            self.calls[Call(frame.f_code, _thread_kind(threading.current_thread().name))] += 1


@cache
def _is_product(code: CodeType) -> bool:
    path = Path(code.co_filename)
    return not code.co_name.startswith("<") and path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in NOT_PRODUCT


@cache
def _thread_kind(name: str) -> str:
    """The name without what tells threads of a pool, and of several hosts and cells, apart."""
    kind = re.sub(r"( '')|[-_. ]*(cell\d+|h\d+|\d+)\b|\.[^ ]*", "", name.partition(" (")[0])
    return kind.replace(" ''", "")


@cache
def _body_lines(path: str) -> dict[int, int]:
    """Lines of the body of each function of a file, without the docstring, by the line of its ``def`` and of its decorators."""
    lines: dict[int, int] = {}
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            count = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            lines |= dict.fromkeys((node.lineno, *(one.lineno for one in node.decorator_list)), count)
    return lines


def _boot_one(bench: Bench, name: str) -> None:
    uuid = bench.boot_servers(name)
    assert wait_until(lambda: bool(bench.server_times(name)), 30.0), f"server {uuid} did not become ACTIVE"


def count_boot_calls(idle_s: float) -> Counter[Call]:
    """The calls of the last boot to functions that every boot calls, and that do not run while nothing is asked for."""
    tracer, idle, boots = Tracer(), set[CodeType](), list[Counter[Call]]()
    tracer.install_profile()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 3, FAST, cells=("cell1",), used=1)
        try:
            _boot_one(bench, "first")
            for number in range(BOOTS):
                time.sleep(SETTLE_S)
                tracer.start()
                time.sleep(idle_s / BOOTS)
                idle |= {call.code for call in tracer.stop()}
                tracer.start()
                _boot_one(bench, f"boot-{number}")
                boots.append(tracer.stop())
        finally:
            bench.region.stop()
            threading.setprofile(None)
    common = set.intersection(*({call.code for call in calls} for calls in boots)) - idle
    return Counter({call: count for call, count in boots[-1].items() if call.code in common})


def print_report(calls: Counter[Call], console: Console, *, with_list: bool) -> None:
    codes = {call.code for call in calls}
    short = [code for code in codes if _body_lines(code.co_filename).get(code.co_firstlineno, SHORT_LINES + 1) <= SHORT_LINES]
    of_file = Counter(str(Path(code.co_filename).relative_to(ROOT)) for code in codes)
    of_room = Counter(path.partition("/")[0] for path in of_file.elements())
    threads = sorted({call.thread for call in calls})
    counts = {"functions": codes, f"of {SHORT_LINES} lines or fewer": short, "files": of_file, "threads": threads}
    print_table(console, "One boot", ("what", "number"), [(name, str(len(counted))) for name, counted in counts.items()])
    console.print("by room:", ", ".join(f"{room} {count}" for room, count in of_room.most_common()))
    console.print("threads:", ", ".join(threads))
    if with_list:
        for path, count in sorted(of_file.items()):
            console.print(f"{path}  {count}")
            for code in sorted((c for c in codes if c.co_filename == str(ROOT / path)), key=lambda c: c.co_firstlineno):
                by_thread = {call.thread: count for call, count in calls.items() if call.code is code}
                lines = _body_lines(code.co_filename).get(code.co_firstlineno, 0)
                where = ", ".join(f"{thread} {count}" for thread, count in by_thread.items())
                console.print(f"    {code.co_firstlineno}: {code.co_qualname} ({lines} lines; {where})", soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--list", action="store_true", dest="with_list")
    options = parser.parse_args()
    print_report(count_boot_calls(SHORT_IDLE_S if options.smoke else IDLE_S), Console(highlight=False), with_list=options.with_list)


if __name__ == "__main__":
    main()
