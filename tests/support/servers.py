"""Which servers the tests use: those they are told of, else the usual logins of this machine where they work.

``ci/servers.py`` finds or starts servers and names them in the environment. A test that cannot use a server it was told of fails;
one that was told of none skips and says why, for a developer who has no such server.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

RABBIT, MYSQL, POSTGRES = "SC_TEST_RABBIT_URL", "SC_TEST_MYSQL_URL", "SC_TEST_POSTGRES_URL"
"""Variables with administrative URLs: whoever logs in with one may make databases or virtual hosts."""

USUAL = {
    RABBIT: "rabbit://guest:guest@127.0.0.1:5672/",
    MYSQL: "mysql+pymysql://root@127.0.0.1:3306/mysql",
    POSTGRES: "postgresql+psycopg://postgres@127.0.0.1:5432/postgres",
}
"""The logins of servers for tests, as they are usual on the machines of developers."""

NONE = "none"
"""Stands for the URL where a run has no such server, which the run itself reports."""
OWN = "own"
"""Asks ``ci/servers.py`` for a server of its own, whatever is found."""

_NOT_TOLD = (None, "", NONE, OWN)


def url_of_server(variable: str) -> str:
    """The administrative URL that this one of the variables gives, or the usual one."""
    told = os.environ.get(variable)
    return USUAL[variable] if told in _NOT_TOLD else str(told)


def is_ruled_out(variable: str) -> bool:
    """Whether this run is to do without that server."""
    return os.environ.get(variable) == NONE


def give_up(variable: str, why: str) -> NoReturn:
    """End the test: it fails where it was told to use the server, and skips elsewhere."""
    if os.environ.get(variable) in _NOT_TOLD:
        pytest.skip(why)
    pytest.fail(f"{why}, although {variable} names it", pytrace=False)
