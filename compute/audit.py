"""Compare the host with what its cell has on record, and set going what does not agree.

The records are read in one call per period and are a snapshot that may be stale by the time it is looked at, so they only
decide WHAT TO ASK. Whether a guest may stay is always decided by the transaction behind a report: a guest that the snapshot
confirms (ACTIVE, and the same fence, attempt and builder: exactly what ``active`` would find) has nothing to ask; any other is
reported ``active`` once more and destroyed if the answer proves that it is superseded; a build under way that is not BUILDING on
record is asked for with ``accept`` once more and cancelled if that is refused; a build that nobody here has is reported ``failed``
under the builder that the record names, which the cell refuses if the record has moved on. At the start of the agent every guest is
reported, confirmed or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from compute.agent import Agent
from compute.build import Phase
from compute.driver import ComputeDriver, Guest
from compute.guests import Guests, confirms
from objects.base import Object
from objects.build import DeleteOrder, Holding
from objects.context import RequestContext
from objects.instance import State
from rpc.cell_conductor import CellConductorClient

LOG = logging.getLogger(__name__)


class Findings(Object, frozen=True, kw_only=True):
    """What does not agree. ``doubted``: guests, ``questioned``: builds under way that the records do not show.

    ``missing``: uuids that are ACTIVE on record without a guest here.
    """

    doubted: tuple[str, ...] = ()
    questioned: tuple[str, ...] = ()
    deleted: tuple[DeleteOrder, ...] = ()
    handed_back: tuple[Holding, ...] = ()
    missing: frozenset[str] = frozenset()


def compare(entries: Mapping[str, tuple[Phase, Guest | None]], holdings: Iterable[Holding]) -> Findings:
    """What to do about an agent's entries and the cell's records of its host."""
    records = {holding.instance_uuid: holding for holding in holdings}
    return Findings(
        doubted=tuple(
            uuid
            for uuid, (phase, guest) in entries.items()
            if phase is Phase.RUNNING and guest is not None and not confirms(records.get(uuid), guest, State.ACTIVE)
        ),
        questioned=tuple(
            uuid
            for uuid, (phase, guest) in entries.items()
            if phase in (Phase.QUEUED, Phase.SPAWNING)
            and guest is not None
            and not confirms(records.get(uuid), guest, State.BUILDING)
        ),
        deleted=tuple(
            DeleteOrder(instance_uuid=record.instance_uuid, attempt=record.attempt, fence=record.fence)
            for record in records.values()
            if record.state == State.DELETING
        ),
        handed_back=tuple(
            record for record in records.values() if record.state == State.BUILDING and record.instance_uuid not in entries
        ),
        missing=frozenset(uuid for uuid, record in records.items() if record.state == State.ACTIVE and uuid not in entries),
    )


class GuestAudit:
    """The comparison as a periodic piece of work of one agent."""

    def __init__(
        self, agent: Agent, guests: Guests, driver: ComputeDriver, client: CellConductorClient, context: RequestContext
    ) -> None:
        self._agent = agent
        self._guests = guests
        self._driver = driver
        self._client = client
        self._context = context
        self._missing: frozenset[str] = frozenset()

    def run(self) -> None:
        """Ask the cell once. Raises what the call raises: nothing is concluded from no answer, every guest stays."""
        holdings = self._client.holdings(self._context, self._guests.host)
        self._guests.on_record({holding.instance_uuid: holding for holding in holdings})
        entries = self._guests.snapshot()
        unknown = [guest for guest in self._driver.guests() if guest.uuid not in entries]
        self._agent.found(unknown)
        findings = compare(entries, holdings)
        self._agent.doubt(findings.doubted)
        self._agent.question(findings.questioned)
        self._agent.delete(findings.deleted)
        for holding in findings.handed_back:
            self._agent.hand_back(holding.instance_uuid, holding.fence, holding.attempt, holding.builder or "")
        self._say_missing(findings.missing)

    def _say_missing(self, missing: frozenset[str]) -> None:
        """Said at the second sight: at the first it may be a guest whose delete is on its way."""
        for uuid in sorted(missing & self._missing):
            LOG.error("Instance %s is ACTIVE on record, but this host has no guest of it: delete it, or restore its guest", uuid)
        self._missing = missing
