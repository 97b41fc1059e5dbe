"""Ask Nova's filters and weighers and ours about the same random worlds, and compare the answers.

    python -m tests.conformance.scheduler --nova .venv-nova/bin/python [--seed N] [--worlds N]

Prints a line for each misfit, with the smallest world that still has it. The exit status is 1 if there is one, or if a declared
difference was not met.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.conformance.scheduler import differences, worlds
from tests.conformance.scheduler.differences import FILTERS, REQUESTED, WEIGHERS, Case
from tests.conformance.scheduler.ours import OurFleet, Weighed
from tests.conformance.scheduler.worlds import Json
from tests.support import nova_table

ROOT = Path(__file__).resolve().parents[3]
ANSWERS = ROOT / "ci" / "nova_scheduler.py"
DEFAULT_WORLDS = 250
"""About a minute on two cores."""
MISFITS_SHOWN = 5
"""A minimised world is printed for so many kinds of misfits."""


class NovaScheduler:
    """A process with the installed Nova that answers for one world after the other."""

    def __init__(self, python: str) -> None:
        command = [python, "-W", "ignore", str(ANSWERS), "answer"]
        same = os.environ | {"PYTHONHASHSEED": "0"}  # a filter of Nova's asks the words of an aggregate in the order of a set
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=same)
        self._python = python

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._process as process:
            if process.stdin is not None:
                process.stdin.close()

    def describe(self) -> dict[str, list[str]]:
        """The names of all that bears on placement."""
        done = subprocess.run([self._python, "-W", "ignore", str(ANSWERS), "describe"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.strip() or f"{self._python} cannot run {ANSWERS}")
        described: dict[str, list[str]] = json.loads(done.stdout)
        return described

    def answers(self, world: Json) -> list[Json]:
        """One answer for each request of the world."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(world | {"filters": list(FILTERS), "weighers": WEIGHERS}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{ANSWERS} ended")
        answers: list[Json] = json.loads(line)
        return answers


class Misfit(NamedTuple):
    """An answer that differs and may not. ``request``: its number in the world."""

    name: str
    request: int
    host: str
    nova: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.name}: host {self.host}: Nova says {self.nova}, we say {self.ours}"


