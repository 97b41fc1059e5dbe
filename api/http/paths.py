"""The paths of the application, and the policy rule for each method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import falcon

from api.http import call as calls
from api.http import not_served
from api.http.not_served import KnownOperation
from api.http.policies import PUBLIC
from objects import errors

METHODS = ("get", "put", "post", "delete", "patch", "head")


class Paths:
    """Adds routes. As falcon's middleware, refuses callers that the rule of the route does not allow."""

    def __init__(self) -> None:
        self.rules: dict[tuple[str, str], str] = {}
        """By method and path template."""
        self.handlers: dict[tuple[str, str], Callable[..., None]] = {}
        self.known: dict[tuple[str, str], KnownOperation | None] = {}
        """The operation of the Compute API; None: it has none there."""

    def add_route(
        self, app: falcon.App[falcon.Request, falcon.Response], path: str, resource: Any, suffix: str = "", **rules: str
    ) -> None:
        """Serve ``path`` with ``resource``. ``rules``: one per method of the resource, by method in lower case.

        Raises ValueError for a handler without a rule, or a rule without a handler.
        """
        ending = f"_{suffix}" if suffix else ""
        served = {method for method in METHODS if hasattr(resource, f"on_{method}{ending}")}
        if served != rules.keys():
            raise ValueError(f"{path}: methods {sorted(served)}, rules of {sorted(rules)}")
        app.add_route(path, resource, **({"suffix": suffix} if suffix else {}))
        self.rules |= {(method.upper(), path): rule for method, rule in rules.items()}
        self.handlers |= {(method.upper(), path): getattr(resource, f"on_{method}{ending}") for method in rules}
        self.known |= {
            (method.upper(), path): not_served.ROUTES.get((method.upper(), not_served.template_of_route(path))) for method in rules
        }

    def is_served(self, operation: str) -> bool:
        """Whether a route of the Compute API is served, written as ``METHOD /path`` like the keys of ``not_served.ROUTES``."""
        wanted_method, template = operation.split(" ")
        return any(method == wanted_method and not_served.template_of_route(path) == template for method, path in self.rules)

    def process_resource(self, req: falcon.Request, resp: falcon.Response, resource: object, params: dict[str, Any]) -> None:
        """Raises errors.Forbidden, errors.NotFound for a version without this operation, and what ``not_served.refuse_unserved``
        does.

        An unknown method passes, so that the answer lists the allowed methods.
        """
        route = (req.method, req.uri_template or "")
        call = calls.get_call(req)
        rule = self.rules.get(route)
        if rule is None and req.method == "DELETE" and req.env["PATH_INFO"].endswith("/"):
            raise errors.NotFound(
                f"DELETE {req.path[:200]}/ has no ID: there is nothing of this name."
            )  # not 405: nothing is there
        if rule is None:
            not_served.refuse_unserved(req.method, req.path, call.version)
        elif rule != PUBLIC:
            not_served.check_version(f"{req.method} {req.path[:200]}", self.known[route], call.version)
            req.context.call = call.guarded_by(rule, params.get("project_id"))
