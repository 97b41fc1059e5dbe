"""Gather heartbeats of agents, so that many cost one statement."""

from __future__ import annotations

from collections.abc import Sequence

from conductor.orders import OrderSender, ask_to_introduce
from db.cell import services
from db.cell.services import ArrivedBeat, Beat
from db.sql.engine import CellDatabase
from service.batching import RoundBatcher

HEARTBEATS_LIMIT = 500
"""Heartbeats written with one statement."""


class GatheredBeats:
    """Heartbeats are written in rounds, ``pace`` seconds apart. Those of a host that stops must not wait: do not add them.

    Whoever sends one from a machine that was not admitted is asked to introduce itself.
    """

    def __init__(self, database: CellDatabase, sender: OrderSender, pace: float) -> None:
        self._database = database
        self._sender = sender
        self._rounds: RoundBatcher[ArrivedBeat] = RoundBatcher("heartbeats", self._write, pace=pace, limit=HEARTBEATS_LIMIT)

    def add_beats(self, beats: Sequence[Beat]) -> None:
        """Write these heartbeats with the next round. Errors are logged: the agents will send others."""
        now = self._database.current_time()
        self._rounds.add_items([ArrivedBeat(beat=beat, at=now) for beat in beats])

    def stop(self) -> None:
        self._rounds.stop()

    def _write(self, beats: Sequence[ArrivedBeat]) -> None:
        ask_to_introduce(self._sender, self._database.write(services.gathered_heartbeats, beats))
