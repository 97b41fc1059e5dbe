"""A cell on a real RabbitMQ whose agents have users of their own: what tests of its border stand on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import amqp  # type: ignore[import-untyped]  # the library ships no types
import pytest

from conductor.agent_identity import IdentityCheck
from rpc import agents, cell_conductor
from rpc.agents import AgentUsers
from rpc.cell_conductor import CellConductorClient
from rpc.transport import Bus
from tests.support import vhosts
from tests.support.bus import rabbit_url
from tests.support.cell_site import Site
from tests.support.scratch import new_name

PASSWORD = "of-an-agent"


class BrokerCell:
    """A virtual host with a cell's conductor that asks for users of hosts, and the users of two hosts."""

    def __init__(self, folder: Path, url: str, *, required: bool = True) -> None:
        self.url = url
        self.vhost = urlsplit(url).path[1:]
        stem = new_name().replace("_", "-")
        self.hosts = (f"{stem}-a", f"{stem}-b")
        vhosts.create_agents(self.hosts, PASSWORD, self.vhost)
        self.bus = Bus(url, name="cell")
        self.site = Site(folder, self.bus)
        self._buses: list[Bus] = []
        self._required = required

    def serve(self) -> None:
        """The conductor begins to listen."""
        border = IdentityCheck(self.site.conductor, AgentUsers(required=self._required))
        cell_conductor.serve_topic(self.bus, "conductor", border, threads=2).check_listening()

    def login(self, host: str) -> str:
        """The URL that the agent of the host has."""
        parts = urlsplit(self.url)
        _, _, place = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{agents.user_of(host)}:{PASSWORD}@{place}").geturl()

    def agent_bus(self, host: str) -> Bus:
        """The bus as the agent of the host opens it."""
        bus = Bus(self.login(host), name=host, confined=agents.confinement_of(agents.user_of(host), host))
        self._buses.append(bus)
        return bus

    def client(self, host: str, bus: Bus | None = None) -> CellConductorClient:
        """What the agent of the host calls its conductor with."""
        return CellConductorClient(bus or self.agent_bus(host), timeout=20.0)

    def channel(self, host: str) -> amqp.Channel:
        """A channel of somebody who has taken the host's user, and keeps to no rules of ours."""
        parts = urlsplit(self.url)
        place = f"{parts.hostname}:{parts.port or 5672}"
        connection = amqp.Connection(place, userid=agents.user_of(host), password=PASSWORD, virtual_host=self.vhost)
        connection.connect()
        return connection.channel()

    def close(self) -> None:
        for bus in self._buses:
            bus.close()
        self.site.close()
        vhosts.delete_users([agents.user_of(host) for host in self.hosts])


@contextmanager
def broker_cell(folder: Path, *, required: bool = True) -> Iterator[BrokerCell]:
    """Skips, with the reason, where there is no RabbitMQ, or no rabbitmqctl to make users with."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(rabbit_url())
            made = BrokerCell(folder, url, required=required)
        except LookupError as why:
            pytest.skip(str(why))
        stack.callback(made.close)
        yield made
