"""What Nova says of its Compute API, asked of an installed Nova: its routes, and whether an exchange fits its schemas.

It runs in an environment of its own, where ``nova`` is installed and nothing of ours is, and speaks JSON with the caller. All names
of Nova that are not public stand in this file; ``check_release`` says which of them another release has lost.

    python ci/nova_contract.py routes            # prints the routes, each with the versions that change it
    python ci/nova_contract.py judge < exchanges # one exchange a line; prints a line for each misfit
    python ci/nova_contract.py bodies            # prints request bodies that Nova's schemas allow, one a line
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 2**31 - 1, 2**31, 10**9, [], {}, [{}], [""], {"a": "b"}, {"a": 1}, {"a": None}),
    *("", " ", "x", "a b", " x ", "\u00e4", "\t", "a/b", "a:b", "a.b-c_d", "web.example.org", "true", "auto", "none"),
    *(".", "..", "a\\b"),
    *("1", "0", "-1", "1.5", "10000000000", "YQ==", "Y Q = =\n", "x" * 60, "x" * 63, "x" * 255, "x" * 1000),
    *("10.0.0.1", "::1", "10.0.0.0/24", "fa:16:3e:00:00:01", "http://127.0.0.1/", "2026-11-28T00:00:00Z"),
    *("70a599e0-31e7-49b7-b260-868f441e862b", "70a599e031e749b7b260868f441e862b"),
)
"""What is tried in each place of a request body."""
ANYTHING: dict[str, Any] = {}
"""The schema that allows everything. Validators are kept by the identity of their schema."""

RELEASE = "34.0.0"
WRITTEN = f"ci/nova_contract.py was written for {RELEASE}"
KINDS = {"query": "request_query_schemas", "request": "request_body_schemas", "response": "response_body_schemas"}
"""The attributes of a controller's method that hold its schemas."""
CONTEXT_LIMIT = 6
"""Branches of an alternative that a misfit quotes."""

Version = tuple[int, int]
Method = tuple[str, str, str]
"""HTTP method, path with ``{}`` for parameters, and the name of an action on a server or ""."""


class ContractChanged(Exception):
    """The installed release lacks a name that this file needs."""


def check_release() -> None:
    """Raises ContractChanged, naming what is missing."""
    from nova.api import validation
    from nova.api.openstack import api_version_request, wsgi
    from nova.api.openstack.compute import routes
    from nova.api.validation import validators

    installed = metadata.version("nova")
    needs = (
        (routes, "ROUTE_LIST"),
        (validators, "_SchemaValidator"),
        (wsgi.WSGICodes(), "_codes"),
        (validation.Schemas(), "_schemas"),
        (api_version_request.APIVersionRequest("2.1"), "ver_minor"),
    )
    for owner, name in needs:
        if not hasattr(owner, name):
            raise ContractChanged(f"nova {installed}: {owner!r} has no {name}; {WRITTEN}")
    methods = by_method()
    for kind, attribute in KINDS.items():
        if not any(hasattr(function, attribute) for function in methods.values()):
            raise ContractChanged(f"nova {installed}: no method has {attribute} ({kind}); {WRITTEN}")
    if not any(action for _, _, action in methods):
        raise ContractChanged(f"nova {installed}: controllers have no wsgi_actions; {WRITTEN}")
    if installed != RELEASE:
        raise ContractChanged(f"nova {installed} is installed; {WRITTEN}")


def by_method() -> dict[Method, Any]:
    """The function of each method and path; of the actions on a server too."""
    from nova.api.openstack.compute import routes

    functions: dict[Method, Any] = {}
    for path, methods in routes.ROUTE_LIST:
        if not isinstance(methods, dict):
            continue  # a redirection
        for verb, (factory, name) in methods.items():
            classes = _controller_classes(factory)
            if name == "action":
                for cls in classes:
                    for action, attribute in getattr(cls, "wsgi_actions", {}).items():
                        functions[verb, plain_path(path), action] = getattr(cls, attribute)
            else:
                functions[verb, plain_path(path), ""] = getattr(classes[0], name)
    return functions


