"""Access control for the agents' messages: an agent may report about its own host only.

The broker identifies the sender (``rpc.sender``), never the message. A refused message raises, so that its sender gets no verdict:
an agent acts on its guests according to verdicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from conductor.cell_conductor import CellConductor
from objects import builder_digest, errors, text
from objects.build import Holding, Report, Verdict
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.process import About
from objects.unknown_guest import UnknownGuest
from rpc import agents, sender
from rpc.agents import AgentUsers
from rpc.sender import MessageSender
from service import metrics
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

ADVICE = "'superconductor host user HOST' shows how to give a host a user"


class IdentityCheck:
    """The endpoint of topic ``cell-conductor``: checks the sender, then calls the conductor.

    A host's broker user may speak for that host only. Other users may speak for any host, unless agents must have their own users.
    """

    def __init__(
        self, conductor: CellConductor, users: AgentUsers, who: Callable[[], MessageSender] = sender.current_sender
    ) -> None:
        """``who``: returns the sender of the current message."""
        self._conductor = conductor
        self._users = users
        self._sender = who
        self._complaints = RateLimitedLog(LOG)

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """See ``CellConductor.report``. Like every method here, raises Forbidden if a report is about another host."""
        self._admit_sender("report", (report.host for report in reports))
        return self._conductor.report(context, reports)

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """See ``CellConductor.build_instances``."""
        self._admit_sender("build_instances", (report.host for report in reports))
        return self._conductor.build_instances(context, reports)

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        """See ``CellConductor.holdings``. A sender that is not identified gets digests instead of builders."""
        is_known = self._admit_sender("holdings", [host])
        holdings = self._conductor.holdings(context, host)
        return holdings if is_known else [_without_builder(holding) for holding in holdings]

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        """See ``CellConductor.update_resource_stats``."""
        self._admit_sender("update_resource_stats", [node.host])
        self._conductor.update_resource_stats(context, node)

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, stopping: bool = False) -> None:
        """See ``CellConductor.report_state``."""
        self._admit_sender("report_state", [host])
        self._conductor.report_state(context, host, binary, version, stopping)

    def report_states(
        self, context: RequestContext, hosts: Sequence[str], binary: str, version: int, stopping: bool = False
    ) -> None:
        """See ``CellConductor.report_states``."""
        self._admit_sender("report_states", hosts)
        self._conductor.report_states(context, hosts, binary, version, stopping)

    def introduce(self, context: RequestContext, host: str, binary: str, about: About, uptime: float) -> None:
        """See ``CellConductor.introduce``. Also records whether the broker identifies the host."""
        is_known = self._admit_sender("introduce", [host])
        self._conductor.introduce(context, host, binary, about, uptime, identified=is_known)

    def unknown_guests(self, context: RequestContext, host: str, guests: Sequence[UnknownGuest]) -> None:
        """See ``CellConductor.unknown_guests``."""
        self._admit_sender("unknown_guests", [host])
        self._conductor.unknown_guests(context, host, guests)

    def _admit_sender(self, method: str, hosts: Iterable[str]) -> bool:
        """Return whether the sender is identified as the host it speaks for. Raises Forbidden."""
        who = self._sender()
        if who.is_local:
            return True
        own_host = agents.host_of(who.user, self._users.prefix)
        if own_host is None:
            if self._users.required:
                self._refuse_sender(method, "no user of a host", _unidentified_reason(who.user, self._users.prefix))
            return False
        if foreign := {host for host in hosts if host != own_host}:
            named = text.clean_text(", ".join(sorted(map(str, foreign))), 100)
            fault = f"broker user {who.user!r} reports for host {named}: it may report for {own_host!r} only; {ADVICE}"
            self._refuse_sender(method, "another host", fault)
        return True

    def _refuse_sender(self, method: str, reason: str, fault: str) -> None:
        metrics.AGENTS_REFUSED.labels(method, reason).inc()
        self._complaints(fault, logging.WARNING, "%s is refused: %s", method, fault)
        raise errors.Forbidden(f"{method}: {fault}")


def _unidentified_reason(user: str | None, prefix: str) -> str:
    """Why a sender without a host's broker user is refused, and what to do."""
    if user is None:
        start = "the message names no broker user: upgrade its sender, and have it log in as"
    else:
        start = f"broker user {user!r} belongs to no host: have the agent log in as"
    return f"{start} '{prefix}HOST', because [conductor] agent_users = required; {ADVICE}"


def _without_builder(holding: Holding) -> Holding:
    if holding.builder is None:
        return holding
    return msgspec.structs.replace(holding, builder=builder_digest.builder_digest(holding.builder, holding.instance_uuid))
