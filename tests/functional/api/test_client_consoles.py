"""The real ``openstack`` command gets the URL of a console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import TENANT, endpoint_of, serve_http
from tests.support.closing import closing_fixture
from tests.support.console_site import ConsoleSite
from tests.support.openstack_client import OpenStack, needs_client
from tests.support.websocket_client import open_websocket, read_until

site = closing_fixture(ConsoleSite)


@pytest.fixture
def client(site: ConsoleSite) -> Iterator[OpenStack]:
    with serve_http(site.front) as service:
        yield OpenStack(endpoint_of(service), project=TENANT["X-Project-Id"])


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_shows_a_console_url(site: ConsoleSite, client: OpenStack) -> None:
    site.host()
    site.guest()
    for version in ("2.1", "2.53"):
        shown = client.json("--os-compute-api-version", version, "console", "url", "show", "--serial", "web")
        assert shown["type"] == "serial"
        with open_websocket(shown["url"]) as console:
            read_until(console, b"web: serial console")
        assert "Unavailable console type" in client.refused("--os-compute-api-version", version, "console", "url", "show", "web")
        assert "Unavailable console type" in client.refused("console", "url", "show", "--spice", "web")
    assert "web: ready" in client.done("console", "log", "show", "web")
