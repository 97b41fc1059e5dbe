"""The routes of an application."""

from __future__ import annotations

from collections.abc import Sequence

from api.app import App
from api.http.paths import METHODS


def routes_of(app: App) -> dict[tuple[str, str], object]:
    """The handler of every method of every path that has one of its own."""
    found: dict[tuple[str, str], object] = {}

    def walk(nodes: Sequence[object]) -> None:
        for node in nodes:
            template, methods = getattr(node, "uri_template", None), getattr(node, "method_map", None)
            if template and methods:
                found.update({(m, template): r for m, r in methods.items() if getattr(r, "__name__", "").startswith("on_")})
            walk(getattr(node, "children", []))

    walk(app._router._roots)
    return {key: value for key, value in found.items() if key[0].lower() in METHODS}
