"""Passwords never reach a log, an error or a listing: whatever they are made of."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from objects.mask import mask_url


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("mysql+pymysql://u:secret@h/d", "mysql+pymysql://u:***@h/d"),
        ("mysql://u:s%40cr%2Fet@h:3306/d", "mysql://u:***@h:3306/d"),
        ("postgresql+psycopg://u:secret@[::1]:5432/d", "postgresql+psycopg://u:***@[::1]:5432/d"),
        ("mysql://:secret@h/d", "mysql://:***@h/d"),
        ("mysql://u@h/d", "mysql://u@h/d"),
        ("mysql://h:3306/d", "mysql://h:3306/d"),
        ("sqlite:////var/lib/a.db", "sqlite:////var/lib/a.db"),
        ("sqlite:////home/me@here/a.db", "sqlite:////home/me@here/a.db"),
        ("embedded://NAME/", "embedded://NAME/"),
        ("//u:secret@h/d", "//u:***@h/d"),
        # several hosts
        ("rabbit://u:secret@h1:5672,v:secret@h2:5672/vh", "rabbit://u:***@h1:5672,v:***@h2:5672/vh"),
        ("rabbit://u:secret@[::1]:5672,v:secret@[::2]:5672/vh", "rabbit://u:***@[::1]:5672,v:***@[::2]:5672/vh"),
        ("rabbit://u:secret@h1:5672,guest@h2/vh?ssl=1", "rabbit://u:***@h2/vh?ssl=1"),
        ("rabbit://guest@h1,u:secret@h2/vh", "rabbit://guest@h1,u:***@h2/vh"),
        ("rabbit://h1:5672,u:secret@h2/vh", "rabbit://h1:***@h2/vh"),
        # characters that should have been escaped
        ("rabbit://u:se@cret@h:5672/vh", "rabbit://u:***@h:5672/vh"),
        ("rabbit://u:@secret@h:5672/vh", "rabbit://u:***@h:5672/vh"),
        ("rabbit://u:secret@@h/vh", "rabbit://u:***@h/vh"),
        ("mysql://u:se/cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:12/secret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se/c@r/et@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se?cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se#cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se,cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se,x:cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se:cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se'cr\"et@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se&c=ret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se://cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:se cret@h/d", "mysql://u:***@h/d"),
        ("mysql://u:sécrét$@h/d", "mysql://u:***@h/d"),
        ("rabbit://u:secret@h/v?who=a@b", "rabbit://u:***@b"),
        # the query
        ("postgresql://h/d?user=u&password=secret&sslmode=require", "postgresql://h/d?user=u&password=***&sslmode=require"),
        ("postgresql://h/d?sslkey=/secret.pem&sslpassword=secret", "postgresql://h/d?sslkey=***&sslpassword=***"),
        ("rabbit://h/v?SSL_Key_Password=secret&heartbeat=1", "rabbit://h/v?SSL_Key_Password=***&heartbeat=1"),
        ("http://h/?x=1&auth_token=secret", "http://h/?x=1&auth_token=***"),
        ("mysql://u:secret@h/d?passwd=se@cret", "mysql://u:***@cret"),
        ("host=h password=secret dbname=d", "host=h password=*** dbname=d"),
        # texts
        ("cannot use 'mysql://u:secret@h/d': refused", "cannot use 'mysql://u:***@h/d': refused"),
        ('{"a":"mysql://u:secret@h/d","b":"rabbit://v:secret@h/v"}', '{"a":"mysql://u:***@h/d","b":"rabbit://v:***@h/v"}'),
        ("mysql://u:secret@h/d,rabbit://v:secret@h/v", "mysql://u:***@h/d,rabbit://v:***@h/v"),
        ("http://127.0.0.1:8774/v2.1 of me@example.org", "http://127.0.0.1:8774/v2.1 of me@example.org"),
        ("http://127.0.0.1:8774, mail me@example.org", "http://127.0.0.1:8774, mail me@example.org"),
        ("no URL: user@host key=value", "no URL: user@host key=value"),
        ("line of mysql://u:secret@h/d\nand me@x: y", "line of mysql://u:***@h/d\nand me@x: y"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_text(text: str, masked: str) -> None:
    assert mask_url(text) == masked
    assert mask_url(masked) == masked, "masking twice is masking once"


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=12), st.sampled_from(["", ":5672", ",v:q@h2"]))
@example("@,", "")
@example("@x,", "")
@example(":@x,u:", ",v:q@h2")
def test_no_password_survives(noise: str, more: str) -> None:
    """Of any characters but blanks, wherever the telling part of it stands."""
    for password in (f"hunter2{noise}", f"{noise}hunter2", f"{noise}hunter2{noise}"):
        shown = mask_url(f"Cannot reach rabbit://user:{password}@host{more}/vhost: refused")
        assert "hunter2" not in shown
        assert shown.startswith("Cannot reach rabbit://user:***")


def test_a_long_text_takes_no_time() -> None:
    """A trace of many lines with much that looks like the beginning of a URL."""
    text = "//a:b,c:d@" * 5000 + "x:" * 50000 + "//u:" * 5000
    start = time.monotonic()
    mask_url(text)
    assert time.monotonic() - start < 10


@given(
    st.lists(
        st.sampled_from(["?", "&", ";", " ", "=", "pass", "PassWd", "pwd", "pa\u017fsword", "to\u212aen", "word", "x", "//", ":"])
    )
)
def test_a_short_look_misses_no_masked_text(parts: list[str]) -> None:
    text = "".join(parts)
    assert mask_url(text) == mask_url(f"\u00e9{text}")[1:], "a letter beyond ASCII makes it look closely"
