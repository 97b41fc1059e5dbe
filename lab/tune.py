"""Try values of options on the first part of a trace, and show what the best ones give on the part that was not seen."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from lab.compare import Policy, Progress, Question, compare
from lab.demand import demand_of
from lab.figures import PolicyOutcome
from lab.trace import open_trace
from objects import errors
from scheduler.framework.settings import LEFTOVER_OPTIONS, SchedulerSettings
from scheduler.plugins import load_driver
from scheduler.weighers.leftover import LeftoverWeigher

TRIALS_LIMIT = 200
"""Maximum number of combinations of values."""
UNTRIED = "as it is"
"""The name of the settings that nothing was changed in."""


class Spread(NamedTuple):
    """Over the seeds: per cent of core-days that are lost, and servers that are rejected."""

    mean: float
    lowest: float
    highest: float
    rejected: float

    @classmethod
    def of(cls, outcomes: Sequence[PolicyOutcome]) -> Spread:
        lost = [each.vcpu_days_lost or 0.0 for each in outcomes]
        return cls(statistics.mean(lost), min(lost), max(lost), statistics.mean(each.rejected for each in outcomes))


class Trial(NamedTuple):
    """One combination. ``unseen`` None: it was not tried on the part that was not seen."""

    name: str
    seen: Spread
    unseen: Spread | None


def trials_of(settings: SchedulerSettings, tried: Mapping[str, Sequence[float]]) -> list[Policy]:
    """The settings as they are, and with each combination of values.

    Raises Invalid for too many, and for an option that no enabled weigher uses: its values would make no difference.
    """
    used = {weigher.option for weigher in load_driver(settings).weighers}
    if LeftoverWeigher.option in used:
        used.update(LEFTOVER_OPTIONS)
    for option in tried:
        if option not in used:
            raise errors.Invalid(f"--try: no enabled weigher uses {option}; name its weigher in enabled_weighers of --config")
    policies = [Policy(name=UNTRIED, settings=settings)]
    for values in itertools.product(*tried.values()):
        changes = dict(zip(tried, values, strict=True))
        name = " ".join(f"{option}={value:g}" for option, value in changes.items())
        policies.append(Policy(name=name, settings=msgspec.structs.replace(settings, **changes)))
        if len(policies) > TRIALS_LIMIT:
            raise errors.Invalid(f"more than {TRIALS_LIMIT} combinations of values: try fewer at a time")
    return policies


def tune(
    question: Question, policies: Sequence[Policy], part: float, seeds: int, processes: int, progress: Progress
) -> tuple[float, list[Trial]]:
    """Replay the first ``part`` of the window under all policies, and the rest under the first of them and the best.

    Returns when the part that was not seen begins, in seconds, and the trials, the best first. The best loses the fewest core-days
    on average, and then rejects the fewest servers. Raises Invalid for a trace without times.
    """
    trace = open_trace(Path(question.trace), question.ignored)
    if not trace.timed:
        raise errors.Invalid(f"{question.trace}: servers without times cannot be divided into two parts")
    demand = demand_of(trace, question.read_fleet())
    middle = demand.begins + (demand.ends - demand.begins) * part
    seen = _outcomes(msgspec.structs.replace(question, until=middle), policies, seeds, processes, progress)
    spreads = {name: Spread.of(outcomes) for name, outcomes in seen.items()}
    order = sorted(spreads, key=lambda name: (spreads[name].mean, spreads[name].rejected))
    again = [each for each in policies if each.name in (policies[0].name, order[0])]
    unseen = _outcomes(msgspec.structs.replace(question, begins=middle), again, seeds, processes, progress)
    return middle, [Trial(name, spreads[name], Spread.of(unseen[name]) if name in unseen else None) for name in order]


def _outcomes(
    question: Question, policies: Sequence[Policy], seeds: int, processes: int, progress: Progress
) -> dict[str, list[PolicyOutcome]]:
    """Of each policy, one for each seed."""
    found: dict[str, list[PolicyOutcome]] = {policy.name: [] for policy in policies}
    for number in range(seeds):
        seeded = msgspec.structs.replace(question, seed=question.seed + number)
        for outcome in compare(seeded, policies, processes, progress).policies:
            found[outcome.policy].append(outcome)
    return found
