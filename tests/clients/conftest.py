"""One all-in-one with a real Keystone for the tests of each process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import client_programs
from tests.support.keystone_cloud import KeystoneCloud


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystoneCloud]:
    if client_programs.missing():
        pytest.skip(client_programs.MISSING)
    made = KeystoneCloud(tmp_path_factory.mktemp("cloud"))
    yield made
    made.close()
