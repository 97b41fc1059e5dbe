"""URLs of cells: which are refused, and which mean the same place."""

from __future__ import annotations

import pytest

from cells.urls import database_place, transport_place
from objects import errors


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mysql+pymysql://a:x@db/cell", "mysql://b:y@DB:3306/cell"),
        ("mariadb://a:x@db/cell", "mysql+pymysql://a:x@db/cell?charset=utf8"),
        ("postgresql://a:x@db/cell", "postgresql+psycopg://b@db:5432/cell"),
        ("sqlite:////var/lib/sc/cell.db", "sqlite:////var/lib/sc/../sc/cell.db"),
    ],
)
def test_one_database_however_it_is_written(one: str, other: str) -> None:
    assert database_place(one) == database_place(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mysql://a:x@db/cell1", "mysql://a:x@db/cell2"),
        ("mysql://a:x@db1/cell", "mysql://a:x@db2/cell"),
        ("mysql://a:x@db:3306/cell", "mysql://a:x@db:3307/cell"),
        ("sqlite:////var/a.db", "sqlite:////var/b.db"),
    ],
)
def test_different_databases(one: str, other: str) -> None:
    assert database_place(one) != database_place(other)


def test_transports_compare_by_hosts_and_vhost() -> None:
    place = transport_place("rabbit://u:p@r1:5672,u:p@r2/cell1")
    assert place == transport_place("rabbit://other:login@R2:5672,x@r1/cell1/?ssl=1")
    assert place != transport_place("rabbit://u:p@r1:5672,u:p@r2/cell2")
    assert place != transport_place("rabbit://u:p@r1/cell1")
    assert transport_place("embedded://cell1/") == transport_place("embedded://cell1")
    assert transport_place("embedded://cell1/") != transport_place("embedded://cell2/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cell1.db",
        "sqlite://",
        "sqlite:///relative.db",
        "sqlite:///",
        "sqlite:////folder/",
        "sqlite:///:memory:",
        "mysql:db/cell",
        "mysql://user:secret@db",
        "mysql://user:secret@db/",
        "mysql://user:secret@/cell",
        "mysql://user:secret@db:port/cell",
        "oracle://user:secret@db/cell",
        "rabbit://user:secret@host/vhost",
    ],
)
def test_malformed_database_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises((errors.Invalid, errors.Misconfigured), match=r"Database URL|SQLite needs a file") as caught:
        database_place(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "host", "none:///", "rabbit:host", "rabbit:///vhost", "rabbit://u:secret@h1,/v", "fake://x/", "rabbit://u:secret@h:0/v"],
)
def test_malformed_transport_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        transport_place(url)
    assert "Transport URL" in str(caught.value)
    assert "secret" not in str(caught.value)
