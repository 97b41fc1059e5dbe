"""Compare the host's guests and builds with the cell's records, and act on the differences.

The agent reads the records in one call per period, or in every ``PERIODS_OF_SETTLED``th while nothing changes on its host. They are
a snapshot that may be stale, so they only decide WHAT TO ASK. The
transaction behind a report always decides whether a guest may stay:
- A guest that the snapshot confirms (ACTIVE, with the same fence, attempt and builder, as ``active`` would find) is not reported.
- Any other guest is reported ``active`` again. It is destroyed if the answer proves that it is superseded.
- A build under way that is not BUILDING on record asks ``accept`` again. It is cancelled if that is refused.
- A recorded build without an entry here is reported ``failed`` under the recorded builder. The cell refuses this if the record has
  moved on.

When the agent starts, it reports every guest, confirmed or not.

A guest may have another power than its latest task gave it, because its host lost power or its own system stopped it. At the first
audit of an agent's start, every such guest is brought back to the power on record, or at the first one after a task that was under
way. Later only a guest that runs and must not. In both cases the cell has to grant it (``compute/tasks.py``). After a task that
failed, only a guest that is to be on is brought back: nobody knows which power of the others is right.

Later a guest that is off is reported instead (``power``): its own system may have stopped it. So is one at the start if
``resume_guests_on_start`` is false. A guest that the driver does not list is never reported off.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from compute.agent import Agent
from compute.build import Phase
from compute.driver import ComputeDriver, Guest
from compute.guests import Guests, is_record_of
from objects.base import Object
from objects.build import DeleteOrder, Holding
from objects.context import RequestContext
from objects.instance import State
from objects.task import Power, TaskKind, TaskOrder, TaskState
from rpc.cell_conductor import CellConductorClient

LOG = logging.getLogger(__name__)

PERIODS_OF_SETTLED = 5
"""Periods in which a host without any change reads its records once. Only a change of the records themselves is found later then,
for instance that the cell's database was restored: whatever the cell wants of the host, it orders, and orders again."""


class Findings(Object, frozen=True, kw_only=True):
    """The differences. ``unconfirmed_guests``: uuids of guests that the records do not confirm. ``unconfirmed_builds``: the same of
    builds in progress. ``deleted``: instances that the cell is deleting. ``handed_back``: recorded builds without an entry here.
    ``missing``: uuids that are ACTIVE on record without a guest here.
    """

    unconfirmed_guests: tuple[str, ...] = ()
    unconfirmed_builds: tuple[str, ...] = ()
    deleted: tuple[DeleteOrder, ...] = ()
    handed_back: tuple[Holding, ...] = ()
    missing: frozenset[str] = frozenset()


