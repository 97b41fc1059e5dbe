"""Writers of one file take turns in the order in which they asked."""

from __future__ import annotations

import gc
import threading

from db.sql.sqlite_write_lock import Turn, turn_of
from service.periodic import wait_until


def test_turns_come_in_the_order_of_asking() -> None:
    turn = Turn(exclusive=True)
    order: list[int] = []

    def write(number: int) -> None:
        assert turn.take_turn(timeout=10)
        order.append(number)
        turn.hand_on()

    assert turn.take_turn(timeout=10)
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=write, args=(number,)))
        threads[-1].start()
        assert wait_until(lambda: turn.waiting_count == len(threads), 90.0)
    turn.hand_on()
    for thread in threads:
        thread.join(10)

    assert order == [0, 1, 2, 3, 4]


def test_a_caller_giving_up_does_not_delay_others() -> None:
    turn = Turn(exclusive=True)
    assert turn.take_turn(timeout=10)

    assert not turn.take_turn(timeout=0.01)
    turn.hand_on()

    assert turn.take_turn(timeout=0.01)


def test_no_turns_exist_where_servers_have_locks() -> None:
    turn = Turn(exclusive=False)

    assert turn.take_turn(timeout=0.01)
    assert turn.take_turn(timeout=0.01)


def test_every_file_has_one_turn_while_in_use() -> None:
    first = turn_of("/some/file.db")
    first.writers.add(1)

    assert turn_of("/some/file.db") is first
    assert turn_of("/some/other.db") is not first
    del first
    gc.collect()
    assert turn_of("/some/file.db").writers == set()
