"""Where commands look for the API."""

from __future__ import annotations

import os
from collections.abc import Mapping

ENDPOINT = "http://127.0.0.1:8774/v2.1"


def named_endpoint(environment: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint that the environment names; None if it names none."""
    return environment.get("SUPERCONDUCTOR_ENDPOINT") or environment.get("OS_ENDPOINT") or None


def usual_endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """Where the API is, by the environment or by default."""
    return named_endpoint(environment) or ENDPOINT
