"""The queues of a virtual host of a real RabbitMQ, and how they are deleted under those that use them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import amqp  # type: ignore[import-untyped]  # the library ships no types

from tests.support import vhosts


class Queue(NamedTuple):
    name: str
    durable: bool
    exclusive: bool


def queues(url: str) -> list[Queue]:
    """All of the virtual host of this URL."""
    said = vhosts.ctl("list_queues", "-p", vhost_of(url), "name", "durable", "exclusive", "--formatter", "json")
    return [Queue(row["name"], bool(row["durable"]), bool(row["exclusive"])) for row in json.loads(said)]


class Administrator:
    """Looks at queues and deletes them, over a connection of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        login = {"userid": unquote(parts.username or "guest"), "password": unquote(parts.password or "guest")}
        self._connection = amqp.Connection(f"{parts.hostname}:{parts.port or 5672}", virtual_host=vhost_of(url), **login)
        self._connection.connect()

    def delete(self, names: Iterable[str]) -> None:
        """Delete queues, whoever uses them."""
        with self._connection.channel() as channel:
            for name in names:
                channel.queue_delete(name)

    def consumers(self, name: str) -> int:
        """How many a queue has; 0 also where it is not there."""
        try:
            with self._connection.channel() as channel:
                return int(channel.queue_declare(name, passive=True).consumer_count)
        except amqp.NotFound:
            return 0

    def waiting(self, name: str) -> int:
        """Messages of a queue that no consumer was sent."""
        with self._connection.channel() as channel:
            return int(channel.queue_declare(name, passive=True).message_count)

    def close(self) -> None:
        self._connection.close()


def vhost_of(url: str) -> str:
    return unquote(urlsplit(url).path[1:]) or "/"
