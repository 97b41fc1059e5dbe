"""Turns of writing: SQLite has one writer at a time, and its own way of waiting is to sleep and try again."""

from __future__ import annotations

import threading
import weakref
from collections import deque


class Turn:
    """A lock that is handed on in the order of asking, with the threads that write under it known.

    A plain ``threading.Lock`` may be taken again at once by whoever just released it: with eight writers the unluckiest waited 20
    times longer than here. Handing on costs about a tenth of the throughput then.
    """

    def __init__(self, *, exclusive: bool) -> None:
        self.writers: set[int] = set()  # identifiers of the threads inside a write transaction
        self._exclusive = exclusive
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def waiting_count(self) -> int:
        """How many threads wait for their turn."""
        return len(self._waiting)

    def take_turn(self, timeout: float) -> bool:
        """Wait for the turn, ``timeout`` seconds at most; return whether it is ours now."""
        if not self._exclusive:
            return True
        with self._mutex:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            if mine.acquire(timeout=timeout):
                return True
        except BaseException:  # Ctrl-C: the turn must not be given to a thread that has ended
            if not self._leave_queue(mine):
                self.hand_on()
            raise
        return not self._leave_queue(mine)

    def _leave_queue(self, mine: threading.Lock) -> bool:
        """Stop waiting; return False if the turn came to us in that very moment."""
        with self._mutex:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return True
            return False

    def hand_on(self) -> None:
        """End the turn: the thread that has waited longest has it now."""
        if not self._exclusive:
            return
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


# The only module state in this package. A file has one writer, however many Database objects of this process open it, so
# the turn belongs to none of them. An entry disappears with the last Database of its file.
_TURNS: weakref.WeakValueDictionary[str, Turn] = weakref.WeakValueDictionary()
_TURNS_LOCK = threading.Lock()


def turn_of(path: str) -> Turn:
    """The turn of the SQLite file with this real path."""
    with _TURNS_LOCK:
        turn = _TURNS.get(path)
        if turn is None:
            turn = _TURNS[path] = Turn(exclusive=True)
        return turn
