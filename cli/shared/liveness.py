"""Whether what reports is up, as far as one look can tell: by the clock of the database that it reports to."""

from __future__ import annotations

from datetime import UTC, datetime

from db.cell.services import SeenService

DOWN_AFTER_S = 60
"""Seconds of silence after which commands call something down, unless told otherwise."""


def agent_state(agent: SeenService, down_after: float) -> str:
    """up, stopping or down."""
    if agent.service.forced_down or agent.age > down_after:
        return "down"
    return "stopping" if agent.service.stopping else "up"


def is_up(agent: SeenService, down_after: float) -> bool:
    return agent_state(agent, down_after) == "up"


def agent_status(agent: SeenService) -> str:
    """What operators say of its host: whether it takes new servers."""
    return "disabled" if agent.service.disabled else "enabled"


def format_moment(at: float | None) -> str | None:
    """Seconds since the epoch as text."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
