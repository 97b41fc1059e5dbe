"""``GET /v2.1/superconductor/openapi.json``: this API in OpenAPI 3.1, made of the application's own routes, schemas and rules.

A document describes one microversion, the one that its request selects: other versions have other bodies and routes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, Protocol

import falcon

from api.http import call as calls
from api.http import microversions
from api.http.call import send_json
from api.http.microversions import HEADER, Version
from api.http.not_served import KnownOperation
from api.http.policies import DOCUMENTED, PUBLIC
from api.http.schemas import Schema
from api.http.validation import VALIDATED
from api.http.versions import CHOICES
from service.release import DISTRIBUTION

DIALECT = "3.1.0"
VERSIONED = "/v2.1"
_PARAMETER = re.compile(r"\{([^}:]*)[^}]*\}")
_PYTHON_END = r"\Z"
"""Ends a pattern in Python only; ``$`` does in the patterns of JSON schemas."""


class RouteTable(Protocol):
    """The part of ``api.http.paths.Paths`` that a description is made of. Keys: method and path template."""

    rules: dict[tuple[str, str], str]
    handlers: dict[tuple[str, str], Callable[..., None]]
    known: dict[tuple[str, str], KnownOperation | None]


class OpenApi:
    """The description. Documents are made once for each microversion that is asked for."""

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        self._paths: dict[Version, dict[str, Any]] = {}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        paths = self._paths.get(call.version)
        if paths is None:
            paths = self._paths[call.version] = paths_of(self._routes, call.version)
        send_json(resp, build_document(paths, call.version, call.prefix))


def build_document(paths: dict[str, Any], version: Version, server: str) -> dict[str, Any]:
    """The document with these paths."""
    return {
        "openapi": DIALECT,
        "info": {
            "title": "Superconductor: a subset of the OpenStack Compute API",
            "version": microversions.format_version(version),
            "summary": f"Superconductor {metadata.version(DISTRIBUTION)}, microversion {microversions.format_version(version)}",
        },
        "servers": [{"url": server}],
        "paths": paths,
        "components": {
            "parameters": {
                "Microversion": {
                    "name": HEADER,
                    "in": "header",
                    "description": "The microversion of request and answer. This description is of its default.",
                    "schema": {"type": "string", "default": f"{microversions.SERVICE} {microversions.format_version(version)}"},
                }
            },
            "responses": {
                "Success": {"description": "The request was accepted or is done."},
                "Refusal": {
                    "description": "The request was refused; the only key is the kind of error.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
                },
            },
            "schemas": {
                "Refusal": {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": {
                        "type": "object",
                        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
                        "required": ["code", "message"],
                    },
                }
            },
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
        },
    }


def paths_of(routes: RouteTable, version: Version) -> dict[str, Any]:
    """The paths that this version has, with their operations."""
    paths: dict[str, Any] = {}
    for (method, template), rule in sorted(routes.rules.items(), key=lambda item: item[0][::-1]):
        known = routes.known.get((method, template))
        if known is None or known.is_in(version):
            path = _PARAMETER.sub(r"{\1}", template)
            item = paths.setdefault(path, _path_item(path))
            item[method.lower()] = _describe_operation(method, path, rule, routes.handlers[method, template], version)
    return paths


def _path_item(path: str) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(path)
    ]
    if path.startswith(VERSIONED):
        parameters.append({"$ref": "#/components/parameters/Microversion"})
    return {"parameters": parameters} if parameters else {}


def _describe_operation(method: str, path: str, rule: str, handler: Callable[..., None], version: Version) -> dict[str, Any]:
    words = [method.lower(), *re.findall(r"[A-Za-z0-9.]+", path.removeprefix(f"{VERSIONED}/"))]
    operation: dict[str, Any] = {
        "operationId": "_".join(words),
        "summary": _SUMMARIES.get(rule, "Version document."),
        "tags": [_collection_of(path)],
        "responses": {
            "300" if path == CHOICES else "2XX": {"$ref": "#/components/responses/Success"},
            "4XX": {"$ref": "#/components/responses/Refusal"},
        },
    }
    if rule != PUBLIC:
        operation["x-policy"] = rule
        operation["security"] = [{"token": []}]
    if (schema := body_schema(handler, version)) is not None:
        operation["requestBody"] = {"required": True, "content": {falcon.MEDIA_JSON: {"schema": schema}}}
    return operation


def _collection_of(path: str) -> str:
    words = [word for word in path.removeprefix(VERSIONED).split("/") if word]
    return words[0] if words and path.startswith(VERSIONED) else "versions"


_SUMMARIES: Mapping[str, str] = {rule.name: rule.description for rule in DOCUMENTED}


def body_schema(handler: Callable[..., None], version: Version) -> Schema | None:
    """The schema of a handler's body in this version, from the validators that ``validated_by`` names; None: it reads no body."""
    names: tuple[str, ...] = getattr(handler, VALIDATED, ())
    resource = getattr(handler, "__self__", None)
    schemas = [schema for name in names if (schema := getattr(resource, name).schema(version)) is not None]
    if not schemas:
        return None
    plain = [_portable_schema(schema) for schema in schemas]
    return plain[0] if len(plain) == 1 else {"anyOf": plain}


def _portable_schema(schema: Any) -> Any:
    """The schema without what only Python's regular expressions have."""
    if isinstance(schema, Mapping):
        return {key: _portable_pattern(value) if key == "pattern" else _portable_schema(value) for key, value in schema.items()}
    if isinstance(schema, list | tuple):
        return [_portable_schema(item) for item in schema]
    return schema


def _portable_pattern(value: Any) -> Any:
    return value.replace(_PYTHON_END, "$") if isinstance(value, str) else _portable_schema(value)
