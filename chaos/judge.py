"""The verdict of a run: what accounts for an ERROR is the script of its boot, or what was done to the region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from chaos.plan import MISSING_IMAGE
from chaos.weather import Weather, hypervisor_of
from cli.standalone.demo.boots import Expected, GroupPlan, PlannedBoot
from cli.standalone.demo.evidence import Evidence, InstanceState
from cli.standalone.demo.verdict import AcceptedBoot, Case, Judge, Violation
from compute.driver import Guest
from objects.cell import CELL0_UUID
from objects.group import GroupPolicy
from objects.instance import Attempt, FailureClass, Server, State
from objects.operation import OperationKind, OperationState, Outcome

CAUSE_WINDOW_S = 60.0
"""Seconds before something went wrong in which its cause is looked for."""
MIN_OUTAGE_S = 20.0
"""Seconds of those in which a host or cell must have been out of reach: silence of 30 seconds, some of them recovery, is death."""
BRIEF_OUTAGE_S = 5.0
"""The same for a spawn, which has 10 seconds."""


class ChaosJudge(Judge):
    """Holds it against what was done to the region, too."""

    def __init__(self, case: Case, evidence: Evidence, weather: Weather) -> None:
        super().__init__(case, evidence)
        self._weather = weather

    def _judge_more(self) -> Iterator[Violation]:
        yield from self._judge_unconfirmed()
        yield from self._judge_batches()

    def _judge_unconfirmed(self) -> Iterator[Violation]:
        """Each resize and migration is confirmed after a while. Other operations that are open are not at rest."""
        for operation in self._evidence.operations:
            if operation.state is OperationState.VERIFY:
                text = f"{operation.server_uuid}: its {operation.kind} {operation.uuid} still waits for its user"
                yield Violation(message=text, story=self.story_of(operation.server_uuid))

    def _judge_server(self, taken: AcceptedBoot, server: Server) -> str:
        expected = taken.boot.expected
        if server.uuid not in self._case.deleted:
            if server.state == "shelved" and not server.deleted:
                self.outcomes[expected, "shelved"] += 1
                return "" if any(act.name == "shelve" for act in taken.boot.acts) else "nobody shelved it, and it is"
            if server.uuid not in self._rows and (server.cell_uuid, server.state) == (CELL0_UUID, "error"):
                return self._judge_rowless(expected, server)
        return super()._judge_server(taken, server)

    def _judge_rowless(self, expected: Expected, server: Server) -> str:
        """It ended at its deadline while cell0 could not take its row: something else must have been out of reach, too."""
        dark = max(
            self._weather.api_outage(server.updated_at, CAUSE_WINDOW_S),
            self._weather.shortest_cell_outage(server.updated_at, CAUSE_WINDOW_S),
        )
        cause = "late, without cell0" if dark >= MIN_OUTAGE_S and (server.fault or "").startswith("Build timed out") else ""
        self.outcomes[expected, f"error: {cause or 'unexplained'}"] += 1
        return "" if cause else f"in ERROR in cell0 without a row: {server.fault}"

    # -- what explains an ERROR ------------------------------------------------------------------------------------------------

    def _cause_of(self, taken: AcceptedBoot, row: InstanceState) -> str:
        history, fault = row.instance.history, row.instance.fault or ""
        boot = taken.boot
        unexplained = [attempt for attempt in history if not self._is_explained(boot, row, attempt)]
        if unexplained or not fault:
            return ""
        if boot.all_or_nothing and fault.startswith("Rolled back: server "):
            return "rolled back"  # with one that failed: judged with the whole batch
        if boot.expected in (Expected.ABORTED, Expected.TOGETHER) and history and history[-1].failure.kind is FailureClass.REQUEST:
            return "scripted"
        if fault.startswith("No valid host was found"):
            return self._without_host(taken, row)
        if fault.startswith("Build timed out"):
            return self._lateness_cause(taken, row)
        if "maximum number of attempts" in fault or fault.startswith("Exhausted"):
            return "scripted" if boot.expected is Expected.EXHAUSTED else "hosts failed"
        return ""

    def _is_explained(self, boot: PlannedBoot, row: InstanceState, attempt: Attempt) -> bool:
        """Whether the script or a fault accounts for one failed attempt."""
        kind, at = attempt.failure.kind, attempt.failure.at
        hypervisor_was_hit = self._weather.was_touched(hypervisor_of(attempt.host), at, CAUSE_WINDOW_S)
        if kind in (FailureClass.RESTARTED, FailureClass.STOPPING):  # an agent without its hypervisor takes no orders
            return hypervisor_was_hit or self._weather.was_touched(attempt.host, at, CAUSE_WINDOW_S)
        if kind is FailureClass.DEADLINE:
            return True  # judged with the whole
        if attempt.failure.error == "HostDown":
            silent = self._weather.host_outage(attempt.host, at, CAUSE_WINDOW_S) >= MIN_OUTAGE_S
            return silent or self._weather.called_dead(attempt.host, at, CAUSE_WINDOW_S)
        if kind is FailureClass.HOST and hypervisor_was_hit:
            return True
        if boot.image == MISSING_IMAGE and kind is FailureClass.REQUEST:
            return True
        if attempt.failure.error == "SpawnTimeout" and boot.simulated != "hang":
            return self._weather.host_outage(attempt.host, at, CAUSE_WINDOW_S) >= BRIEF_OUTAGE_S
        if kind is FailureClass.NO_ROOM and (attempt.number > 1 or self._retried_on[attempt.host] - {row.instance.uuid}):
            return True  # alternates are not claimed
        # NO_ROOM: a guest that another attempt left behind was still there. What is scripted to fail would have failed on any host.
        kinds = (FailureClass.HOST, FailureClass.POLICY, FailureClass.REQUEST, FailureClass.NO_ROOM)
        return boot.simulated is not None and kind in kinds

    def _without_host(self, taken: AcceptedBoot, row: InstanceState) -> str:
        if taken.boot.expected is Expected.NO_VALID_HOST:
            return "scripted" if row.cell == "cell0" else ""
        ended = self._servers[row.instance.uuid].updated_at
        if self._weather.shortest_cell_outage(ended, CAUSE_WINDOW_S) >= MIN_OUTAGE_S:
            return "no cell was reachable"
        if all(self._weather.takes_none(host, ended) for host in self._weather.hosts):
            return "no host took any"
        group = taken.boot.group
        if group is not None and group.policy is GroupPolicy.AFFINITY:
            hosts = self._hosts_ever_of(group.name)
            if any(self._weather.was_closed(host, ended, CAUSE_WINDOW_S) for host in hosts):
                return "its group's host took none"
            dark = [host for host in hosts if self._weather.seen_host_outage(host, ended, CAUSE_WINDOW_S) >= MIN_OUTAGE_S]
            return "its group's host was down" if dark else ""
        return ""

    def _lateness_cause(self, taken: AcceptedBoot, row: InstanceState) -> str:
        """A deadline passed: the cell, its host or the API level must have been out of reach for part of the time."""
        if row.cell == "cell0" or not row.instance.history:
            ended = self._servers[row.instance.uuid].updated_at
            dark = max(self._weather.api_outage(ended, CAUSE_WINDOW_S), self._weather.shortest_cell_outage(ended, CAUSE_WINDOW_S))
        else:
            ended = row.instance.history[-1].failure.at
            dark = max(
                self._weather.api_outage(ended, ended - taken.at),  # it may have been handed over when its time was almost over
                self._weather.cell_outage(row.cell, ended, CAUSE_WINDOW_S),
                self._weather.host_outage(row.instance.host or "", ended, CAUSE_WINDOW_S),
            )
        stage = (row.instance.fault or "").removeprefix("Build timed out in ").partition(".")[0]
        return f"late in {stage}, out of reach" if dark >= MIN_OUTAGE_S else ""

    # -- groups ----------------------------------------------------------------------------------------------------------------

    def _group_members(self, group: str) -> set[str]:
        return {uuid for taken in self._case.taken if taken.boot.group and taken.boot.group.name == group for uuid in taken.uuids}

    def _hosts_ever_of(self, group: str) -> set[str]:
        """Where any body of a member of a group is or was."""
        members = self._group_members(group)
        return {row.instance.host or "" for row in self._evidence.rows if row.instance.uuid_of_server in members}

    def _evacuated_hosts(self, group: str) -> set[str]:
        """The hosts from which members of a group were evacuated."""
        members = self._group_members(group)
        moves = (
            operation
            for operation in self._evidence.history
            if operation.kind is OperationKind.EVACUATE and operation.outcome is Outcome.DONE
        )
        return {move.source_host or "" for move in moves if move.server_uuid in members}

    def _judged_hosts(self, group: GroupPlan) -> list[str]:
        hosts = super()._judged_hosts(group)
        if group.policy is GroupPolicy.AFFINITY:  # members that an evacuation has left behind are lost to the others
            hosts = [host for host in hosts if host not in self._evacuated_hosts(group.name)]
        return hosts

    def _judge_batches(self) -> Iterator[Violation]:
        """All-or-nothing batches: all are ACTIVE, or none is and one of them says why."""
        for taken in self._case.taken:
            if not taken.boot.all_or_nothing:
                continue
            rows = [self._rows[uuid].instance for uuid in taken.uuids if uuid in self._rows]
            failed = [row for row in rows if row.state is State.ERROR]
            rolled_back = [row for row in failed if (row.fault or "").startswith("Rolled back: server ")]
            if failed and (len(failed) < len(rows) or len(rolled_back) == len(failed)):
                text = (
                    f"{taken.boot.request_name} ({taken.uuids[0]}): of {len(rows)} that stand or fall together "
                    f"{len(failed)} are in ERROR"
                )
                text += f", {len(rolled_back)} of them rolled back"
                yield Violation(message=text, story=tuple(line for row in rows for line in self.story_of(row.uuid)))


def overfull_hosts(guests: Mapping[str, Sequence[Guest]], room: tuple[int, int]) -> Iterator[Violation]:
    """Hosts with more guests than fit. ``room``: the vCPUs and MiB that each of them offers."""
    for host, held in guests.items():
        taken = sum(guest.vcpus for guest in held), sum(guest.memory_mb for guest in held)
        if taken[0] > room[0] or taken[1] > room[1]:
            yield Violation(message=f"{host} has room for {room[0]} vCPUs and {room[1]} MiB, and holds {taken[0]} and {taken[1]}")


def count_attempts(evidence: Evidence) -> Counter[int]:
    """How many instances took how many attempts."""
    return Counter(row.instance.attempt for row in evidence.rows if row.instance.state is State.ACTIVE)


def count_totals(evidence: Evidence) -> dict[str, int]:
    """How many there are of what must come to the same number."""
    return {
        "ACTIVE rows": sum(row.instance.state is State.ACTIVE for row in evidence.rows),
        "guests": sum(len(uuids) for uuids in evidence.guests.values()),
        "disks": sum(len(uuids) for uuids in evidence.disks.values()),
        "claims": len(evidence.claims),
    }
