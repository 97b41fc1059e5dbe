"""What a database URL may say, and what it is completed with."""

from __future__ import annotations

import pytest

from db.sql import url as urls
from objects import errors


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:////var/lib/api.db", "sqlite"),
        ("mysql://u@h/d", "mysql+pymysql"),
        ("mariadb://u@h/d", "mysql+pymysql"),
        ("mariadb+mysqldb://u@h/d", "mysql+mysqldb"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
    ],
)
def test_driver_is_completed(given: str, driver: str) -> None:
    assert urls.parse_url(given).drivername == driver


def test_timeouts_absent_from_the_url_are_completed() -> None:
    query = urls.parse_url("mysql://u@h/d?read_timeout=3").query

    assert query["read_timeout"] == "3"
    assert query["connect_timeout"] == str(urls.CONNECT_TIMEOUT_S)
    assert query["charset"] == "utf8mb4"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "nonsense",
        "oracle://u:secret@h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:api.db?uri=true",
        "mysql://u:secret@h:x/d",
    ],
)
def test_an_unusable_url_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(errors.Misconfigured) as caught:
        urls.parse_url(given)

    assert "sqlite:////" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_schema_change_has_time_unless_limited() -> None:
    assert urls.parse_url(urls.with_schema_timeout("mysql://u@h/d?read_timeout=3")).query["read_timeout"] == "3"
    assert urls.parse_url(urls.with_schema_timeout("mysql://u@h/d")).query["read_timeout"] == str(urls.SCHEMA_TIMEOUT_S)
    assert urls.with_schema_timeout("sqlite:////var/lib/api.db") == "sqlite:////var/lib/api.db"


def test_synchronous_is_an_option_of_the_url() -> None:
    full = urls.parse_url("sqlite:////var/lib/api.db?synchronous=full")

    assert urls.synchronous_mode(full) == "FULL"
    assert urls.synchronous_mode(urls.parse_url("sqlite:////var/lib/api.db")) == "NORMAL"
    assert "synchronous" not in urls.for_driver(full)
    with pytest.raises(errors.Misconfigured, match="MAYBE"):
        urls.parse_url("sqlite:////var/lib/api.db?synchronous=maybe")


def test_the_shown_url_hides_password_and_completions() -> None:
    assert urls.masked_url("mysql://u:secret@h/d") == "mysql://u:***@h/d"


def test_the_answer_timeout_is_a_url_option_everywhere() -> None:
    given = urls.parse_url("postgresql://u@h/d?read_timeout=2")

    assert urls.read_timeout(given) == 2.0
    assert "read_timeout" not in urls.for_driver(given), "libpq knows no such thing"
    assert urls.read_timeout(urls.parse_url("mysql://u@h/d")) == urls.ANSWER_TIMEOUT_S
    assert urls.read_timeout(urls.parse_url(urls.with_schema_timeout("postgresql://u@h/d"))) == urls.SCHEMA_TIMEOUT_S
    with pytest.raises(errors.Misconfigured, match="read_timeout=soon"):
        urls.read_timeout(urls.parse_url("postgresql://u@h/d?read_timeout=soon"))


def test_the_plain_driver_is_for_mariadb_only() -> None:
    assert urls.plain_driver(urls.parse_url("mysql://u@h/d?plain_driver=True"))
    assert not urls.plain_driver(urls.parse_url("mysql://u@h/d"))
    assert "plain" not in urls.for_driver(urls.parse_url("mysql://u@h/d?plain_driver=true"))
    for wrong in ("mysql://u@h/d?plain_driver=maybe", "postgresql://u@h/d?plain_driver=true", "sqlite:////x.db?plain_driver=true"):
        with pytest.raises(errors.Misconfigured, match="plain_driver"):
            urls.parse_url(wrong)
