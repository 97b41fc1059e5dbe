"""The database's own clock: what is written and read by it can be compared, whatever the clocks of the machines around it say."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Now(FunctionElement[float]):
    """The moment at which a statement runs, in seconds since the epoch, as an expression."""

    type = sa.Double()
    name = "now_in_seconds"
    inherit_cache = True


_SPELLED = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)",  # no UNIX_TIMESTAMP: it knows time zones
}


@compiles(Now)
def _spell(element: Now, compiler: Any, **_: object) -> str:
    return _SPELLED[compiler.dialect.name]


_READ = sa.select(Now())


def read(tx: Connection) -> float:
    """What the database's clock says now."""
    return float(tx.execute(_READ).scalar_one())
