"""Images by the real client: what it uploads, tags and lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Front, endpoint_of, serve_http
from tests.support.fronts import front_fixture
from tests.support.openstack_client import OpenStack, needs_client

front = front_fixture(images=True)


@pytest.fixture
def client(front: Front) -> Iterator[OpenStack]:
    with serve_http(front) as service:
        yield OpenStack(endpoint_of(service), knows_images=True)


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
