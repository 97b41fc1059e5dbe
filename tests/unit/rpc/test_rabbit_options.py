"""Options of RabbitMQ's driver that a URL leaves open."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rpc import rabbit


@pytest.mark.parametrize(
    ("given", "transient"),
    [
        ({}, "false"),
        ({"rabbit_quorum_queue": "true"}, "true"),
        ({"rabbit_quorum_queue": "true", "rabbit_transient_quorum_queue": "false"}, "false"),
    ],
)
def test_answer_queues_outlive_a_node_if_others_do(given: dict[str, str], transient: str) -> None:
    url = SimpleNamespace(query=dict(given))
    rabbit.fill_in(url)
    assert url.query["rabbit_transient_quorum_queue"] == transient
