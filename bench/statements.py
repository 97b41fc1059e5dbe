"""Which statements and messages a region of processes runs, one by one by role: when nothing happens, and for one boot alone.

    python bench/statements.py              the region of bench/region.py, two minutes
    python bench/statements.py --cells 1 --conductors 1 --agents 2 ...    another one
    python bench/statements.py --smoke      the same paths in a small region; figures not to be quoted

MariaDB counts: its performance schema keeps every statement with its connection, and the connection names its process. BEGIN,
COMMIT, ROLLBACK and SET are not counted, as in bench/region.py. RabbitMQ counts what is put into queues: an answer is one more.
The rates of an idle region are taken off the counts per boot, statement by statement. A statement of a boot that also runs when the
region is idle is therefore counted by its surplus.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._counters import Meter, subtract_values
from bench._load import SETTLE_S
from bench._place import SMALL, Client, CountingBacking, running_region
from bench._script import EVERY, parser_of, print_table
from deploy.local.region import Region
from deploy.local.shape import Shape

TEXT_WIDTH = 110
FORGET = "TRUNCATE performance_schema.events_statements_history_long"
READ = """
SELECT attrs.attr_value, events.current_schema, events.digest_text, COUNT(*)
FROM performance_schema.events_statements_history_long AS events
LEFT JOIN performance_schema.threads AS threads ON threads.thread_id = events.thread_id
LEFT JOIN performance_schema.session_connect_attrs AS attrs
  ON attrs.processlist_id = threads.processlist_id AND attrs.attr_name = '_pid'
WHERE events.event_name LIKE 'statement/sql/%' AND events.current_schema IS NOT NULL
GROUP BY 1, 2, 3
"""
HISTORY_SIZE = "SELECT @@performance_schema_events_statements_history_long_size"
WORK = ("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "(SELECT")
"""How statements begin that are not the end or the beginning of a transaction, or a setting."""

Rates = Mapping[tuple[str, str, str], float]
"""Statements by (role, database, text)."""
Measured = tuple[Rates, Mapping[str, float], Mapping[str, float]]
"""Statements; messages by kind; CPU ms by role."""


class Listener:
    """Statements of the region's processes, by role."""

    def __init__(self, region: Region, meter: Meter) -> None:
        self._region = region
        self._meter = meter
        self._limit = int(meter.query_rows(HISTORY_SIZE)[0][0])

    def forget_statements(self) -> None:
        self._meter.query_rows(FORGET)

    def read_statements(self) -> Counter[tuple[str, str, str]]:
        """Those since ``forget_statements``. Fails if there were more than the server keeps."""
        roles = self._meter.role_by_pid()
        counts: Counter[tuple[str, str, str]] = Counter()
        total = 0
        for pid, schema, text, number in self._meter.query_rows(READ):
            total += int(number)
            if str(text).upper().startswith(WORK):
                counts[roles.get(int(pid or 0), "of closed connections"), str(schema), " ".join(str(text).split())] += int(number)
        assert total < self._limit, f"more than {self._limit} statements: the server has forgotten some"
        return counts


def measure_idle(listener: Listener, meter: Meter, seconds: float) -> Measured:
    """Per second: statements, messages, and CPU ms by role."""
    time.sleep(SETTLE_S)
    counts, asked_at = meter.read_counts(), time.monotonic()
    cpu, begun = meter.cpu_by_role(), time.monotonic()
    listener.forget_statements()
    time.sleep(seconds)  # what is counted meanwhile runs by the clock
    statement_counts, taken = listener.read_statements(), time.monotonic() - begun
    used = subtract_values(meter.cpu_by_role(), cpu)
    messages, answered = meter.read_counts().subtract_counts(counts).messages, time.monotonic()  # asking the broker takes seconds
    return (
        {key: n / taken for key, n in statement_counts.items()},
        {key: n / (answered - asked_at) for key, n in messages.items()},
        {role: n * 1000 / taken for role, n in used.items()},
    )


