"""An API whose serial consoles lead to a real proxy, and an agent on a simulated host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import falcon.testing

from api.console_opts import ConsoleUrls, ProxySettings
from api.consoles.proxy import ConsoleProxyService, bind
from api.opts import ApiSettings
from compute.driver import Guest
from rpc.transport import Bus
from tests.support.agents import Agents, GatedDriver
from tests.support.api import NEWEST, TENANT, Front
from tests.support.cell_conductor import DatabaselessConductor

MEMBER = TENANT | NEWEST
SERIAL = {"protocol": "serial", "type": "serial"}


class ConsoleSite:
    """An API whose serial consoles lead to a proxy."""

    def __init__(self, path: Path, **proxy: Any) -> None:
        listener = bind(ProxySettings(port=0))
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        urls = ConsoleUrls(serial_url=f"ws://{self.address}/", novnc_url="https://vnc.example.org/vnc_lite.html?path=x")
        self.front = Front(path, ApiSettings(cell_timeout=2.0, consoles=urls))
        self.proxy = ConsoleProxyService(ProxySettings(port=0, urls=urls, **proxy), self.front.database, listener)
        self.proxy.start()
        self.bus = Bus(self.front.ground.bus("cell1"))
        self.conductor = DatabaselessConductor(self.bus)
        self.agents = Agents(self.bus, path)

    def host(self, **settings: Any) -> GatedDriver:
        self.agents.start("h1", **settings)
        return self.agents.drivers["h1"]

    def guest(self, name: str = "web") -> str:
        """A server that is ACTIVE on host h1, with its guest."""
        uuid = self.front.boot(name, TENANT)
        self.front.hand_over()
        self.front.activate(uuid)
        self.front.follow_feed()
        self.front.heartbeat("h1")
        guest = Guest(uuid=uuid, name=name, node="h1", fence=1, attempt=1, builder="h1:a", vcpus=1, memory_mb=1, disk_gb=1)
        self.agents.drivers["h1"]._journal.add_guest(guest)
        return uuid

    def ask(self, server: str, headers: dict[str, str] = MEMBER, **asked: str) -> falcon.testing.Result:
        path = f"/v2.1/servers/{server}/remote-consoles"
        return self.front.client.simulate_post(path, headers=headers, json={"remote_console": SERIAL | asked})

    def act(self, server: str, action: str, kind: str, version: str) -> falcon.testing.Result:
        headers = TENANT | {"OpenStack-API-Version": f"compute {version}"}
        return self.front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=headers, json={action: {"type": kind}})

    def url(self, server: str) -> str:
        answer = self.ask(server)
        assert answer.status_code == 200, answer.text
        assert answer.json["remote_console"] | SERIAL == answer.json["remote_console"]
        return str(answer.json["remote_console"]["url"])

    def close(self) -> None:
        self.proxy.stop()
        self.agents.stop()
        self.conductor.stop()
        self.bus.close()
        self.front.close()