def compare_entries(entries: Mapping[str, tuple[Phase, Guest | None]], holdings: Iterable[Holding]) -> Findings:
    """The differences between an agent's entries and the cell's records of its host."""
    records = {holding.instance_uuid: holding for holding in holdings}
    return Findings(
        unconfirmed_guests=tuple(
            uuid
            for uuid, (phase, guest) in entries.items()
            if phase is Phase.RUNNING and guest is not None and not is_record_of(records.get(uuid), guest, State.ACTIVE)
        ),
        unconfirmed_builds=tuple(
            uuid
            for uuid, (phase, guest) in entries.items()
            if phase in (Phase.QUEUED, Phase.SPAWNING)
            and guest is not None
            and not is_record_of(records.get(uuid), guest, State.BUILDING)
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


class PowerFindings(Object, frozen=True, kw_only=True):
    """``restored``: tasks that are over, to whose power their guests are to be brought back. ``off``: uuids of guests that do not
    run, although the cell's records say that they do. ``undecided``: uuids of those still to be compared, as a task is under way.
    """

    restored: tuple[TaskOrder, ...] = ()
    off: tuple[tuple[Guest, int], ...] = ()
    undecided: frozenset[str] = frozenset()


def compare_power(
    guests: Sequence[Guest], holdings: Iterable[Holding], *, uncompared: Collection[str], resumes: bool = True
) -> PowerFindings:
    """The guests that have another power than their record, with no task under way.

    ``uncompared``: uuids of guests that this start of the agent has not compared yet. ``resumes``: whether it brings those of them
    back that are to run.
    """
    records = {holding.instance_uuid: holding for holding in holdings}
    lost = [
        (guest, record)
        for guest in guests
        if (record := records.get(guest.uuid)) is not None
        and is_record_of(record, guest, State.ACTIVE)
        and record.state == State.ACTIVE
        and (record.task_state == TaskState.DONE or (record.task_state == TaskState.FAILED and record.power == Power.ON))
        and record.power in set(Power) - {Power.INCOMING}  # it may have received its guest, which then runs
        and record.power != guest.power
    ]
    off = [
        (guest, record.task_number)
        for guest, record in lost
        if guest.power is Power.OFF
        and Power(record.power).uses_disk
        and record.task_state == TaskState.DONE
        and (guest.uuid not in uncompared or not resumes)
    ]
    reported = {guest.uuid for guest, _ in off}
    return PowerFindings(
        restored=tuple(
            TaskOrder(
                instance_uuid=guest.uuid,
                fence=guest.fence,
                attempt=guest.attempt,
                number=record.task_number,
                kind=TaskKind.POWER,
                power=Power(record.power),
            )
            for guest, record in lost
            if (guest.uuid in uncompared and guest.uuid not in reported)
            or (record.task_state == TaskState.DONE and guest.power.uses_disk and record.power != Power.ON)
        ),
        off=tuple(off),
        undecided=frozenset(
            uuid for uuid in uncompared if (matching := records.get(uuid)) is not None and matching.task_state not in _TASK_OVER
        ),
    )


_TASK_OVER = (TaskState.DONE, TaskState.FAILED)


class GuestAudit:
    """The comparison as periodic work of one agent."""

    def __init__(
        self,
        agent: Agent,
        guests: Guests,
        driver: ComputeDriver,
        client: CellConductorClient,
        context: RequestContext,
        *,
        resumes: bool = True,
    ) -> None:
        """``resumes``: bring guests back at the start that are to run."""
        self._agent = agent
        self._guests = guests
        self._driver = driver
        self._client = client
        self._context = context
        self._resumes = resumes
        self._missing: frozenset[str] = frozenset()
        self._undecided: frozenset[str] | None = None  # None: this start has compared no guest yet
        self._agreed: tuple[Mapping[str, tuple[Phase, Guest | None]], Sequence[Guest]] | None = None
        """The entries and guests of the latest comparison, if it found nothing to do."""

    @property
    def found_nothing(self) -> bool:
        """Whether the latest comparison found nothing to do."""
        return self._agreed is not None

    def is_settled(self) -> bool:
        """Whether the latest comparison found nothing to do, and nothing has changed on this host since. Asks the driver only."""
        if self._agreed is None or self._guests.list_unaccounted():
            return False
        return self._agreed == (self._guests.read_phases(), self._driver.guests())

    def run(self) -> None:
        """Ask the cell once. Raises the errors of the call: without an answer nothing is concluded and every guest stays."""
        holdings = self._client.holdings(self._context, self._guests.host)
        before = self._guests.list_unaccounted()
        self._guests.on_record({holding.instance_uuid: holding for holding in holdings})
        has_regained = self._guests.list_unaccounted() != before  # records that were lost; the stats count those
        entries = self._guests.read_phases()
        guests = self._driver.guests()
        self._agent.report_found([guest for guest in guests if guest.uuid not in entries])
        findings = compare_entries(entries, holdings)
        self._agent.recheck_guests(findings.unconfirmed_guests)
        self._agent.recheck_builds(findings.unconfirmed_builds)
        self._agent.delete(findings.deleted)
        for holding in findings.handed_back:
            self._agent.hand_back(holding.instance_uuid, holding.fence, holding.attempt, holding.builder or "")
        self._say_missing(findings.missing)
        uncompared = self._undecided if self._undecided is not None else {guest.uuid for guest in guests}
        powers = compare_power(guests, holdings, uncompared=uncompared, resumes=self._resumes)
        self._agent.do_tasks(powers.restored, restores=True)
        self._agent.report_stopped(powers.off)
        self._undecided = powers.undecided
        agrees = findings == Findings() and powers == PowerFindings() and all(guest.uuid in entries for guest in guests)
        idle = all(phase is Phase.RUNNING for phase, _ in entries.values())
        self._agreed = (entries, guests) if agrees and idle and not has_regained else None

    def _say_missing(self, missing: frozenset[str]) -> None:
        """Log a missing guest when it is missing for the second time in a row: at first, its delete may be under way."""
        for uuid in sorted(missing & self._missing):
            LOG.error("Instance %s is ACTIVE on record, but this host has no guest of it: delete it, or restore its guest", uuid)
        self._missing = missing
