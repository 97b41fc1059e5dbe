"""Connections to the databases of Nova and Placement. All of them refuse to write, whatever their login may do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from beside_nova.schema import Schema, check_schema
from cells.template import Local, expand_database
from db.sql import url as urls
from objects import errors
from objects.mask import mask_url

P = ParamSpec("P")
T = TypeVar("T")


class NovaDatabase:
    """One database of Nova or Placement. ``name``: what messages call it. ``statements``: how many were sent so far.

    Nothing is opened before the first read. The first read also checks the schema.
    """

    def __init__(self, name: str, url: str, schema: Schema) -> None:
        parsed = urls.parse_url(url)
        urls.check_driver(parsed)
        self.name = name
        self.revision = ""
        self.statements = 0
        self._shown = urls.masked_url(parsed)
        self._file = urls.file_of(parsed)
        self._schema = schema
        self._engine = sa.create_engine(
            urls.for_driver(parsed), pool_pre_ping=True, pool_size=1, isolation_level=_isolation_of(parsed.get_backend_name())
        )
        event.listen(self._engine, "connect", _refuse_writes)
        event.listen(self._engine, "before_cursor_execute", self._count_statement)

    def __repr__(self) -> str:
        return f"NovaDatabase({self.name!r}, {self._shown!r})"

    def read(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one transaction, whose statements all see the same moment.

        Raises DatabaseUnavailable, and Misconfigured for a schema that is not known.
        """
        if self._file is not None and not os.path.exists(self._file):  # SQLite would make it
            raise errors.DatabaseUnavailable(f"{self.name} ({self._shown}) cannot be read: there is no such file")
        try:
            with self._engine.connect() as connection:
                if not self.revision:
                    self.revision = check_schema(connection, self._schema, self.name)
                return fn(connection, *args, **kwargs)
        except sa.exc.DBAPIError as error:
            reason = mask_url(" ".join(str(error.orig).split()))
            raise errors.DatabaseUnavailable(f"{self.name} ({self._shown}) cannot be read: {reason}") from error

    def close(self) -> None:
        self._engine.dispose()

    def _count_statement(self, *_: object) -> None:
        self.statements += 1


def cell_url(template: str, source: str, username: str = "", password: str = "") -> str:
    """The URL of a cell's database. ``template``: as ``cell_mappings`` has it. ``source``: what fills it in.

    ``username``, ``password``: in place of those of the template. Raises Misconfigured and Invalid.
    """
    url = expand_database(template, Local(database_url=source))
    if not username:
        return url
    return urls.parse_url(url).set(username=username, password=password).render_as_string(hide_password=False)


def _isolation_of(backend: str) -> str:
    """A generation of a provider belongs to the usage that is read with it only where both are of one moment."""
    return "SERIALIZABLE" if backend == "sqlite" else "REPEATABLE READ"


def _refuse_writes(connection: Any, _: object) -> None:
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA query_only=ON")
        return
    characteristics = "CHARACTERISTICS AS " if type(connection).__module__.startswith("psycopg") else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {characteristics}TRANSACTION READ ONLY")
    connection.commit()
