"""The verdict on a region at rest: every accepted server is one ACTIVE instance, or one ERROR that is accounted for.

``evidence.py`` judges claims, rows, guests and quotas. What accounts for an ERROR is for subclasses of ``Judge`` to say.
"""

from __future__ import annotations

import abc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from cli.standalone.demo.boots import Expected, GroupPlan, PlannedBoot
from cli.standalone.demo.evidence import Evidence, InstanceState, list_leftovers, misplaced_reason
from objects.base import Object
from objects.instance import Server, State


class AcceptedBoot(Object, frozen=True, kw_only=True):
    """One boot that was answered with 202: its servers by what the API listed, its time in seconds since the epoch."""

    boot: PlannedBoot
    uuids: tuple[str, ...]
    at: float


class Case(Object, frozen=True, kw_only=True):
    """What was asked for and got an answer: ``taken`` boots, and the uuids whose delete was answered."""

    taken: tuple[AcceptedBoot, ...]
    deleted: frozenset[str]


class Violation(Object, frozen=True, kw_only=True):
    """Something that must not be, and what is known of the server that it concerns."""

    message: str
    story: tuple[str, ...] = ()


class Judge(abc.ABC):
    """Holds what is written at one moment against what was asked for. It reads nothing."""

    def __init__(self, case: Case, evidence: Evidence) -> None:
        self._case = case
        self._evidence = evidence
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

    @abc.abstractmethod
    def _cause_of(self, taken: AcceptedBoot, row: InstanceState) -> str:
        """Why this ERROR is right; empty: it is not."""

    def _fault_of_active(self, taken: AcceptedBoot, row: InstanceState) -> str:
        """What is wrong with how a server became ACTIVE; empty: nothing."""
        return ""

    def list_violations(self) -> list[Violation]:
        """All of them; none: it is as it must be."""
        self.outcomes.clear()
        violations = [*self._judge_counts(), *self._judge_ended(), *self._judge_more(), *self._judge_groups()]
        reported = {uuid for violation in violations for uuid in self._servers if uuid in violation.message}
        for fault in list_leftovers(self._evidence):
            uuid = fault.partition(":")[0]
            if uuid not in reported:
                violations.append(Violation(message=fault, story=self.story_of(uuid)))
        return violations

    def _judge_more(self) -> Iterator[Violation]:
        """What a subclass asks besides."""
        yield from ()

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

    def _judge_counts(self) -> Iterator[Violation]:
        """Every accepted request is there, once, and nothing that was never asked for."""
        listed = Counter(server.name for server in self._evidence.servers)
        accepted = Counter(name for taken in self._case.taken for name in taken.boot.server_names())
        for name in sorted(listed.keys() | accepted.keys()):
            if listed[name] != accepted[name]:
                text = f"{name}: {accepted[name]} servers were accepted, {listed[name]} are on record"
                stories = (line for server in self._evidence.servers if server.name == name for line in self.story_of(server.uuid))
                yield Violation(message=text, story=tuple(stories))

    def _judge_ended(self) -> Iterator[Violation]:
        by_name = {server.name: server for server in self._evidence.servers}
        for taken in self._case.taken:
            for name in taken.boot.server_names():
                server = by_name.get(name)
                if server is not None and (wrong := self._judge_server(taken, server)):
                    yield Violation(message=f"{name} ({server.uuid}): {wrong}", story=self.story_of(server.uuid))

    def _judge_server(self, taken: AcceptedBoot, server: Server) -> str:
        """What is wrong with one server; nothing: empty."""
        row, expected = self._rows.get(server.uuid), taken.boot.expected
        if server.uuid in self._case.deleted:
            self.outcomes["deleted", server.state] += 1
            return "" if server.deleted and server.state == "deleted" else f"should be deleted, is {server.state}"
        if row is None:
            self.outcomes[expected, "nowhere"] += 1
            return "should be in a cell, is in none"
        state = row.instance.state
        if server.deleted:
            wrong, came = "nobody deleted it, and it is", "deleted"
        elif state is State.ACTIVE:
            came, wrong = "active", self._fault_of_active(taken, row)
            if expected not in (Expected.ACTIVE, Expected.TOGETHER):
                wrong = f"should be in ERROR ({expected}), is ACTIVE"
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

    def _hosts_of(self, group: str) -> list[str]:
        """Where the ACTIVE members of a group are."""
        hosts = []
        for taken in self._case.taken:
            if taken.boot.group is not None and taken.boot.group.name == group:
                rows = (self._rows[uuid].instance for uuid in taken.uuids if uuid in self._rows)
                hosts += [row.host or "" for row in rows if row.state is State.ACTIVE]
        return hosts

    def _judged_hosts(self, group: GroupPlan) -> list[str]:
        """The hosts that must agree with the policy of a group."""
        return self._hosts_of(group.name)

    def _judge_groups(self) -> Iterator[Violation]:
        groups = {taken.boot.group.name: taken.boot.group for taken in self._case.taken if taken.boot.group is not None}
        for group in groups.values():
            if wrong := misplaced_reason(group.policy, self._judged_hosts(group)):
                yield Violation(message=f"{group.name} {wrong}")


def format_violations(violations: Iterable[Violation]) -> str:
    """For people."""
    return "\n".join("\n".join([violation.message, *(f"    {line}" for line in violation.story)]) for violation in violations)
