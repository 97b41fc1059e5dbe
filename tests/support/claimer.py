"""A scheduler process for tests of many: claims for requests of its own from four threads, and says how they were answered.

Arguments: the URL of an API database, and how many hosts of 5 vCPUs it has. It waits for a line on standard input before it begins.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from db.sql.engine import Database
from objects import errors, stored
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.fleet import CONTEXT, Site

REQUESTS = 60
THREADS = 4


def main(url: str, hosts: int) -> None:
    site = Site(Database(url), [fleet.node(f"h{n}", vcpus=5) for n in range(hosts)])
    scheduler = site.scheduler()
    asked = [site.leased(fleet.spec()) for _ in range(REQUESTS)]
    say("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda mine: ask_all(scheduler, mine), [asked[n::THREADS] for n in range(THREADS)])
        say(stored.dump_value([answer for some in answers for answer in some]))
    site.database.dispose_connections()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def ask_all(scheduler: SchedulerManager, asked: Sequence[RequestSpec]) -> list[str]:
    """The host of each, or why there is none."""
    answers: list[str] = []
    for spec in asked:
        try:
            [[selection, *_]] = scheduler.select_destinations(CONTEXT, spec, list(spec.fences))
            answers.append(selection.host)
        except errors.NoValidHost as refused:
            answers.append(str(refused))
    return answers


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
