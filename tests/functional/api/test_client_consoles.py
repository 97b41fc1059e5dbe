"""The real ``openstack`` command gets the URL of a console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.main import ApiService
from tests.support.api import TENANT
from tests.support.console_site import ConsoleSite
from tests.support.openstack_client import OpenStack, needs_client
from tests.support.websocket_client import open_websocket, read_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ConsoleSite]:
    made = ConsoleSite(tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(site: ConsoleSite) -> Iterator[OpenStack]:
    front = site.front
    service = ApiService(front.settings.__replace__(port=0), front.registry, front.database, front.bus)
    service.start()
    yield OpenStack(f"http://127.0.0.1:{service.listen_port}/v2.1", project=TENANT["X-Project-Id"])
    service.stop()


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
