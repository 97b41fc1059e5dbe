"""PyMySQL's connection without the work that tells nothing new. Imported only where MariaDB is used: the driver is an extra."""

from __future__ import annotations

import functools
import ssl
import threading
import time
from typing import Any

from pymysql.connections import Connection, MySQLResult
from pymysql.constants import SERVER_STATUS
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

ALIVE_FOR_S = 5.0
"""Seconds for which an answer counts as a sign of life. A connection that broke since then fails in its first statement, and
``db/sql/retry.py`` runs the transaction again on a new one, so this only decides how often that happens."""

DESCRIPTIONS_LIMIT = 2048
"""Column descriptions kept, half a KiB each; the statements of one process have a few hundred."""

_MAKING = threading.Lock()
_LONGEST_SHORT, _NULL, _SIZES = 250, 251, {252: 2, 253: 3, 254: 8}
"""The first byte of a field: its length up to 250, no field, or in how many further bytes its length is."""


@functools.lru_cache(DESCRIPTIONS_LIMIT)
def _parse_column(description: bytes, encoding: str) -> FieldDescriptorPacket:
    """A description taken apart. A statement that is run again is answered with the same ones, byte for byte."""
    return FieldDescriptorPacket(description, encoding)


class _ResultRows(MySQLResult):  # type: ignore[misc]  # the driver ships no types
    """Takes a row apart in one loop. The driver makes three calls for each field: most of what it costs to read a large table.

    https://mariadb.com/kb/en/result-set-packets/#resultset-row
    """

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        text, place, row = packet.get_all_data(), 0, list[Any]()
        for encoding, convert in self.converters:
            length = text[place]
            place += 1
            if length > _LONGEST_SHORT:
                if length == _NULL:
                    row.append(None)
                    continue
                size = _SIZES[length]
                length = int.from_bytes(text[place : place + size], "little")
                place += size
            value = text[place : place + length]
            place += length
            if encoding is not None:
                value = value.decode(encoding)
            row.append(value if convert is None else convert(value))
        return tuple(row)


class QuietConnection(Connection):  # type: ignore[misc]  # the driver ships no types
    """Asks for a rollback only where something was said since the last transaction ended, and for a sign of life only where the
    server has not given one just now.

    Where the URL says nothing of TLS, all connections share one context: it trusts whatever certificate the server has, yet making
    one reads all authorities that the machine knows, which takes longer than everything else in a new connection.

    Descriptions of columns, which take longer to read than the few rows that follow, are taken apart once. In texts, most of them
    documents with a quotation mark at every word, only that is escaped which has to be.

    The facade ends every transaction itself, and the pool then rolls back what it is given: for a write one round trip more. Where
    each statement is a transaction (``db/sql/url.py``) there is nothing to be rolled back.
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
        if not self.open or time.monotonic() - self._heard > ALIVE_FOR_S:
            super().ping(reconnect)
            self._heard = time.monotonic()

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        return super()._read_packet(_parse_column if packet_type is FieldDescriptorPacket else packet_type)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        if unbuffered:
            return super()._read_query_result(unbuffered)
        self._result = None
        result = _ResultRows(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows

    def _escape_string(self, s: str) -> str:
        """Within single quotes only these and the backslash mean something; the driver escapes what is hard to read in logs too.

        https://dev.mysql.com/doc/c-api/8.4/en/mysql-real-escape-string.html
        """
        if self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
            return str(super()._escape_string(s))
        return s.replace("\\", "\\\\").replace("'", "\\'")

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        if sslp:
            return super()._create_ssl_ctx(sslp)
        with _MAKING:
            if QuietConnection._trusting is None:
                QuietConnection._trusting = super()._create_ssl_ctx({})
            return QuietConnection._trusting
