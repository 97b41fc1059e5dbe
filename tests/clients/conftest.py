"""A cloud with a real Keystone for the tests of each process: an all-in-one, then a region."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import client_programs
from tests.support.keystone_cloud import KeystoneCloud
from tests.support.keystone_deployments import AllInOne, ProcessRegion


@pytest.fixture(scope="session", params=[AllInOne, ProcessRegion], ids=["all-in-one", "region"])
def cloud(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[KeystoneCloud]:
    if client_programs.missing():
        pytest.skip(client_programs.MISSING)
    folder = tmp_path_factory.mktemp("cloud")
    made = KeystoneCloud(folder, request.param(folder / "deployment"))
    yield made
    made.close()
