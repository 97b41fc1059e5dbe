"""Routes that change something have an example, which the stage ``nova-schemas`` sends in every version."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.examples import EXAMPLES, OTHERS
from tests.conformance.exchange import routes_of
from tests.support.api import Front

OWN = ("/superconductor",)
"""Paths that the Compute API does not have."""


def test_every_route_that_changes_something_has_an_example(tmp_path: Path) -> None:
    front = Front(tmp_path)
    try:
        routes = routes_of(front.app)
    finally:
        front.close()
    writing = {route for route in routes if route.method != "GET" and not route.path.endswith("/action")}
    assert len(writing) > 10
    missing = [str(route) for route in sorted(writing - EXAMPLES.keys()) if not route.path.startswith(OTHERS + OWN)]
    assert not missing, f"give an example of each in tests/conformance/examples.py: {missing}"
