"""What the examples read and change: servers in several states, a flavor with extra specs, a network, groups, an aggregate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.console_opts import ProxySettings
from db.api.claims import server_groups
from db.api.deployment import aggregates
from db.api.servers import networks
from db.sql.engine import ApiDatabase
from tests.conformance.examples import Things
from tests.conformance.exchange import FLAVOR, LARGER_FLAVOR, ROLES, Deployment, Route, routes_of
from tests.support.keys import ED25519
from tests.support.region import Region, host

HOSTS = [host(f"h{n}", cell, disk_gb=2000) for n, cell in ((1, "cell1"), (2, "cell1"), (3, "cell1"), (4, "cell2"), (5, "cell2"))]
SPARE = HOSTS[-1].name
"""The host that examples disable."""
PROJECTS = {"admin": "admin", "member": "p1"}


class ServedRegion(Region):
    """A region whose application can be asked for its routes."""

    def __init__(self, path: Path) -> None:
        self.apps: list[Any] = []
        super().__init__(path, HOSTS, guard=self._seen, consoles=ProxySettings(port=0))

    def _seen(self, app: Any) -> Any:
        self.apps.append(app)
        return app

    def routes(self) -> set[Route]:
        return routes_of(self.apps[-1])


@contextmanager
def world(path: Path) -> Iterator[tuple[ServedRegion, Deployment, Things]]:
    region = ServedRegion(path)
    try:
        region.flavor(FLAVOR)
        region.flavor(LARGER_FLAVOR, vcpus=2, ram=1024, disk=2)
        region.flavor("huge", vcpus=1000)
        region.flavor("described", ram=1024)
        run = region.commands.run
        run("flavor", "set", "described", "--property", "hw:cpu_policy=shared", "--description", "with extra specs")
        run("network", "create", "blue", "--physical-network", "physnet1")
        run("subnet", "add", "blue", "10.0.0.0/24")
        run("aggregate", "create", "rack-1", "--host", "h1", "--property", "ssd=true")
        for project in PROJECTS.values():
            run("group", "create", "apart", "--policy", "anti-affinity", "--project", project, "--user", "u1")
        region.start()
        deployment = Deployment(region.all.api_endpoint)
        try:
            yield region, deployment, _things(region, deployment)
        finally:
            deployment.close()
    finally:
        region.stop()


def _things(region: ServedRegion, deployment: Deployment) -> Things:
    database = ApiDatabase(region.folder.database_url("api"), name="examples")
    try:
        [network] = database.read(networks.list_all)
        groups = {group.project_id: group.uuid for group in database.read(server_groups.list_all)}
        [aggregate] = database.read(aggregates.list_all)
    finally:
        database.dispose_connections()
    for role in ROLES:
        body = {"keypair": {"name": "mine", "public_key": ED25519}}
        deployment.plain("POST", "/os-keypairs", role, body=body)
    by_role = {role: groups[project] for role, project in PROJECTS.items()}
    return Things(
        servers={role: tuple(_servers(deployment, role, network.uuid, by_role[role])) for role in ROLES},
        flavor="described",
        aggregate=str(aggregate.id),
        groups=by_role,
        keypair="mine",
        hosts=tuple(each.name for each in HOSTS),
        network=network.uuid,
        images={role: deployment.upload(role, role="web") for role in ROLES},
    )


def _servers(deployment: Deployment, role: str, network: str, group: str) -> Iterator[str]:
    """The first is ACTIVE and has all that a server can have; the others are in other states."""
    fields: dict[str, Any] = {"metadata": {"role": "web"}, "tags": ["blue", "green"], "key_name": "mine", "description": "web"}
    yield deployment.boot(role, networks=[{"uuid": network}], hints={"group": group}, config_drive=True, **fields)
    stopped = deployment.boot(role)
    deployment.act(stopped, "os-stop", None, "SHUTOFF")
    yield stopped
    resized = deployment.boot(role)
    deployment.act(resized, "resize", {"flavorRef": LARGER_FLAVOR}, "VERIFY_RESIZE")
    yield resized
    shelved = deployment.boot(role)
    deployment.act(shelved, "shelve", None, "SHELVED_OFFLOADED")
    deployment.act(shelved, "lock", None)
    yield shelved
    moved = deployment.boot(role)
    deployment.act(moved, "os-migrateLive", {"host": None, "block_migration": "auto"}, "ACTIVE")
    yield moved
    yield deployment.boot(role, wait="ERROR", flavorRef="huge")
