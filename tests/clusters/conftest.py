"""Clusters of the tests' own. A test skips, and says why, where one cannot be had."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from deploy.cluster import Cluster
from deploy.galera import GaleraTwoWriters
from deploy.postgresql_replicated import PostgreSQLAsynchronous, PostgreSQLReplicated
from deploy.rabbitmq_cluster import RabbitCluster
from deploy.unavailable import Unavailable

C = TypeVar("C", bound=Cluster)


@contextmanager
def standing(kind: type[C]) -> Iterator[C]:
    """A new cluster of this kind, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="superconductor-cluster-") as name:
        Path(name).chmod(0o711)  # nodes run as another user than root
        cluster = kind(Path(name) / "c")
        try:
            try:
                cluster.install_missing()
            except Unavailable as why:
                pytest.skip(f"{kind.NAME} cannot be had: {why}")
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def galera() -> Iterator[GaleraTwoWriters]:
    with standing(GaleraTwoWriters) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitCluster]:
    with standing(RabbitCluster) as cluster:
        yield cluster


@pytest.fixture
def replicated() -> Iterator[PostgreSQLReplicated]:
    with standing(PostgreSQLReplicated) as cluster:
        yield cluster


@pytest.fixture
def asynchronous() -> Iterator[PostgreSQLAsynchronous]:
    with standing(PostgreSQLAsynchronous) as cluster:
        yield cluster
