"""URL templates: filled in from the process's own URLs, or refused in one line without a password."""

from __future__ import annotations

import pytest

from cells.template import Local, expand_database, expand_transport
from objects import errors

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
