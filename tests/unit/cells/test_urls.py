"""URLs of cells and their templates: which are refused, which mean the same place, and what fills a template in."""

from __future__ import annotations

import pytest

from cells.template import Local, expand_database, expand_transport
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


HERE = Local(
    database_url="mysql+pymysql://sc:p%40ss@db-api:3307/sc_api?charset=utf8mb4",
    transport_url="rabbit://one:first@mq1:5672,two:second@[::1]/api?ssl=1",
)


@pytest.mark.parametrize(
    ("template", "url"),
    [
        ("mysql://{username}:{password}@db-east/sc", "mysql://sc:p%40ss@db-east/sc"),
        (
            "{scheme}://{username}:{password}@{hostname}:{port}/{path}_cell1?{query}",
            "mysql+pymysql://sc:p%40ss@db-api:3307/sc_api_cell1?charset=utf8mb4",
        ),
        ("mysql://{username1}@h/x#{fragment}", "mysql://sc@h/x#"),
        ("mysql://u:a{{b}}c@h/x", "mysql://u:a{b}c@h/x"),
        ("mysql://u:p@h/x", "mysql://u:p@h/x"),
    ],
)
def test_a_database_url_is_filled_in(template: str, url: str) -> None:
    assert expand_database(template, HERE) == url


def test_each_of_several_hosts_has_its_number() -> None:
    template = "{scheme}://{username1}:{password1}@{hostname1}:{port1},{username2}:{password2}@{hostname2}/east?{query}"
    assert expand_transport(template, HERE) == "rabbit://one:first@mq1:5672,two:second@[::1]/east?ssl=1"


@pytest.mark.parametrize(
    ("template", "local", "error", "text"),
    [
        ("mysql://{user}:{password}@h/x", HERE, errors.Invalid, "unknown field {user}; there are: username, password"),
        ("mysql://{}:secret@h/x", HERE, errors.Invalid, "unknown field {}"),
        ("mysql://{username01}@h/x", HERE, errors.Invalid, "unknown field {username01}"),
        ("mysql://{username.__class__}@h/x", HERE, errors.Invalid, "unknown field {username.__class__}"),
        ("mysql://{username!r}@h/x", HERE, errors.Invalid, "cannot be read"),
        ("mysql://{username:>9}@h/x", HERE, errors.Invalid, "cannot be read"),
        ("mysql://u:se{cret@h/x", HERE, errors.Invalid, "a brace itself is written {{ or }}"),
        ("mysql://{username}:secret@h/x", Local(), errors.Misconfigured, "[api_database] connection of this process, and that"),
        ("mysql://u:{password}@h/x", Local(database_url="mysql://sc@db/x"), errors.Misconfigured, "needs {password}, which"),
        ("sqlite:////x{port}", Local(database_url="sqlite:////a/b.db"), errors.Misconfigured, "needs {port}, which"),
    ],
)  # fmt: skip
def test_what_cannot_be_filled_in_is_refused(template: str, local: Local, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        expand_database(template, local)
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)


def test_one_host_of_several_must_be_named() -> None:
    with pytest.raises(errors.Misconfigured, match=r"write \{hostname1\} for the first"):
        expand_transport("rabbit://{hostname}/east", HERE)
    with pytest.raises(errors.Misconfigured, match=r"needs \{port2\}, which transport_url of this process does not have"):
        expand_transport("rabbit://{hostname2}:{port2}/east", HERE)
