"""What a run says: what was asked, what was done to the region, what came of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import requests

from chaos import logs
from chaos.faults import Faults
from chaos.judge import count_attempts, count_totals
from chaos.load import Load
from chaos.supervise import Supervisor
from cli.standalone.demo.evidence import Evidence
from deploy import ports
from deploy.local.folder import Folder, Notes
from deploy.local.health import State

Say = Callable[[str], None]
METRICS_TIMEOUT_S = 5.0
_DATABASE_ERROR = re.compile(r'superconductor_database_errors_total\{database="([^"]*)",trouble="([^"]*)"\} (\S+)')


def show_load(say: Say, load: Load) -> None:
    servers = sum(len(taken.uuids) for taken in load.taken)
    say(f"requests: {len(load.taken)} boots of {servers} servers accepted, {len(load.deleted)} servers deleted")
    say(f"  answers: {_format_counts(load.answers)}")
    say(f"  times that a request was sent: {_format_counts(load.tries)}")
    waits = sorted(load.waits) or [0.0]
    middle, late = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    say(f"  seconds to the answer that counts: median {middle:.2f}, 99th percentile {late:.1f}, at most {waits[-1]:.1f}")


def show_faults(say: Say, faults: Faults, supervisor: Supervisor) -> None:
    kinds = Counter(str(incident.kind) for incident in faults.incidents)
    pairs = {(incident.kind, incident.target) for incident in faults.incidents}
    say(f"faults: {_format_counts(kinds)}; {len(pairs)} distinct pairs of kind and target")
    say(f"  left out, as another fault was at the same place: {faults.skipped}")
    say(f"  masters started again: {supervisor.restarts.total()}")
    say(f"  operator's commands, with their exit statuses: {_format_counts(faults.commands.ends)}")


def show_stalls(say: Say, stalls: Sequence[tuple[float, float]]) -> None:
    say(f"the machine stood still: {len(stalls)} times, {sum(ended - began for began, ended in stalls):.0f} s in all")


def show_rolls(say: Say, done: Mapping[str, int]) -> None:
    say(f"members that changed their release: {_format_counts(done)}")


def show_health(say: Say, said: Mapping[State, int]) -> None:
    say(
        "health, as every process was asked every few seconds: "
        f"{_format_counts({str(state): count for state, count in said.items()})}"
    )


def show_retries(say: Say, notes: Notes) -> None:
    """As the processes that live now counted them."""
    addresses = [f"http://{ports.HOST}:{port}/metrics" for port in notes.monitoring_ports]
    counted: Counter[str] = Counter()
    for address in addresses:
        try:
            text = requests.get(address, timeout=METRICS_TIMEOUT_S).text
        except requests.RequestException:
            continue
        for line in text.splitlines():
            if match := _DATABASE_ERROR.match(line):
                counted[f"{'api' if match[1] == 'api' else 'cells'}, {match[2]}"] += int(float(match[3]))
    say(f"transactions that failed at first: {_format_counts(counted)}")


def show_outcomes(say: Say, outcomes: Mapping[tuple[str, str], int], evidence: Evidence) -> None:
    say("outcomes, expected and come:")
    for (expected, came), count in sorted(outcomes.items()):
        say(f"  {expected:>20}  {came:<45} {count:>6}")
    say(f"attempts of ACTIVE instances: {_format_counts(count_attempts(evidence))}")
    ended = Counter(f"{operation.kind} {operation.outcome}" for operation in evidence.history)
    say(f"operations: {_format_counts(ended)}; {len(evidence.operations)} are open")
    say("at rest, " + ", ".join(f"{name}: {count}" for name, count in count_totals(evidence).items()))


def show_logs(say: Say, folder: Folder) -> None:
    counts = logs.count_tracebacks(folder.log)
    if counts:
        say("errors that were logged with a traceback:")
        for text, count in counts.most_common(12):
            say(f"  {count:>6}  {text}")


def _format_counts(counter: Mapping[str, int] | Mapping[int, int]) -> str:
    return ", ".join(f"{key}: {count}" for key, count in sorted(counter.items())) or "none"
