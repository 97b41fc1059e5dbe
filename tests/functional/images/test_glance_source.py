"""Images of an image service over HTTP: what is believed, what is refused, and what is asked again."""

from __future__ import annotations

import hashlib
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from images import opts
from images.cache import ImageCache
from images.source import ImageSource, open_source
from images.store import FolderStore
from objects import errors
from service import config
from tests.support.disk_images import MIB, qcow2
from tests.support.glance import Fault, Glance
from tests.support.keystone import PASSWORD, SERVICE_TOKEN, WRONG_PASSWORD, Keystone

ONE = "11111111-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"
GO_ON = threading.Event()
CONTENT = qcow2(3 * MIB, virtual_size=9 * MIB)


@pytest.fixture
def glance() -> Iterator[Glance]:
    glance = Glance()
    glance.add(ONE, CONTENT)
    yield glance
    glance.close()


def configured(tmp_path: Path, *lines: str, folder: str = "") -> cfg.ConfigOpts:
    file = tmp_path / "agent.conf"
    file.write_text("\n".join([f"[images]\nfolder = {folder}\n[glance]", *lines]))
    return config.load_options([], opts.list_opts(), files=[file])


def without_login(tmp_path: Path, url: str, *lines: str) -> ImageSource:
    return open_source(configured(tmp_path, "auth_type = none", f"endpoint_override = {url}", *lines))


@pytest.fixture
def source(glance: Glance, tmp_path: Path) -> ImageSource:
    return without_login(tmp_path, glance.url)


@pytest.fixture
def cache(source: ImageSource, tmp_path: Path) -> ImageCache:
    return ImageCache(tmp_path / "cache", source)


def test_an_image_is_downloaded_verified_and_inspected(cache: ImageCache, glance: Glance) -> None:
    cached = cache.fetch_base(ONE, GO_ON)

    assert cached.path.read_bytes() == CONTENT
    assert (cached.disk_format, cached.virtual_size) == ("qcow2", 9 * MIB)
    record = cached.record
    assert (record.id, record.name, record.size, record.min_disk, record.min_ram) == (ONE, "one", 3 * MIB, 1, 64)
    assert (record.properties, record.owner, record.created_at) == ({"hw_disk_bus": "virtio"}, "", "2026-01-01T00:00:00Z")
    cache.fetch_base(ONE, GO_ON)
    assert [path for path in glance.asked if path.endswith("/file")] == [f"/v2/images/{ONE}/file"]


