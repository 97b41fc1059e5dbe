"""PyMySQL's connection without the work that tells nothing new. Imported only where MariaDB is used: the driver is an extra."""

from __future__ import annotations

import ssl
import threading
import time
from typing import Any

from pymysql.connections import Connection

FRESH = 5.0
"""Seconds for which an answer counts as a sign of life. A connection that broke since then fails in its first statement, and
``db/retry.py`` runs the transaction again on a new one, so this only decides how often that happens."""


_MAKING = threading.Lock()


class QuietConnection(Connection):  # type: ignore[misc]  # the driver ships no types
    """Asks for a rollback only where something was said since the last transaction ended, and for a sign of life only where the
    server has not given one just now.

    Where the URL says nothing of TLS, all connections share one context: it trusts whatever certificate the server has, yet making
    one reads all authorities that the machine knows, which takes longer than everything else in a new connection.

    The facade ends every transaction itself, and the pool then rolls back what it is given: for a write one round trip more. Where
    each statement is a transaction (``db/url.py``) there is nothing to be rolled back.
    """

    _trusting: ssl.SSLContext | None = None
    _ended = False
    _heard = 0.0

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        self._ended = False
        rows = super().query(sql, unbuffered)
        self._heard = time.monotonic()
        return rows

    def commit(self) -> None:
        super().commit()
        self._ended = True

    def rollback(self) -> None:
        if not (self._ended or self.get_autocommit()):
            super().rollback()
            self._ended = True

    def ping(self, reconnect: bool = False) -> None:
        if not self.open or time.monotonic() - self._heard > FRESH:
            super().ping(reconnect)
            self._heard = time.monotonic()

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        if sslp:
            return super()._create_ssl_ctx(sslp)
        with _MAKING:
            if QuietConnection._trusting is None:
                QuietConnection._trusting = super()._create_ssl_ctx({})
            return QuietConnection._trusting
