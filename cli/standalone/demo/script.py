"""The demo's strict verdict: each server ends by its script, and only hosts that were scripted to fail builds have failed any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cli.standalone.demo.boots import Expected
from cli.standalone.demo.evidence import Evidence, InstanceState
from cli.standalone.demo.plan import Item
from cli.standalone.demo.site import HostPlan
from cli.standalone.demo.verdict import AcceptedBoot, Case, Judge
from compute.simulated import METADATA_KEY, scripted_outcome
from compute.simulated import SpawnOutcome as Spawn
from objects.instance import FailureClass

ENDED_WITH_THE_DEMO = (FailureClass.RESTARTED, FailureClass.STOPPING)
"""Attempts that ended because the demo itself was killed or interrupted, which costs a build no try."""


def judge_script(evidence: Evidence, items: Sequence[Item], hosts: Sequence[HostPlan]) -> list[str]:
    """Every way in which the deployment differs from what was scripted; empty: it is as it must be."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for server in evidence.servers:
        by_name[server.name].append(server.uuid)
    taken = [
        AcceptedBoot(boot=item, uuids=tuple(uuid for name in item.server_names() for uuid in by_name[name]), at=0.0)
        for item in items
    ]
    deleted = frozenset(uuid for accepted in taken for uuid in accepted.uuids[: accepted.boot.deletes])
    rates = {host.name: host.failure_rate for host in hosts}
    judge = ScriptJudge(Case(taken=tuple(taken), deleted=deleted), evidence, rates)
    return [violation.message for violation in judge.list_violations()]


class ScriptJudge(Judge):
    """``rates``: the share of builds that each host fails."""

    def __init__(self, case: Case, evidence: Evidence, rates: dict[str, float]) -> None:
        super().__init__(case, evidence)
        self._rates = rates

    def _cause_of(self, taken: AcceptedBoot, row: InstanceState) -> str:
        history, fault = row.instance.history, row.instance.fault or ""
        match taken.boot.expected:
            case Expected.NO_VALID_HOST:
                ok = row.cell == "cell0" and fault.startswith("No valid host was found")
            case Expected.ABORTED:
                ok = len(history) > 0 and history[-1].failure.kind is FailureClass.REQUEST and "aborted" in fault
            case Expected.EXHAUSTED:
                ok = len(history) > 0 and ("maximum number of attempts" in fault or "Exhausted" in fault)
            case _:  # a server that should run may end in ERROR only where every host it was given was to fail it
                ok = len(history) > 0 and "maximum number of attempts" in fault
        return "scripted" if ok and not self._unscripted_failures(taken, row) else ""

    def _fault_of_active(self, taken: AcceptedBoot, row: InstanceState) -> str:
        return "; ".join(self._unscripted_failures(taken, row))

    def _unscripted_failures(self, taken: AcceptedBoot, row: InstanceState) -> list[str]:
        """Failed attempts that the simulated hosts were not scripted to fail.

        A retry goes to an alternate, which nobody claimed for it: so it may find no room there, and so may whoever had claimed it.
        """
        metadata = {METADATA_KEY: taken.boot.simulated} if taken.boot.simulated else {}
        return [
            f"attempt {attempt.number} on {attempt.host} failed unscripted: {attempt.failure.message}"
            for attempt in row.instance.history
            if attempt.failure.kind not in ENDED_WITH_THE_DEMO
            and not (attempt.failure.kind is FailureClass.NO_ROOM and attempt.host in self._retried_on)
            and scripted_outcome(attempt.host, row.instance.uuid, self._rates[attempt.host], metadata) is Spawn.OK
        ]