def test_a_raw_image_may_be_hashed_by_sha256(cache: ImageCache, glance: Glance) -> None:
    digest = hashlib.sha256(bytes(5000)).hexdigest()
    glance.add(TWO, bytes(5000), disk_format="raw", os_hash_algo="sha256", os_hash_value=digest)

    assert cache.fetch_base(TWO, GO_ON).path.name == digest


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"status": "queued", "size": None, "os_hash_algo": None, "os_hash_value": None}, "status 'queued'"),
        ({"status": "deactivated"}, "status 'deactivated': only active images"),
        ({"disk_format": "vmdk"}, "format 'vmdk': only raw and qcow2"),
        ({"container_format": "ova"}, "container of format 'ova'"),
        ({"os_hash_algo": None, "os_hash_value": None}, "has no hash of sha512 or sha256"),
        ({"os_hash_algo": "md5", "os_hash_value": hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()}, "has no hash"),
        ({"os_hash_value": "12" * 64}, "is corrupt: its sha512 begins with [0-9a-f]{12}, but its record says 121212121212"),
        ({"size": 2 * MIB}, "has more than the 2097152 bytes"),
        ({"size": 4 * MIB}, "has 3145728 bytes, but its record says 4194304"),
        ({"disk_format": "raw"}, "has the format qcow2, but raw is declared"),
    ],
)
def test_an_unusable_image_aborts_the_build(
    cache: ImageCache, glance: Glance, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    glance.add(ONE, CONTENT, **fields)
    with pytest.raises(errors.BuildAborted, match=text):
        cache.fetch_base(ONE, GO_ON)
    assert list((tmp_path / "cache").glob("*[!k]")) == [], "nothing but lock files"


def test_a_backing_file_is_detected_after_the_download(cache: ImageCache, glance: Glance, tmp_path: Path) -> None:
    glance.add(ONE, qcow2(backing_file="/etc/passwd"))
    with pytest.raises(errors.BuildAborted, match="has a backing file"):
        cache.fetch_base(ONE, GO_ON)
    assert list((tmp_path / "cache").glob("*[!k]")) == []


IN_TROUBLE: list[tuple[Fault, str]] = [
    ("503", "answers with status 503"),
    ("500", "answers with status 500"),
    ("204", "answers with status 204"),
    ("302", "sends agents to another address: name it in .glance. endpoint_override"),
    ("302 to nothing", "answers with status 302"),
    ("hang", "does not answer: .*timed out"),
]


@pytest.mark.parametrize(("fault", "text"), [*IN_TROUBLE, ("not json", "cannot be read")])
def test_a_service_in_trouble_is_asked_again(glance: Glance, tmp_path: Path, fault: Fault, text: str) -> None:
    cache = ImageCache(tmp_path / "cache", without_login(tmp_path, glance.url, "timeout = 1"))
    glance.faults.append(fault)
    with pytest.raises(errors.ServiceUnavailable, match=text):
        cache.fetch_base(ONE, GO_ON)
    assert cache.fetch_base(ONE, GO_ON).path.read_bytes() == CONTENT


@pytest.mark.parametrize(("fault", "text"), [*IN_TROUBLE, ("cut", "does not answer: .*IncompleteRead")])
def test_a_download_in_trouble_is_begun_again(glance: Glance, tmp_path: Path, fault: Fault, text: str) -> None:
    cache = ImageCache(tmp_path / "cache", without_login(tmp_path, glance.url, "timeout = 1"))
    glance.file_faults.append(fault)
    with pytest.raises(errors.ServiceUnavailable, match=text):
        cache.fetch_base(ONE, GO_ON)
    assert list((tmp_path / "cache").glob("*[!k]")) == []
    assert cache.fetch_base(ONE, GO_ON).path.read_bytes() == CONTENT


def test_a_redirect_does_not_carry_the_token_elsewhere(glance: Glance, cache: ImageCache) -> None:
    glance.faults.append("302")
    with pytest.raises(errors.ServiceUnavailable):
        cache.fetch_base(ONE, GO_ON)
    assert glance.asked == [f"/v2/images/{ONE}"]


def test_an_absent_service_is_tried_again(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(errors.ServiceUnavailable, match=r"does not answer: .*refused"):
            without_login(tmp_path, url).get_record(ONE)


def test_an_image_that_is_missing_or_refused(glance: Glance, cache: ImageCache) -> None:
    with pytest.raises(errors.NotFound, match=f"Image {TWO} does not exist"):
        cache.fetch_base(TWO, GO_ON)
    for fault in ("401", "403"):
        glance.faults.extend([fault, fault])  # keystoneauth1 logs in anew after the first 401
        with pytest.raises(errors.BuildFailed, match=f"refuses image {ONE} to the user of .glance., with status {fault}"):
            cache.fetch_base(ONE, GO_ON)
        glance.faults.clear()


@pytest.mark.parametrize(("visibility", "all_may"), [("public", True), ("community", True), ("private", False), ("shared", False)])
def test_a_projects_image_serves_only_this_project(glance: Glance, cache: ImageCache, visibility: str, all_may: bool) -> None:
    glance.add(ONE, CONTENT, visibility=visibility, owner="p1")
    for project_id in ("p2", None):
        if all_may:
            cache.fetch_base(ONE, GO_ON, project_id)
        else:
            with pytest.raises(errors.NotFound, match="does not exist for this project"):
                cache.fetch_base(ONE, GO_ON, project_id)
    assert cache.fetch_base(ONE, GO_ON, "p1").path.exists()


def test_the_folder_comes_first_and_absence_proves_nothing(glance: Glance, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "images")
    (tmp_path / "given").write_bytes(qcow2(seed=2))
    store.add_image(tmp_path / "given", name="of the folder", image_id=ONE)
    glance.add(TWO, CONTENT, name="of the service")
    lines = ("auth_type = none", f"endpoint_override = {glance.url}")
    source = open_source(configured(tmp_path, *lines, folder=str(tmp_path / "images")))

    assert (source.get_record(ONE).name, source.get_record(TWO).name) == ("of the folder", "of the service")
    assert b"".join(source.read_content(ONE)) == (tmp_path / "given").read_bytes()
    assert b"".join(source.read_content(TWO)) == CONTENT
    (tmp_path / "images").rename(tmp_path / "away")
    with pytest.raises(errors.ServiceUnavailable, match="no such folder"):
        source.get_record(TWO)
    assert open_source(configured(tmp_path, *lines), str(tmp_path / "away")).get_record(ONE).name == "of the folder"


# -- logging in ------------------------------------------------------------------------------------------------------------------

PASSWORD_LOGIN = (
    "auth_type = password",
    "username = superconductor",
    "user_domain_id = default",
    "project_name = service",
    "project_domain_id = default",
)
CREDENTIAL = ("auth_type = v3applicationcredential", "application_credential_id = c")


@pytest.mark.parametrize(
    "login",
    [
        lambda secret: (*PASSWORD_LOGIN, f"password = {secret}"),
        lambda secret: (*CREDENTIAL, f"application_credential_secret = {secret}"),
    ],
    ids=["password", "v3applicationcredential"],
)
@pytest.mark.parametrize("path", ["", "/v2"])
def test_agents_log_in_and_use_the_service_catalog(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, login: Callable[[str], tuple[str, ...]], path: str
) -> None:
    glance = Glance(SERVICE_TOKEN)
    glance.add(ONE, CONTENT)
    keystone = Keystone({}, image_url=f"{glance.url}{path}")
    caplog.set_level(logging.DEBUG)
    try:
        source = open_source(configured(tmp_path, f"auth_url = {keystone.url}", *login(PASSWORD)))
        assert b"".join(source.read_content(ONE)) == CONTENT
        assert keystone.passwords == [PASSWORD]
        refused = open_source(configured(tmp_path, f"auth_url = {keystone.url}", *login(WRONG_PASSWORD)))
        with pytest.raises(errors.Forbidden, match=r"refuses the login of \[glance\]: .*401") as told:
            refused.get_record(ONE)
        assert not any(secret in caplog.text + str(told.value) for secret in (PASSWORD, WRONG_PASSWORD, SERVICE_TOKEN))
    finally:
        keystone.close()
        glance.close()


def test_a_catalog_without_the_service_is_named(tmp_path: Path) -> None:
    keystone = Keystone({})
    try:
        source = open_source(configured(tmp_path, f"auth_url = {keystone.url}", *PASSWORD_LOGIN, f"password = {PASSWORD}"))
        with pytest.raises(errors.ServiceUnavailable, match="No image service is in the catalog"):
            source.get_record(ONE)
    finally:
        keystone.close()


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("auth_type = pasword",), "pasword"),
        (("auth_type = password",), "auth_url"),
        (("auth_type = none", "timeout = soon"), "timeout"),
    ],
)
def test_an_impossible_login_is_refused_immediately(tmp_path: Path, lines: tuple[str, ...], text: str) -> None:
    with pytest.raises(errors.Misconfigured, match=f".glance.: .*{text}"):
        open_source(configured(tmp_path, *lines))


def test_the_library_is_imported_only_when_configured() -> None:
    text = (
        "import sys; from images import opts, source; from service import config;"
        "source.open_source(config.load_options([], opts.list_opts(), files=[]), '/nowhere');"
        "sys.exit('keystoneauth1' in sys.modules or 'requests' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", text], check=False, cwd=Path(__file__).parents[3]).returncode == 0