def measure_boots(listener: Listener, meter: Meter, client: Client, number: int, still: Measured) -> Measured:
    """Per boot, one after the other, without what an idle region runs in the same time."""
    counts, asked_at = meter.read_counts(), time.monotonic()
    cpu, begun = meter.cpu_by_role(), time.monotonic()
    listener.forget_statements()
    for done in range(number):
        client.boot_servers(f"alone{done}-")
        meter.wait_active("alone", done + 1, pause=0.02)
    used, boot_seconds = subtract_values(meter.cpu_by_role(), cpu), time.monotonic() - begun
    time.sleep(SETTLE_S)
    statement_counts, taken = listener.read_statements(), time.monotonic() - begun
    messages, answered = meter.read_counts().subtract_counts(counts).messages, time.monotonic()
    rates, sent, idle_cpu = still
    return (
        {key: (n - rates.get(key, 0.0) * taken) / number for key, n in statement_counts.items()},
        {key: (n - sent.get(key, 0.0) * (answered - asked_at)) / number for key, n in messages.items()},
        {role: (n * 1000 - idle_cpu.get(role, 0.0) * boot_seconds) / number for role, n in used.items()},
    )


def show_rates(console: Console, title: str, rates: Measured, least: float) -> None:
    """Print the table. Rows below ``least`` are only in the sums."""
    statements, messages, cpu = rates
    sums: defaultdict[str, float] = defaultdict(float)
    for (role, _, _), number in statements.items():
        sums[role] += number
    rows = [
        (shorten_statement(text), f"{role}, {database}", f"{number:.2f}")
        for (role, database, text), number in sorted(statements.items(), key=lambda item: (item[0][0], -item[1]))
        if number >= least
    ]
    rows += [("statements", role, f"{number:.2f}") for role, number in sorted(sums.items())]
    rows.append((EVERY, "statements", f"{sum(sums.values()):.2f}"))
    rows += [(kind, "", f"{number:.2f}") for kind, number in sorted(messages.items()) if number >= least]
    rows.append((EVERY, "messages", f"{sum(messages.values()):.2f}"))
    rows += [("CPU ms", role, f"{number:.1f}") for role, number in sorted(cpu.items())]
    rows.append((EVERY, "CPU ms", f"{sum(cpu.values()):.1f}"))
    print_table(console, title, ("statement or messages", "role and database", "number"), rows)


def shorten_statement(text: str) -> str:
    """The statement without its list of columns."""
    text = re.sub(r"^SELECT .*? FROM ", "SELECT .. FROM ", text.replace("`", "").replace(" . ", "."))
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 2] + ".."


def main() -> None:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--conductors", type=int, default=2, help="of each cell")
    parser.add_argument("--agents", type=int, default=10, help="of each cell")
    parser.add_argument("--twins", type=int, default=2, help="APIs, super conductors and schedulers")
    parser.add_argument("--calm", type=float, default=60.0, help="seconds after the first boot before anything is counted")
    parser.add_argument("--idle", type=float, default=40.0, help="seconds")
    parser.add_argument("--boots", type=int, default=30)
    options = parser.parse_args()
    console = Console(width=180)
    shape = Shape(
        cells=options.cells,
        apis=options.twins,
        supers=options.twins,
        schedulers=options.twins,
        conductors=options.conductors,
        agents=options.agents,
    )
    seconds, number = options.idle, options.boots
    if options.smoke:
        options.calm = SETTLE_S
        shape, seconds, number = SMALL, 2.0, 2
    with running_region(shape, smoke=options.smoke, backing=CountingBacking) as (region, meter, client):
        listener = Listener(region, meter)
        client.boot_servers("warm")
        time.sleep(options.calm)  # pauses grow until then
        still = measure_idle(listener, meter, seconds)
        show_rates(console, "Idle, per second", still, 0.01)
        show_rates(console, "One boot alone", measure_boots(listener, meter, client, number, still), 0.05)


if __name__ == "__main__":
    main()
