"""A sweep of hosts that are called dead, while time passes only as a test says."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cells.registry import CellRegistry
from conductor.evacuate import DeadHostSweep
from db.api.claims.claims import Ledger
from db.cell import services
from db.cell.services import Beat
from objects import errors
from objects.process import AGENT_BINARY

DOWN_TIME_S = 60.0
LOOK_S = 20.0


class WatchedHosts:
    """Looks at the hosts of all cells. Hosts that are called dead are silent, and the others report, unless told otherwise."""

    def __init__(self, ledger: Ledger, registry: CellRegistry) -> None:
        self._registry = registry
        self._now = 0.0
        self._sweep = DeadHostSweep(ledger, registry, DOWN_TIME_S, clock=lambda: self._now)

    def look(self) -> None:
        self._sweep.evacuate_dead()

    def pass_by(self, seconds: float, *, reporting: Sequence[str] = ()) -> None:
        """Time passes, with a look every 20 seconds. ``reporting``: hosts that report although they are called dead."""
        for _ in range(int(seconds / LOOK_S)):
            self._now += LOOK_S
            for cell in self._registry.list_cells():
                with contextlib.suppress(errors.CellUnavailable):
                    agents = [seen.service for seen in cell.read(services.list_seen, AGENT_BINARY)]
                    heard = [agent for agent in agents if not agent.forced_down or agent.host in reporting]
                    beats = [Beat(host=agent.host, binary=AGENT_BINARY, version=agent.version) for agent in heard]
                    cell.write(services.record_heartbeats, beats)
            self.look()

    def wait_for_silence(self) -> None:
        """Until hosts that are called dead have been silent long enough."""
        self.look()
        self.pass_by(2 * DOWN_TIME_S)
