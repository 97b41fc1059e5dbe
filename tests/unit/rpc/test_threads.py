"""The threads that handle messages."""

from __future__ import annotations

import threading

from rpc.threads import Threads
from service.periodic import wait_until

PATIENCE = 90.0


def test_work_is_concurrent_up_to_the_limit() -> None:
    threads, meet, done = Threads(3, "handlers"), threading.Barrier(3, timeout=PATIENCE), list[int]()

    def work(number: int) -> None:
        meet.wait()
        done.append(number)

    for number in range(9):
        threads.submit(work, number)
    threads.shutdown(wait=True)
    assert sorted(done) == list(range(9))
    assert wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("handlers")], PATIENCE)


def test_one_after_the_other_needs_one_thread() -> None:
    threads, names = Threads(5), set[int]()
    for _ in range(20):
        ended = threading.Event()

        def work(ended: threading.Event = ended) -> None:
            names.add(threading.get_ident())
            ended.set()

        threads.submit(work)
        assert ended.wait(PATIENCE)
    threads.shutdown(wait=True)
    assert len(names) <= 2, "a second one if the first was not back yet"
