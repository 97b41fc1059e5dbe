"""The verdict: every accepted server is exactly one ACTIVE instance, or one ERROR for a cause that was scripted or inflicted.

``cli/standalone/demo/evidence.py`` judges claims, rows, guests and quotas. This module judges what may explain an ERROR: what was
done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from chaos.load import AcceptedBoot
from chaos.plan import MISSING_IMAGE, Boot, Expected
from chaos.weather import Weather, hypervisor_of
from cli.standalone.demo.evidence import Evidence, InstanceState, list_leftovers, misplaced_reason
from compute.driver import Guest
from objects.base import Object
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


class Case(Object, frozen=True, kw_only=True):
    """What was asked for and got an answer: ``taken`` boots, and the uuids whose delete was answered."""

    taken: tuple[AcceptedBoot, ...]
    deleted: frozenset[str]


class Violation(Object, frozen=True, kw_only=True):
    """Something that must not be, and what is known of the server that it concerns."""

    what: str
    story: tuple[str, ...] = ()


class Judge:
    """Holds what is written at one moment against what was asked for and what was done. It reads nothing."""

    def __init__(self, case: Case, evidence: Evidence, weather: Weather) -> None:
        self._case = case
        self._evidence = evidence
        self._weather = weather
        self._servers = {server.uuid: server for server in evidence.servers}
        rows = {row.instance.uuid: row for row in evidence.rows}
        self._rows = {server.uuid: rows[server.body_uuid] for server in evidence.servers if server.body_uuid in rows}
        """The row of the body that each server points to."""
        self._retried_on: dict[str, set[str]] = defaultdict(set)
        """By host: the servers whose build was tried again there. A retry takes room before the API level counts it."""
        for row in evidence.rows:
            retries = [attempt.host for attempt in row.instance.history if attempt.number > 1]
            if row.instance.attempt > 1 and row.instance.host:
                retries.append(row.instance.host)
            for host in retries:
                self._retried_on[host].add(row.instance.uuid)
        self._placed: dict[str, list[str]] = defaultdict(list)
        for host, uuids in evidence.guests.items():
            for uuid in uuids:
                self._placed[uuid].append(host)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(what was expected, what came) of every server, after ``list_violations``."""

    def list_violations(self) -> list[Violation]:
        """All of them; none: it is as it must be."""
        self.outcomes.clear()
        violations = [
            *self._judge_counts(),
            *self._judge_ended(),
            *self._judge_unconfirmed(),
            *self._judge_groups(),
            *self._judge_batches(),
        ]
        reported = {uuid for violation in violations for uuid in self._servers if uuid in violation.what}
        for fault in list_leftovers(self._evidence):
            uuid = fault.partition(":")[0]
            if uuid not in reported:
                violations.append(Violation(what=fault, story=self.story_of(uuid)))
        return violations

    def story_of(self, uuid: str) -> tuple[str, ...]:
        """Everything that is written about one server."""
        server, row = self._servers.get(uuid), self._rows.get(uuid)
        lines: list[str] = []
        if server is not None:
            cell_text = f"cell {server.cell_uuid}" if server.cell_uuid else "no cell"
            deleted = ", deleted" if server.deleted else ""
            lines.append(
                f"mapping: {server.name}, batch {server.batch_id}, {cell_text}, summary {server.state} on {server.host}{deleted}"
            )
        for other in (other for other in self._evidence.rows if other.instance.uuid_of_server == uuid):
            i = other.instance
            state = f"{i.state} on {i.host}, fence {i.fence}, attempt {i.attempt}, builder {i.builder}, version {i.version}"
            state += f", body {i.turn}, power {i.power}, task {i.task_number} {i.task_state}"
            lines.append(f"row in {other.cell}: {state}")
        if row is not None:
            lines += [f"attempt {a.number} on {a.host} at {a.failure.at:.1f}: {a.failure.message}" for a in row.instance.history]
            lines += [f"fault: {row.instance.fault}"] if row.instance.fault else []
        bodies = sorted({uuid, *(other.instance.uuid for other in self._evidence.rows if other.instance.uuid_of_server == uuid)})
        if lines:
            lines += [
                f"{body}: claim on {self._evidence.claims.get(body)}, guests on {self._placed.get(body, [])}" for body in bodies
            ]
        return tuple(lines)

    # -- exactly once ----------------------------------------------------------------------------------------------------------

    def _judge_counts(self) -> Iterator[Violation]:
        """Every accepted request is there, once, and nothing that was never asked for."""
        listed = Counter(server.name for server in self._evidence.servers)
        accepted = Counter(name for taken in self._case.taken for name in taken.boot.server_names())
        for name in sorted(listed.keys() | accepted.keys()):
            if listed[name] != accepted[name]:
                text = f"{name}: {accepted[name]} servers were accepted, {listed[name]} are on record"
                stories = (line for server in self._evidence.servers if server.name == name for line in self.story_of(server.uuid))
                yield Violation(what=text, story=tuple(stories))

    def _judge_unconfirmed(self) -> Iterator[Violation]:
        """Each resize and migration is confirmed after a while. Other operations that are open are not at rest."""
        for operation in self._evidence.operations:
            if operation.state is OperationState.VERIFY:
                text = f"{operation.server_uuid}: its {operation.kind} {operation.uuid} still waits for its user"
                yield Violation(what=text, story=self.story_of(operation.server_uuid))

    # -- in the right state ----------------------------------------------------------------------------------------------------

    def _judge_ended(self) -> Iterator[Violation]:
        by_name = {server.name: server for server in self._evidence.servers}
        for taken in self._case.taken:
            for name in taken.boot.server_names():
                server = by_name.get(name)
                if server is not None and (wrong := self._judge_server(taken, server)):
                    yield Violation(what=f"{name} ({server.uuid}): {wrong}", story=self.story_of(server.uuid))

    def _judge_server(self, taken: AcceptedBoot, server: Server) -> str:
        """What is wrong with one server; nothing: empty."""
        row = self._rows.get(server.uuid)
        if server.uuid in self._case.deleted:
            self.outcomes["deleted", server.state] += 1
            return "" if server.deleted and server.state == "deleted" else f"should be deleted, is {server.state}"
        expected = taken.boot.expected
        if server.state == "shelved" and not server.deleted:
            self.outcomes[expected, "shelved"] += 1
            return "" if any(act.name == "shelve" for act in taken.boot.acts) else "nobody shelved it, and it is"
        if row is None and (server.cell_uuid, server.state) == (CELL0_UUID, "error"):
            return self._judge_rowless(expected, server)
        if row is None:
            self.outcomes[expected, "nowhere"] += 1
            return "should be in a cell, is in none"
        state = row.instance.state
        if server.deleted:
            wrong, came = "nobody deleted it, and it is", "deleted"
        elif state is State.ACTIVE:
            came, wrong = (
                "active",
                "" if expected in (Expected.ACTIVE, Expected.TOGETHER) else f"should be in ERROR ({expected}), is ACTIVE",
            )
            if server.state != "active":
                wrong = f"ACTIVE in its cell, {server.state} in its summary"
        elif state is State.ERROR:
            cause = self._cause_of(taken, row)
            came = f"error: {cause or 'unexplained'}"
            wrong = "" if cause else f"in ERROR without a cause: {row.instance.fault}"
        else:
            came, wrong = str(state), f"has not ended, is {state}"
        self.outcomes[expected, came] += 1
        return wrong

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
        """Why this ERROR is right; empty: it is not."""
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

    def _is_explained(self, boot: Boot, row: InstanceState, attempt: Attempt) -> bool:
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

    def _hosts_of(self, group: str) -> list[str]:
        """Where the ACTIVE members of a group are."""
        hosts = []
        for taken in self._case.taken:
            if taken.boot.group is not None and taken.boot.group.name == group:
                rows = (self._rows[uuid].instance for uuid in taken.uuids if uuid in self._rows)
                hosts += [row.host or "" for row in rows if row.state is State.ACTIVE]
        return hosts

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

    def _judge_groups(self) -> Iterator[Violation]:
        groups = {taken.boot.group.name: taken.boot.group for taken in self._case.taken if taken.boot.group is not None}
        for group in groups.values():
            hosts = self._hosts_of(group.name)
            if group.policy is GroupPolicy.AFFINITY:  # members that an evacuation has left behind are lost to the others
                hosts = [host for host in hosts if host not in self._evacuated_hosts(group.name)]
            if wrong := misplaced_reason(group.policy, hosts):
                yield Violation(what=f"{group.name} {wrong}")

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
                yield Violation(what=text, story=tuple(line for row in rows for line in self.story_of(row.uuid)))


def overfull_hosts(guests: Mapping[str, Sequence[Guest]], room: tuple[int, int]) -> Iterator[Violation]:
    """Hosts with more guests than fit. ``room``: the vCPUs and MiB that each of them offers."""
    for host, held in guests.items():
        taken = sum(guest.vcpus for guest in held), sum(guest.memory_mb for guest in held)
        if taken[0] > room[0] or taken[1] > room[1]:
            yield Violation(what=f"{host} has room for {room[0]} vCPUs and {room[1]} MiB, and holds {taken[0]} and {taken[1]}")


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


def format_violations(violations: Iterable[Violation]) -> str:
    """For people."""
    return "\n".join("\n".join([violation.what, *(f"    {line}" for line in violation.story)]) for violation in violations)
