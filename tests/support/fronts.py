"""Fixtures of a ``Front``, and grounds for one whose databases are on one of the servers, while its buses are embedded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.opts import ApiSettings
from db.sql.sync import Kind
from service.vault import Vault
from tests.support.api import Front, front_on
from tests.support.databases import SERVERS, Scope, folder_of, pool
from tests.support.ground import Ground

KINDS: dict[str, Kind] = {"api": "api", "cell0": "cell", "cell1": "cell"}
"""The databases of a Front."""


class OnServer(Ground):
    """A light ground whose databases are given."""

    def __init__(self, folder: Path, urls: dict[str, str]) -> None:
        super().__init__("lite", folder)
        self._databases.update(urls)


@contextmanager
def databases_of(server: str, folder: Path) -> Iterator[Ground]:
    """A ground for one Front, on one of ``tests.support.databases.SERVERS``."""
    urls = {} if server == "sqlite" else {name: pool(server, kind).take() for name, kind in KINDS.items()}
    ground = OnServer(folder, urls)
    try:
        yield ground
    finally:
        ground.release()
        for name, url in urls.items():
            pool(server, KINDS[name]).give_back(url)


def front_fixture(
    settings: ApiSettings | None = None, vault: Vault | None = None, *, grounds: Sequence[str] | None = None, images: bool = False
) -> object:
    """A fixture: a ``front_on`` each of these grounds, on the light one if none is given. ``images``: with a folder of images."""

    @pytest.fixture(params=grounds)
    def front(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Front]:
        chosen = settings or ApiSettings()
        if images:
            chosen = chosen.__replace__(images_folder=str(tmp_path / "images"))
        with front_on(getattr(request, "param", "lite"), tmp_path, chosen, vault) as made:
            yield made

    return front


def front_on_servers(settings: ApiSettings | None = None, *, scope: Scope = "function") -> object:
    """A fixture: a Front whose databases are on each of ``tests.support.databases.SERVERS``."""

    @pytest.fixture(scope=scope, params=SERVERS)
    def front(request: pytest.FixtureRequest) -> Iterator[Front]:
        with databases_of(request.param, folder_of(request)) as ground:
            made = Front(ground, settings)
            yield made
            made.close()

    return front
