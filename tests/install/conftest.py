"""One deployment and one image for all tests here: the image takes minutes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.install_site import Image, InstallSite, install_site, skip_without_programs


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstallSite]:
    with install_site(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(scope="session")
def image(site: InstallSite) -> Iterator[Image]:
    skip_without_programs()
    folder = Path(tempfile.mkdtemp(prefix="sc-image-"))  # short: paths of sockets are in it
    made = Image(folder)
    try:
        made.build(site.install / "image" / "build")
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
