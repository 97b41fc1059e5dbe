"""A bus is tried with its user, its password and its virtual host, and no secret is told."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from rpc.errors import Unreachable
from rpc.transport import Bus
from tests.support.bus import embedded_url, url_of


@pytest.fixture
def broker() -> str:
    return next(url_of("rabbit"))


def test_one_that_lets_us_in(broker: str) -> None:
    for url in (broker, embedded_url(), _with_host(broker, first="127.0.0.1:1")):
        bus = Bus(url)
        bus.check_login()
        bus.close()


@pytest.mark.parametrize(
    ("wrong", "text"), [("password", "refuses the login"), ("vhost", "refuses the login"), ("port", "cannot be reached")]
)
def test_one_that_does_not(broker: str, wrong: str, text: str) -> None:
    parts = urlsplit(broker)
    place = f"{parts.hostname}:{1 if wrong == 'port' else parts.port or 5672}"
    login = f"{parts.username}:{'secret' if wrong == 'password' else parts.password}"
    bus = Bus(parts._replace(netloc=f"{login}@{place}", path="/nowhere" if wrong == "vhost" else parts.path).geturl())
    with pytest.raises(Unreachable, match=text) as caught:
        bus.check_login()
    assert f":{'secret' if wrong == 'password' else parts.password}@" not in str(caught.value)
    bus.close()


def _with_host(url: str, first: str) -> str:
    """The same with a host before it that nothing listens on."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}:{parts.password}@{first},{parts.netloc}").geturl()
