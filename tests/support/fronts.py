"""Grounds for a ``Front`` whose databases are on one of the servers, while its buses are embedded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from db.sql.sync import Kind
from tests.support.databases import pool
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
