"""What the broker's user of a host may touch: RabbitMQ's regular expressions, matched as the broker matches them."""

from __future__ import annotations

import re

import pytest

from objects import errors
from rpc import agents

HOST = "h1.example"
RIGHTS = agents.permissions_of(HOST)
OWN = "compute.h1.example"
ANSWERS = "reply_compute.h1.example_0123456789abcdef0123456789abcdef"
FOREIGN = [
    "compute.h2",
    "compute.h1xexample",
    "compute.h1.example2",
    "xcompute.h1.example",
    "compute",
    "compute_fanout",
    "cell-conductor",
    "cell-conductor_fanout_0123",
    "scheduler",
    "super-conductor",
    "amq.default",
    "amq.topic",
    "",
    "reply_compute.h2_0123456789abcdef0123456789abcdef",
    "reply_compute.h1.example_b_0123456789abcdef",
    "reply_cell1_0123456789abcdef0123456789abcdef",
    "reply_0123456789abcdef0123456789abcdef",
    "superconductor-dead-letters",
]


@pytest.mark.parametrize("pattern", [RIGHTS.configure, RIGHTS.write, RIGHTS.read, RIGHTS.binding])
@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_of_others_is_touched(pattern: str, name: str) -> None:
    assert not re.search(pattern, name)


def test_what_an_agent_needs_is_allowed() -> None:
    for name in (OWN, ANSWERS):
        assert re.search(RIGHTS.configure, name)
        assert re.search(RIGHTS.read, name)
    assert re.search(RIGHTS.write, OWN)
    assert re.search(RIGHTS.write, agents.EXCHANGE)
    assert re.search(RIGHTS.read, agents.SHARED_EXCHANGE)
    assert re.search(RIGHTS.binding, OWN)


def test_an_agent_neither_declares_nor_reads_its_exchange() -> None:
    assert not re.search(RIGHTS.configure, agents.EXCHANGE)
    assert not re.search(RIGHTS.read, agents.EXCHANGE)


def test_an_agent_does_not_publish_to_all_topics() -> None:
    assert not re.search(RIGHTS.write, agents.SHARED_EXCHANGE)
    assert not re.search(RIGHTS.configure, agents.SHARED_EXCHANGE)


@pytest.mark.parametrize("name", ["", "a b", "h1\n", ".*", "h$", "x" * 256, "x" * 250])
def test_a_name_of_no_host_gets_no_user(name: str) -> None:
    with pytest.raises(errors.Invalid):
        agents.permissions_of(name)


def test_the_host_of_a_user_and_back() -> None:
    assert agents.host_of(agents.user_of(HOST)) == HOST
    assert [agents.host_of(user) for user in (None, "", "cell1", "compute.", "computex", "guest")] == [None] * 6


def test_an_agent_is_confined_by_its_host_user() -> None:
    confined = agents.confinement_of("compute.h1", "h1")
    assert confined is not None
    assert confined.queue == "compute.h1"
    assert [agents.confinement_of(user, "h1") for user in (None, "guest", "cell1", "h1", "compute.h2")] == [None] * 5


def test_the_commands_are_safe_in_a_shell() -> None:
    add, permissions, topics = agents.permission_commands("cell 1", "h1")
    assert add == "rabbitmqctl add_user compute.h1"
    assert permissions.startswith("rabbitmqctl set_permissions -p 'cell 1' compute.h1 '^(compute")
    assert topics == r"rabbitmqctl set_topic_permissions -p 'cell 1' compute.h1 superconductor '^$' '^compute\.h1$'"
