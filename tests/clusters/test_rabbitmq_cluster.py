"""A bus on a cluster of three brokers: each of them is killed in turn, and calls go on by themselves."""

from __future__ import annotations

import json

import pytest

from deploy.rabbitmq_cluster import RabbitCluster
from objects.context import RequestContext
from rpc.errors import Timeout, Unreachable
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import CONTEXT

PATIENCE = 120.0
CALL_TIMEOUT_S = 5.0


class Parrot:
    def echo(self, context: RequestContext, value: int) -> int:
        return value


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_calls_go_on_when_any_node_is_lost(rabbit: RabbitCluster, kill: bool) -> None:
    vhost = f"v{kill:d}"
    url = rabbit.create_vhost(vhost, "tester", "secret")
    serving, asking = Bus(url), Bus(url)
    server = serving.serve_topic("parrot", "p1", [Parrot()])
    client = asking.make_client("parrot", timeout=CALL_TIMEOUT_S)

    def answered(value: int = 7) -> bool:
        try:
            return bool(client.call(CONTEXT, "echo", int, value=value) == value)
        except (Timeout, Unreachable):
            return False

    try:
        assert wait_until(answered, PATIENCE)
        listed = json.loads(rabbit.run_ctl("list_queues", "-p", vhost, "name", "type", "--formatter", "json"))
        assert {row["type"] for row in listed} == {"quorum"}
        for number in range(len(rabbit.cluster_nodes)):
            rabbit.end_node(number, kill=kill)
            assert wait_until(answered, PATIENCE), f"without node {number}"
            rabbit.revive_node(number)
            assert wait_until(answered, PATIENCE), f"with node {number} again"
    finally:
        server.stop()
        serving.close()
        asking.close()