class Comparison:
    """Compares one world after the other. ``met``: how often each declared difference was met; ``checks``: by name."""

    def __init__(self, nova: NovaScheduler) -> None:
        self._nova = nova
        self.met: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()

    def misfits(self, world: Json) -> list[Misfit]:
        ours = OurFleet(world, set(FILTERS.values()), WEIGHERS)
        found: list[Misfit] = []
        for number, (request, told) in enumerate(zip(world["requests"], self._nova.answers(world), strict=True)):
            found += self._filtered(world, number, told["filters"], ours)
            found += self._weighed(world, number, told, ours, request)
        return found

    def _filtered(self, world: Json, number: int, told: Json, ours: OurFleet) -> Iterator[Misfit]:
        request = world["requests"][number]
        for name, answers in told.items():
            mine = ours.requested(request) if name == REQUESTED else ours.passes(FILTERS[name], request)
            self.checks[name] += len(mine)
            for host, nova, passes in zip(world["hosts"], answers, mine, strict=True):
                case = Case(world, request, host)
                if nova != passes and not self._allowed(name, case, nova, passes):
                    yield Misfit(name, number, host["node"], nova, passes)

    def _allowed(self, name: str, case: Case, nova: bool | str, ours: bool) -> bool:
        for each in differences.FILTER_DIFFERENCES:
            if each.allows(name, case, nova, ours):
                self.met[each.title] += 1
                return True
        return False

    # -- weighers --------------------------------------------------------------------------------------------------------------

    def _weighed(self, world: Json, number: int, told: Json, ours: OurFleet, request: Json) -> Iterator[Misfit]:
        cases = [Case(world, request, world["hosts"][index]) for index in request["left"]]
        totals = [0.0] * len(cases)
        for name, nova in told["weighers"].items():
            self.checks[name] += len(cases)
            mine = ours.weighs(name, request)
            expected = self._expected(name, cases, nova)
            for part, wanted, given in zip(Weighed._fields, expected, mine, strict=True):
                yield from self._unequal(f"{name} {part}", number, cases, wanted, given)
            totals = [before + score for before, score in zip(totals, expected.score, strict=True)]
        yield from self._unequal("total", number, cases, totals, ours.totals(request))
        plain = [
            sum(nova["multiplier"][at] * nova["normalised"][at] for nova in told["weighers"].values()) for at in range(len(cases))
        ]
        if len(cases) > 1:  # Nova does not weigh a single host
            yield from self._unequal("Nova's total", number, cases, told["totals"], plain)

    def _expected(self, name: str, cases: Sequence[Case], nova: Json) -> Weighed:
        """What we are to say, where Nova says this."""
        raw = [self._expected_raw(name, case, value) for case, value in zip(cases, nova["raw"], strict=True)]
        multiplier = [self._expected_multiplier(name, case, value) for case, value in zip(cases, nova["multiplier"], strict=True)]
        scaled = _scaled(raw, from_zero=name in differences.FROM_ZERO)
        if raw == nova["raw"] and not _alike(scaled, nova["normalised"]):
            if name == "BuildFailureWeigher" and min(raw) > 0.0:
                self.met[differences.SCALE_FROM_ZERO] += 1
            else:
                scaled = nova["normalised"]
        return Weighed(raw, multiplier, [one * other for one, other in zip(multiplier, scaled, strict=True)])

    def _expected_raw(self, name: str, case: Case, nova: float) -> float:
        for each in differences.RAW_DIFFERENCES:
            if each.weigher == name and each.holds(case) and each.expected(case, nova) != nova:
                self.met[each.title] += 1
                return each.expected(case, nova)
        return nova

    def _expected_multiplier(self, name: str, case: Case, nova: float) -> float:
        option, sign = _option(name)
        values = case.values(option)
        numbers = differences.finite(values)
        if len(numbers) == len(values):
            return nova
        self.met[differences.ODD_MULTIPLIER] += 1
        return sign * min(numbers, default=case.world["settings"][option])

    def _unequal(
        self, name: str, number: int, cases: Sequence[Case], expected: Sequence[float], ours: Sequence[float]
    ) -> Iterator[Misfit]:
        for case, wanted, given in zip(cases, expected, ours, strict=True):
            if not _close(wanted, given):
                yield Misfit(name, number, case.host["node"], wanted, given)


def _option(weigher: str) -> tuple[str, float]:
    """The option that multiplies the weigher, and its sign."""
    options = {
        "BuildFailureWeigher": "build_failure",
        "CrossCellWeigher": "cross_cell_move",
        "IoOpsWeigher": "io_ops",
        "NumInstancesWeigher": "num_instances",
        "ServerGroupSoftAffinityWeigher": "soft_affinity",
        "ServerGroupSoftAntiAffinityWeigher": "soft_anti_affinity",
    }
    name = options.get(weigher, weigher.removesuffix("Weigher").lower())
    return f"{name}_weight_multiplier", -1.0 if weigher == "BuildFailureWeigher" else 1.0


def _scaled(raw: Sequence[float], *, from_zero: bool) -> list[float]:
    if not raw:
        return []
    values = [max(value, 0.0) for value in raw] if from_zero else list(raw)
    low, high = 0.0 if from_zero else min(values), max(values)
    return [(value - low) / ((high - low) or 1.0) for value in values]


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-7) or (math.isnan(one) and math.isnan(other))


def _alike(some: Sequence[float], others: Sequence[float]) -> bool:
    return all(map(_close, some, others))


# -- the smallest world --------------------------------------------------------------------------------------------------------


def minimised(world: Json, misfit: Misfit, misfits: Callable[[Json], list[Misfit]]) -> tuple[Json, Misfit]:
    """The world with all left out that the misfit does not need."""

    def still(trial: Json) -> Misfit | None:
        return next((each for each in misfits(trial) if each.name == misfit.name), None)

    smallest = world | {"requests": [world["requests"][misfit.request]]}
    found = still(smallest) or misfit
    shrunk = True
    while shrunk:
        shrunk = False
        for trial in _smaller(smallest):
            again = still(trial)
            if again is not None:
                smallest, found, shrunk = trial, again, True
                break
    return smallest, found


