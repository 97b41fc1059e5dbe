"""The tables of docs/compute-api.md: which routes and actions of the Compute API are served.

``python -m tests.support.api_table`` rewrites them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from api.http.microversions import Version, format_version
from api.http.not_served import CHECKED_FIRST, FIRST, ROUTES, SERVER_ACTIONS, template_of_route
from api.servers.actions import ServerActions
from tests.support.api import Front
from tests.support.routes import routes_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "compute-api.md"
MARKED = re.compile(r"(<!-- (\w+): generated -->\n).*?(<!-- end -->)", re.DOTALL)


def rewritten(document: str, front: Front) -> str:
    """The document with each table as the application says."""
    tables = {"routes": "\n".join(routes(front)), "actions": "\n".join(actions(front))}
    return MARKED.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n\n{found[3]}", document)


def served_routes(front: Front) -> set[tuple[str, str]]:
    """By method and path, written as in ``ROUTES``."""
    return {(method, template_of_route(route)) for method, route in routes_of(front.app)}


def routes(front: Front) -> Iterator[str]:
    """A row for each path and range of versions."""
    served = served_routes(front) - CHECKED_FIRST
    yield "| Path | Served | Not served: 501 | Versions |"
    yield "|---|---|---|---|"
    rows: dict[tuple[str, Version, Version | None], list[str]] = {}
    for (method, path), known in ROUTES.items():
        if not known.gone:
            rows.setdefault((path, known.since, known.until), []).append(method)
    for (path, since, until), methods in rows.items():
        has = " ".join(method for method in methods if (method, path) in served)
        lacks = " ".join(method for method in methods if (method, path) not in served)
        yield f"| `{path}` | {has} | {lacks} | {_range(since, until)} |"


def actions(front: Front) -> Iterator[str]:
    """A row for each action on servers."""
    handler = routes_of(front.app)["POST", "/v2.1/servers/{server_id}/action"]
    resource = getattr(handler, "__self__", None)
    assert isinstance(resource, ServerActions)
    yield "| Action | | Versions |"
    yield "|---|---|---|"
    for name, known in sorted(SERVER_ACTIONS.items(), key=lambda item: item[0].lower()):
        if not known.gone:
            answer = "served" if name in resource.action_names else "501"
            yield f"| `{name}` | {answer} | {_range(known.since, known.until)} |"


def _range(since: Version, until: Version | None) -> str:
    if until is not None:
        return f"{format_version(since)} to {format_version(until)}"
    return "" if since == FIRST else f"from {format_version(since)}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        front = Front(Path(folder))
        DOCUMENT.write_text(rewritten(DOCUMENT.read_text(), front))
        front.close()
