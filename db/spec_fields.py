"""Parts of stored request specs as SQL: what servers were asked to be is kept once per batch, as JSON.

Each server spells these functions its own way. Paths are written ``$.flavor.flavor_id``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from db.tables.api import instance_mappings, request_specs

_AT = "(CAST({0} AS JSON) #> string_to_array(substr(CAST({1} AS TEXT), 3), '.'))"
"""PostgreSQL's paths are arrays of names. Not ``jsonb``, which refuses text that JSON allows."""


class _Part(FunctionElement[Any]):
    """A function of a spec's column, a path and more."""

    inherit_cache = True
    spellings: ClassVar[dict[str, str]] = {}
    """By dialect; the arguments in their order."""


class _Text(_Part):
    """(column, path): a scalar as text; NULL where there is none."""

    name = "spec_text"
    type = sa.String()
    inherit_cache = True
    spellings: ClassVar[dict[str, str]] = {
        "sqlite": "CAST(json_extract({0}, {1}) AS TEXT)",
        "mysql": "JSON_VALUE({0}, {1})",
        "postgresql": f"({_AT} #>> '{{{{}}}}')",
    }


class _Holds(_Part):
    """(column, path, value): whether the list of strings at the path has this one."""

    name = "spec_holds"
    type = sa.Boolean()
    inherit_cache = True
    spellings: ClassVar[dict[str, str]] = {
        "sqlite": "EXISTS (SELECT 1 FROM json_each({0}, {1}) AS held WHERE held.value = {2})",
        "mysql": "JSON_CONTAINS({0}, JSON_QUOTE({2}), {1})",
        "postgresql": f"EXISTS (SELECT 1 FROM json_array_elements_text({_AT}) AS held(value) WHERE held.value = {{2}})",  # noqa: S608 - constants
    }


class _Maps(_Part):
    """(column, path, key, value): whether the object at the path maps this key to this string."""

    name = "spec_maps"
    type = sa.Boolean()
    inherit_cache = True
    spellings: ClassVar[dict[str, str]] = {
        "sqlite": "EXISTS (SELECT 1 FROM json_each({0}, {1}) AS pair WHERE pair.key = {2} AND pair.value = {3})",
        "mysql": "JSON_CONTAINS({0}, JSON_OBJECT({2}, {3}), {1})",
        "postgresql": f"({_AT} ->> CAST({{2}} AS TEXT)) = {{3}}",
    }


@compiles(_Part)
def _spelled(element: _Part, compiler: Any, **kw: Any) -> str:
    return element.spellings[compiler.dialect.name].format(*(compiler.process(clause, **kw) for clause in element.clauses))


def text(path: str) -> sa.ScalarSelect[str]:
    """A value of the spec of the server that a row of ``instance_mappings`` is of."""
    return _of_server(_Text(request_specs.c.spec, sa.literal(path)))


def is_true(path: str) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(text(path), "false").in_(("1", "true"))


def holds(path: str, value: str) -> sa.ColumnElement[bool]:
    return _true(_Holds(request_specs.c.spec, sa.literal(path), sa.literal(value)))


def maps(path: str, key: str, value: str) -> sa.ColumnElement[bool]:
    return _true(_Maps(request_specs.c.spec, sa.literal(path), sa.literal(key), sa.literal(value)))


def _of_server(expression: Any) -> sa.ScalarSelect[Any]:
    query = sa.select(expression).where(request_specs.c.batch_id == instance_mappings.c.batch_id)
    return query.correlate(instance_mappings).scalar_subquery()


def _true(condition: _Part) -> sa.ColumnElement[bool]:
    query = sa.select(request_specs.c.batch_id).where(request_specs.c.batch_id == instance_mappings.c.batch_id, condition)
    return query.correlate(instance_mappings).exists()