def _smaller(world: Json) -> Iterator[Json]:
    """Worlds with one thing less."""
    [request] = world["requests"]
    if world["servers"] and not request["group"] and not request["hints"]:
        yield world | {"servers": {}}
    for number in range(len(world["hosts"])):
        left = [index - (index > number) for index in request["left"] if index != number]
        yield world | {"hosts": _without(world["hosts"], number), "requests": [request | {"left": left}]}
    for number in range(len(world["aggregates"])):
        yield world | {"aggregates": _without(world["aggregates"], number)}
    for number, aggregate in enumerate(world["aggregates"]):
        for key in aggregate["metadata"]:
            poorer = aggregate | {"metadata": _without_key(aggregate["metadata"], key)}
            yield world | {"aggregates": [*world["aggregates"][:number], poorer, *world["aggregates"][number + 1 :]]}
    for less in _smaller_requests(request):
        yield world | {"requests": [less]}


def _smaller_requests(request: Json) -> Iterator[Json]:
    """Requests with one thing less."""
    for field in ("image", "group", "destination", "move", "availability_zone"):
        if request[field] is not None:
            yield request | {field: None}
    for field in ("ignore_hosts", "force_hosts", "force_nodes"):
        if request[field]:
            yield request | {field: []}
    for key in request["hints"]:
        yield request | {"hints": _without_key(request["hints"], key)}
    flavor, image = request["flavor"], request["image"]
    for key in flavor["extra_specs"]:
        yield request | {"flavor": flavor | {"extra_specs": _without_key(flavor["extra_specs"], key)}}
    for key in image["properties"] if image else ():
        yield request | {"image": image | {"properties": _without_key(image["properties"], key)}}


def _without_key(items: Json, key: str) -> Json:
    return {name: value for name, value in items.items() if name != key}


def _without(items: list[Json], number: int) -> list[Json]:
    return [*items[:number], *items[number + 1 :]]


# -- the names that the documentation mentions ------------------------------------------------------------------------------------


def unmentioned(described: dict[str, list[str]], text: str) -> Iterator[str]:
    """Filters, weighers and request filters that are neither compared nor listed, and names that the page does not mention."""
    for name in (*described["Filters"], *described["Weighers"]):
        if name not in {*FILTERS, *WEIGHERS, *differences.NOT_COMPARED}:
            yield f"{name}: is neither compared nor listed in tests/conformance/scheduler/differences.py"
    tables = nova_table.tables(text)
    for heading, names in described.items():
        for name in names:
            spelt = re.sub(r"{\w+}", "X", re.sub(r"{(group|filter)}", "", name))  # Nova's names are templates
            option = spelt.removeprefix("[scheduler] ").removeprefix("[filter_scheduler] ")
            if nova_table.find(tables[heading], option) is None:
                yield f"{spelt}: {nova_table.DOCUMENT} does not mention it"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.scheduler", description=__doc__.splitlines()[0])
    parser.add_argument("--nova", required=True, help="the interpreter of an environment with nova")
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--worlds", type=int, default=DEFAULT_WORLDS)
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of aggregates that set no numbers
    with NovaScheduler(options.nova) as nova:
        found = list(unmentioned(nova.describe(), (ROOT / nova_table.DOCUMENT).read_text()))
        comparison = Comparison(nova)
        first: dict[str, tuple[int, Misfit]] = {}
        how_many: Counter[str] = Counter()
        for seed in range(options.seed, options.seed + options.worlds):
            for misfit in comparison.misfits(worlds.world(seed)):
                first.setdefault(misfit.name, (seed, misfit))
                how_many[misfit.name] += 1
        met, checks = comparison.met.copy(), comparison.checks.copy()
        for number, (name, (seed, misfit)) in zip(count(1), first.items(), strict=False):
            found.append(f"{misfit} (seed {seed}; {how_many[name]} in all; repeat with --seed {seed} --worlds 1)")
            if number <= MISFITS_SHOWN:
                smallest, smaller = minimised(worlds.world(seed), misfit, Comparison(nova).misfits)
                found.append(f"  the smallest world with it: {smaller}\n  {json.dumps(smallest)}")
    if options.worlds >= DEFAULT_WORLDS:
        found += [f"never met: {title}: remove the declared difference" for title in differences.titles() if not met[title]]
    for line in found:
        print(line)
    print(f"{options.worlds} worlds: {sum(checks.values())} answers of {len(checks)} filters and weighers, ", end="")
    print(f"{sum(how_many.values())} misfits; declared differences:")
    for title in differences.titles():
        print(f"  {met[title]:7} {title}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