def _controller_classes(factory: Any) -> list[Any]:
    """The controller that a route's factory makes, and those that add actions to it."""
    arguments = [*getattr(factory, "args", ())]
    classes = [argument for argument in arguments if inspect.isclass(argument)]
    for argument in arguments:
        classes += argument if isinstance(argument, list) else []
    return classes or [factory]


def plain_path(path: str) -> str:
    """The path with ``{}`` for every parameter."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def _version_of(value: Any) -> Version | None:
    """A bound of a range; None: it has none."""
    from nova.api.openstack import api_version_request

    parsed = api_version_request.APIVersionRequest(value) if value is None or isinstance(value, str) else value
    return None if parsed.is_null() else (parsed.ver_major, parsed.ver_minor)


def _schema_ranges(function: Any, kind: str) -> list[tuple[dict[str, Any], Version | None, Version | None]]:
    schemas = getattr(function, KINDS[kind], None)
    return [(schema, _version_of(low), _version_of(high)) for schema, low, high in schemas._schemas] if schemas else []


def _status_codes(function: Any) -> list[tuple[int, Version | None, Version | None]]:
    codes = getattr(function, "wsgi_codes", None)
    return [(code, _version_of(low), _version_of(high)) for code, low, high in codes._codes] if codes else []


def _is_in_range(version: Version, low: Version | None, high: Version | None) -> bool:
    return (low is None or low <= version) and (high is None or version <= high)


def is_served(function: Any, version: Version) -> bool:
    """Whether the method exists in this version."""
    if getattr(function, "removed", False):
        return False
    return _is_in_range(
        version, _version_of(getattr(function, "min_version", None)), _version_of(getattr(function, "max_version", None))
    )


def change_points(function: Any) -> list[Version]:
    """The first version of everything that distinguishes versions of a method."""
    bounds = [(low, high) for kind in KINDS for _, low, high in _schema_ranges(function, kind)]
    bounds += [(low, high) for _, low, high in _status_codes(function)]
    bounds.append((_version_of(getattr(function, "min_version", None)), _version_of(getattr(function, "max_version", None))))
    points = {low for low, _ in bounds if low} | {(high[0], high[1] + 1) for _, high in bounds if high}
    return sorted(point for point in points if point >= (2, 1))


def list_routes() -> Iterator[dict[str, Any]]:
    for (verb, path, action), function in sorted(by_method().items()):
        kinds = [kind for kind in KINDS if _schema_ranges(function, kind)]
        yield {
            "method": verb,
            "path": path,
            "action": action,
            "kinds": kinds,
            "points": change_points(function),
            "removed": bool(getattr(function, "removed", False)),
            "since": _version_of(getattr(function, "min_version", None)),
            "until": _version_of(getattr(function, "max_version", None)),
        }


def list_bodies() -> Iterator[dict[str, Any]]:
    """Request bodies that Nova takes, each in the first version of its schema: each has an odd value in one place."""
    judge = Judge()
    for (verb, path, action), function in sorted(by_method().items()):
        for schema, low, _ in _schema_ranges(function, "request"):
            version = max(low or (2, 1), _version_of(getattr(function, "min_version", None)) or (2, 1))
            if verb != "GET" and (low is None or low >= (2, 1)) and is_served(function, version):
                for body in judge.allowed_values(schema):
                    yield {"method": verb, "path": path, "action": action, "version": version, "body": body}


class Judge:
    """Compares exchanges with the schemas and the statuses of Nova."""

    def __init__(self) -> None:
        self._methods = by_method()
        self._validators: dict[tuple[int, bool], Any] = {}

    def find_misfits(self, exchange: dict[str, Any]) -> Iterator[str]:
        """Each as a sentence. ``exchange``: method, path, action, version, query, request, status, response."""
        function = self._methods.get((exchange["method"], exchange["path"], exchange["action"]))
        version = tuple(exchange["version"])
        if function is None or not is_served(function, version):
            return
        done = 200 <= exchange["status"] < 300
        if exchange.get("query") is not None and done:
            yield from self._find_errors(function, "query", version, exchange["query"])
        if exchange["method"] in ("POST", "PUT") and exchange["request"] is not None:
            yield from self._find_errors(function, "request", version, exchange["request"])
        if done:
            yield from self._find_errors(function, "response", version, exchange["response"])
            codes = {code for code, low, high in _status_codes(function) if _is_in_range(version, low, high)}
            if codes and exchange["status"] not in codes:
                yield f"status {exchange['status']}, Nova's is {', '.join(map(str, sorted(codes)))}"

    def allowed_values(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Values that this schema of a request allows: a smallest one, and those that differ from it in one place."""
        seen = set()
        for value in self._list_candidates(schema):
            key = json.dumps(value, sort_keys=True)
            if key not in seen and self._is_allowed(schema, value):
                seen.add(key)
                yield value

    def _is_allowed(self, schema: dict[str, Any], value: Any) -> bool:
        try:
            return next(self._get_validator(schema, "request").iter_errors(value), None) is None
        except UnicodeDecodeError:
            return False  # Nova fails for base64 that is not ASCII

    def _list_candidates(self, schema: dict[str, Any]) -> Iterator[Any]:
        for branches in ("oneOf", "anyOf", "allOf"):
            for branch in schema.get(branches, ()):
                yield from self._list_candidates({**{key: value for key, value in schema.items() if key != branches}, **branch})
        yield from schema.get("enum", ())
        if "properties" in schema or "patternProperties" in schema:
            properties = schema.get("properties", {})
            smallest = {
                name: next(self.allowed_values(properties.get(name, ANYTHING)), None) for name in schema.get("required", ())
            }
            yield smallest
            places = [*properties.items(), *(("a", inner) for inner in schema.get("patternProperties", {}).values())]
            for name, inner in places:
                for value in self.allowed_values(inner):
                    yield {**smallest, name: value}
        elif isinstance(schema.get("items"), dict):
            for value in self.allowed_values(schema["items"]):
                yield [value] * max(1, schema.get("minItems", 1))
        yield from ODD_VALUES

    def _find_errors(self, function: Any, kind: str, version: Any, document: Any) -> Iterator[str]:
        for schema, low, high in _schema_ranges(function, kind):
            if _is_in_range(version, low, high):
                for error in self._get_validator(schema, kind).iter_errors(document):
                    yield f"{kind}: {describe_error(error)}"

    def _get_validator(self, schema: dict[str, Any], kind: str) -> Any:
        from nova.api.validation import validators

        key = (id(schema), kind == "query")
        if key not in self._validators:
            self._validators[key] = validators._SchemaValidator(schema, False, kind != "query").validator
        return self._validators[key]


def describe_error(error: Any) -> str:
    """An error with its place; of an alternative, the reasons why each branch was refused."""
    where = "/".join(map(str, error.absolute_path)) or "document"
    if not error.context:
        return f"{where}: {error.message:.300}"
    inner = sorted(error.context, key=lambda cause: len(cause.absolute_path), reverse=True)[:CONTEXT_LIMIT]
    return f"{where}: no branch fits: {'; '.join(describe_error(cause) for cause in inner)}"


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    try:
        check_release()
    except (ContractChanged, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    if arguments == ["routes"]:
        json.dump(list(list_routes()), sys.stdout)
        return 0
    if arguments == ["bodies"]:
        for body in list_bodies():
            print(json.dumps(body))
        return 0
    judge = Judge()
    for line in sys.stdin:
        exchange = json.loads(line)
        for misfit in judge.find_misfits(exchange):
            print(json.dumps({"number": exchange["number"], "misfit": misfit}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
