"""Images by the real client: what it uploads, tags and lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.main import ApiService
from api.opts import ApiSettings
from tests.support.api import Front
from tests.support.openstack_client import OpenStack, needs_client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[OpenStack]:
    front = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images")))
    service = ApiService(front.settings.__replace__(port=0), front.registry, front.database, front.bus)
    service.start()
    yield OpenStack(f"http://127.0.0.1:{service.listen_port}/v2.1", knows_images=True)
    service.stop()
    front.close()


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_tags_images(client: OpenStack, tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"x" * 512)
    for name, *tags in (("one", "--tag", "a", "--tag", "b"), ("two",)):
        client.done("image", "create", "--disk-format", "raw", "--file", str(tmp_path / "disk"), *tags, name)

    def names(*filters: str) -> list[str]:
        return sorted(image["Name"] for image in client.json("image", "list", *filters))

    assert (names(), names("--tag", "a"), names("--tag", "c")) == (["one", "two"], ["one"], [])
    client.done("image", "set", "--tag", "c", "one")
    client.done("image", "unset", "--tag", "a", "one")
    assert client.json("image", "show", "one")["tags"] == ["b", "c"]
    assert (names("--tag", "a"), names("--tag", "c"), names("--name", "two")) == ([], ["one"], ["two"])
    assert "a" in client.refused("image", "unset", "--tag", "a", "one")
