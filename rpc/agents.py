"""Agents on a cell's broker: a user for each host, what it may do there, and the queues and exchanges that this rests on.

A broker checks the name of the exchange, of the queue and, for a topic exchange, the first routing key of a message. It does not
check the keys of a CC header, nor where a queue of the sender's own dead-letters to. So an agent may not publish to the exchange
that all topics share. It has ``EXCHANGE``, to which the conductors' topic alone is bound, and one of its own for its messages to
itself.
"""

from __future__ import annotations

import re
import shlex

from objects import errors
from objects.base import Object
from objects.text import checked_name

EXCHANGE = "superconductor.agents"
"""The exchange of agents that have their own users. Cell conductors declare it and bind their topic to it."""

SHARED_EXCHANGE = "superconductor"
"""The exchange of all topics. Orders arrive through it."""

TOPIC = "compute"
USER_PREFIX = "compute."
"""Prefix of the name of a host's user on the virtual host /; the host's name follows."""

USER_LENGTH = 200
"""Maximum length of the name of a host's user, because names of reply queues contain it."""


class Confined(Object, frozen=True, kw_only=True):
    """How an agent with a user of its own uses the bus: by its own queue, and declaring nothing that is not its own.

    ``queue``: the name of its queue, and of the exchange for messages to itself.
    """

    queue: str


class AgentUsers(Object, frozen=True, kw_only=True):
    """``required``: agents must have broker users of their own. ``prefix``: what the name of such a user begins with."""

    required: bool = False
    prefix: str = USER_PREFIX


class BrokerPermissions(Object, frozen=True, kw_only=True):
    """Regular expressions of RabbitMQ. ``binding``: of routing keys of ``SHARED_EXCHANGE`` that its queues may be bound to."""

    configure: str
    write: str
    read: str
    binding: str


def prefix_of(vhost: str | None) -> str:
    """What the names of the users of hosts begin with on this virtual host: so two cells on one broker share no users."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", (vhost or "").strip("/"))
    return f"{USER_PREFIX}{name}." if name else USER_PREFIX


def user_of(host: str, prefix: str = USER_PREFIX) -> str:
    """The broker's user of a host. Raises Invalid for a name that is none, or too long for its queues."""
    user = prefix + checked_name("host", host)
    if len(user) > USER_LENGTH:
        raise errors.Invalid(
            f"host {host}: its broker user {user!r} has more than {USER_LENGTH} characters; give it a shorter name"
        )
    return user


def host_of(user: str | None, prefix: str = USER_PREFIX) -> str | None:
    """The host that this is the user of; None for any other user."""
    return user.removeprefix(prefix) or None if user is not None and user.startswith(prefix) else None


def confinement_of(user: str | None, host: str) -> Confined | None:
    """How the agent of ``host`` uses the bus with this login; None for a user that it shares with others.

    The prefix is the conductors' to know: a user that ends with the host's name is the host's.
    """
    return Confined(queue=f"{TOPIC}.{host}") if user is not None and user != host and user.endswith(host) else None


def reply_prefix(user: str) -> str:
    """What the names of reply queues of this user's processes begin with."""
    return f"reply_{user}_"


def permissions_of(host: str, prefix: str = USER_PREFIX) -> BrokerPermissions:
    """What the user of a host needs, and no more: its own queue and answers, its own exchange, and the conductors' topic."""
    own_queue = re.escape(f"{TOPIC}.{host}")
    answers = re.escape(reply_prefix(user_of(host, prefix))) + "[0-9a-f]+"
    return BrokerPermissions(
        configure=f"^({own_queue}|{answers})$",
        write=f"^({own_queue}|{re.escape(EXCHANGE)})$",
        read=f"^({own_queue}|{answers}|{SHARED_EXCHANGE})$",
        binding=f"^{own_queue}$",
    )


def permission_commands(vhost: str, host: str, prefix: str = USER_PREFIX) -> list[str]:
    """The lines of shell that make the user of a host and give it its rights. They read the password from standard input."""
    user, may = user_of(host, prefix), permissions_of(host, prefix)
    lines = [
        ["add_user", user],
        ["set_permissions", "-p", vhost, user, may.configure, may.write, may.read],
        ["set_topic_permissions", "-p", vhost, user, SHARED_EXCHANGE, "^$", may.binding],
    ]
    return [shlex.join(["rabbitmqctl", *line]) for line in lines]


def permission_definitions(vhost: str, host: str, password: str, prefix: str = USER_PREFIX) -> dict[str, list[dict[str, str]]]:
    """The same as ``rabbitmqctl import_definitions`` takes it."""
    user, may = user_of(host, prefix), permissions_of(host, prefix)
    place = {"user": user, "vhost": vhost}
    return {
        "users": [{"name": user, "password": password, "tags": ""}],
        "permissions": [{**place, "configure": may.configure, "write": may.write, "read": may.read}],
        "topic_permissions": [{**place, "exchange": SHARED_EXCHANGE, "write": "^$", "read": may.binding}],
    }
