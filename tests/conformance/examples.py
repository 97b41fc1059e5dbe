"""An example of a request for each route of the Compute API that may be served here, in the form that each version has.

An example prepares what its request needs, and sends it. Routes that this API does not serve are here too where they may come.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

from objects.base import Object
from tests.conformance.exchange import FLAVOR, LARGER_FLAVOR, Deployment, Exchange, Route, Version
from tests.support.keys import ED25519
from tests.support.region import IMAGE


class Things(Object, frozen=True, kw_only=True):
    """What was created before: by role where projects matter."""

    servers: dict[str, tuple[str, ...]]
    flavor: str
    aggregate: str
    groups: dict[str, str]
    keypair: str
    hosts: tuple[str, ...]
    network: str
    images: dict[str, str]


class Asking:
    """Sends the requests of one route as one role in one version."""

    def __init__(self, deployment: Deployment, things: Things, role: str, version: Version, route: Route) -> None:
        self.deployment, self.things, self.role, self.version, self.route = deployment, things, role, version, route

    def send(self, *values: str, body: Any = None, query: str = "", allowed: tuple[int, ...] = ()) -> Exchange:
        return self.deployment.ask(self.role, self.version, self.route, values, body, query, allowed)

    def since(self, minor: int) -> bool:
        return self.version >= (2, minor)

    def boot(self, **fields: Any) -> str:
        return self.deployment.boot(self.role, **fields)

    def plain(self, method: str, path: str, body: Any = None, version: Version = (2, 53), role: str = "") -> Any:
        return self.deployment.plain(method, path, role or self.role, version, body)

    def drop(self, server: str) -> None:
        self.deployment.plain("DELETE", f"/servers/{server}")


Example = Callable[[Asking], None]
EXAMPLES: dict[Route, Example] = {}
"""Requests that change something."""


SERIAL_CONSOLE = {"protocol": "serial", "type": "serial"}


def example(method: str, path: str, action: str = "") -> Callable[[Example], Example]:
    def add(function: Example) -> Example:
        EXAMPLES[Route(method, path, action)] = function
        return function

    return add


def name() -> str:
    return f"x-{uuid.uuid4().hex[:10]}"


# -- reading ---------------------------------------------------------------------------------------------------------------

_BETWEEN = "start=2020-01-01T00:00:00&end=2099-01-01T00:00:00"
QUERIES: dict[str, tuple[tuple[Version, str], ...]] = {
    "/servers": (((2, 1), "limit=1"), ((2, 1), "all_tenants=1&sort_key=created_at&sort_dir=asc"), ((2, 26), "tags=blue")),
    "/servers/detail": (
        ((2, 1), "limit=1"),
        ((2, 1), "all_tenants=1&name=s&status=ACTIVE"),
        ((2, 66), "changes-before=2099-01-01T00:00:00Z"),
    ),
    "/flavors": (((2, 1), "limit=1"), ((2, 1), "is_public=None"), ((2, 1), "minRam=1&sort_key=name")),
    "/flavors/detail": (((2, 1), "limit=1"), ((2, 1), "is_public=None")),
    "/os-keypairs": (((2, 35), "limit=1"),),
    "/os-hypervisors": (((2, 33), "limit=1"), ((2, 53), "with_servers=true&hypervisor_hostname_pattern=h")),
    "/os-hypervisors/detail": (((2, 33), "limit=1"), ((2, 53), "with_servers=true")),
    "/os-hypervisors/{}": (((2, 53), "with_servers=true"),),
    "/os-migrations": (((2, 1), "status=finished"), ((2, 59), "limit=1"), ((2, 80), "user_id=u1")),
    "/os-server-groups": (((2, 1), "limit=1"), ((2, 1), "all_projects=True")),
    "/os-services": (((2, 1), "binary=nova-compute"),),
    "/servers/{}/os-instance-actions": (((2, 58), "limit=1"),),
    "/os-simple-tenant-usage": (((2, 1), "detailed=1"), ((2, 1), _BETWEEN), ((2, 40), "limit=1&detailed=1")),
    "/os-simple-tenant-usage/{}": (((2, 1), _BETWEEN), ((2, 40), "limit=1")),
    "/limits": (((2, 1), "tenant_id=p1"),),
    "/os-quota-sets/{}": (((2, 1), "user_id=u1"),),
    "/os-quota-sets/{}/detail": (((2, 1), "user_id=u1"),),
    "/images": (((2, 1), "limit=1"), ((2, 1), "status=ACTIVE&type=snapshot")),
    "/images/detail": (((2, 1), "limit=1"), ((2, 1), "minDisk=1&changes-since=2020-01-01T00:00:00Z")),
}
"""Queries of lists, each with the first version that has it; every list is read without one too."""


def values(asking: Asking, path: str) -> Iterator[tuple[str, ...]]:
    """The values of a path's parameters; none if the harness knows none."""
    parts = path.strip("/").split("/")
    places = [n for n, part in enumerate(parts) if part == "{}"]
    if not places:
        yield ()
        return
    first = _firsts(asking, parts[0])
    for value in first:
        if len(places) == 1:
            yield (value,)
        else:
            for second in _seconds(asking, value, parts[places[1] - 1]):
                yield (value, second)


_KNOWN = {"extensions": ("os-keypairs",), "versions": ("v2.0", "v2.1")}
"""Values that are the same in every deployment, by collection."""


def _firsts(asking: Asking, collection: str) -> tuple[str, ...]:
    things = asking.things
    match collection:
        case "servers":
            return things.servers["admin"] + things.servers["member"] if asking.role == "admin" else things.servers[asking.role]
        case "flavors":
            return (things.flavor, FLAVOR)
        case "images":
            return (things.images[asking.role],)
        case "os-aggregates":
            return (things.aggregate,)
        case "os-server-groups":
            return (things.groups[asking.role],)
        case "os-keypairs":
            return (things.keypair,)
        case "os-quota-sets" | "os-simple-tenant-usage" | "os-quota-class-sets":
            return ("default",) if collection == "os-quota-class-sets" else ("p1",)
        case "os-hypervisors":
            found = asking.plain("GET", "/os-hypervisors", version=asking.version, role="admin")["hypervisors"]
            return tuple(str(each["id"]) for each in found[:2])
        case "os-hosts":
            return things.hosts[:1]
        case "os-console-auth-tokens" if asking.since(31):
            path = f"/servers/{things.servers['admin'][0]}/remote-consoles"
            made = asking.plain("POST", path, {"remote_console": SERIAL_CONSOLE}, role="admin")["remote_console"]
            return (made["url"].partition("token=")[2],)
        case _:
            return _KNOWN.get(collection, ())


def _seconds(asking: Asking, first: str, collection: str) -> tuple[str, ...]:
    full = first in [servers[0] for servers in asking.things.servers.values()]
    match collection:
        case "metadata":
            return ("role",) if full or first in asking.things.images.values() else ()
        case "tags":
            return ("blue",) if full else ()
        case "ips":
            return tuple(asking.plain("GET", f"/servers/{first}/ips")["addresses"])
        case "os-instance-actions":
            found = asking.plain("GET", f"/servers/{first}/os-instance-actions")["instanceActions"]
            return tuple(each["request_id"] for each in found)
        case "os-interface":
            found = asking.plain("GET", f"/servers/{first}/os-interface")["interfaceAttachments"]
            return tuple(each["port_id"] for each in found)
        case "os-extra_specs":
            return ("hw:cpu_policy",) if first == asking.things.flavor else ()
        case _:
            return ()


NOT_REACHED = {
    Route("POST", "/servers/{}/action", "removeSecurityGroup"): "no group can be removed here",
    Route("GET", "/os-hosts/{}/reboot"): "never done here",
    Route("GET", "/os-hosts/{}/shutdown"): "never done here",
    Route("GET", "/os-hosts/{}/startup"): "never done here",
    Route("GET", "/servers/{}/migrations/{}"): "needs a live migration under way",
    Route("DELETE", "/servers/{}/migrations/{}"): "needs a live migration under way",
    Route("POST", "/servers/{}/migrations/{}/action", "force_complete"): "needs a live migration under way",
    Route("DELETE", "/os-services/{}"): "needs a service that has ended",
    Route("POST", "/servers/{}/action", "restore"): "needs deletes that wait to be undone",
    Route("GET", "/servers/{}/os-volume_attachments/{}"): "needs a volume",
    Route("POST", "/servers/{}/action", "os-resetState"): "needs a server that may be in ERROR",
    Route("POST", "/servers/{}/action", "shelveOffload"): "needs a shelved server that is still on its host",
    Route("POST", "/servers/{}/action", "os-getVNCConsole"): "needs guests with a screen",
    Route("POST", "/servers/{}/action", "os-getSPICEConsole"): "needs guests with SPICE",
}
"""Routes whose success simulated hosts cannot show, and why. Their refusals are exchanges too."""
SCHEMA_DEFECTS = {r"hosts_not_run/\d+: .* is not a 'uuid'": "Nova's schema wants UUIDs where Nova itself names hosts"}
"""Misfits that are mistakes of Nova's schemas, as regular expressions, and why."""
OTHERS = ("/os-networks", "/os-tenant-networks", "/os-volumes", "/os-snapshots", "/os-baremetal-nodes")
"""Paths of proxies to other services, which Nova has given up: answers of ours there only say so."""


# -- servers ---------------------------------------------------------------------------------------------------------------


@example("POST", "/servers")
def create(asking: Asking) -> None:
    server: dict[str, Any] = {"name": name(), "flavorRef": FLAVOR, "imageRef": IMAGE, "metadata": {"role": "web"}}
    if asking.since(19):
        server["description"] = "made by an example"
    if asking.since(37):
        server["networks"] = "none"
    if asking.since(52):
        server["tags"] = ["blue", "green"]
    if asking.since(90):
        server["hostname"] = "web-1"
    if asking.since(94):
        server["hostname"] = "web-1.example.org"
    several = server | {"min_count": 1, "max_count": 2, "return_reservation_id": True, "name": name()}
    several.pop("hostname", None)
    block: dict[str, Any] = {"source_type": "image", "destination_type": "local", "uuid": IMAGE, "boot_index": 0}
    sent = [server, several, server | {"name": name(), "key_name": asking.things.keypair, "block_device_mapping_v2": [block]}]
    if asking.since(74) and asking.role == "admin":
        sent.append(server | {"name": name(), "host": asking.things.hosts[0]})
    for each in sent:
        if "networks" not in each:
            each["networks"] = []
        made = asking.send(body={"server": each})
        if made.status == 202 and "server" in made.response:
            asking.deployment.wait(made.response["server"]["id"], "ACTIVE")
            asking.drop(made.response["server"]["id"])
        for server_name in [each["name"]] if made.status == 202 and "server" not in made.response else []:
            for found in asking.plain("GET", f"/servers?name={server_name}")["servers"]:
                asking.drop(found["id"])


@example("PUT", "/servers/{}")
def update(asking: Asking) -> None:
    server = asking.things.servers[asking.role][0]
    asking.send(server, body={"server": {"name": name()}})
    if asking.since(19):
        asking.send(server, body={"server": {"name": name(), "description": "changed"}})
        asking.send(server, body={"server": {"description": None}})
    if asking.since(90):
        asking.send(server, body={"server": {"hostname": "web-2"}})


@example("DELETE", "/servers/{}")
def delete(asking: Asking) -> None:
    asking.send(asking.boot())


@example("POST", "/servers/{}/metadata")
def add_metadata(asking: Asking) -> None:
    asking.send(asking.things.servers[asking.role][0], body={"metadata": {"role": "web", "more": "x"}})


@example("PUT", "/servers/{}/metadata")
def replace_metadata(asking: Asking) -> None:
    asking.send(asking.things.servers[asking.role][0], body={"metadata": {"role": "web"}})


@example("PUT", "/servers/{}/metadata/{}")
def set_metadata_item(asking: Asking) -> None:
    asking.send(asking.things.servers[asking.role][0], "role", body={"meta": {"role": "db"}})


@example("DELETE", "/servers/{}/metadata/{}")
def delete_metadata_item(asking: Asking) -> None:
    server = asking.things.servers[asking.role][0]
    asking.plain("POST", f"/servers/{server}/metadata", {"metadata": {"gone": "1"}})
    asking.send(server, "gone")


@example("PUT", "/servers/{}/tags")
def replace_tags(asking: Asking) -> None:
    if asking.since(26):
        asking.send(asking.things.servers[asking.role][0], body={"tags": ["blue", "green"]})


@example("PUT", "/servers/{}/tags/{}")
def add_tag(asking: Asking) -> None:
    server = asking.things.servers[asking.role][0]
    if asking.since(26):
        asking.send(server, "blue")  # has it
        asking.send(server, name())
        asking.plain("PUT", f"/servers/{server}/tags", {"tags": ["blue", "green"]})


@example("DELETE", "/servers/{}/tags/{}")
def delete_tag(asking: Asking) -> None:
    server = asking.things.servers[asking.role][0]
    if asking.since(26):
        asking.plain("PUT", f"/servers/{server}/tags/gone")
        asking.send(server, "gone")


@example("DELETE", "/servers/{}/tags")
def delete_tags(asking: Asking) -> None:
    if asking.since(26):
        server = asking.things.servers[asking.role][0]
        asking.send(server)
        asking.plain("PUT", f"/servers/{server}/tags", {"tags": ["blue", "green"]})


# -- actions ---------------------------------------------------------------------------------------------------------------


Bodies = Callable[[Asking], list[Any]]


def action(action_name: str, *before: tuple[str, Any, str], bodies: Bodies | None = None, allowed: tuple[int, ...] = ()) -> None:
    """An action on a server of its own, after these: each with its value and the status that it leads to."""

    def act(asking: Asking) -> None:
        for value in bodies(asking) if bodies else [None]:
            server = asking.boot()
            for earlier, its_value, status in before:
                asking.deployment.act(server, earlier, its_value, status)
            asking.send(server, body={action_name: value}, allowed=allowed)
            if action_name != "forceDelete":
                asking.drop(server)

    EXAMPLES[Route("POST", "/servers/{}/action", action_name)] = act


def _lock(asking: Asking) -> list[Any]:
    return [None, {"locked_reason": "because"}] if asking.since(73) else [None]


def _migrate(asking: Asking) -> list[Any]:
    return [None, {"host": None}] if asking.since(56) else [None]


def _live(asking: Asking) -> list[Any]:
    if not asking.since(25):
        return [{"host": None, "block_migration": True, "disk_over_commit": False}]
    return [{"host": None, "block_migration": "auto"}]


def _rebuild(asking: Asking) -> list[Any]:
    whole: dict[str, Any] = {"imageRef": IMAGE, "adminPass": "given-pass"}
    whole |= {"key_name": asking.things.keypair} if asking.since(54) else {}
    file = {"path": "/etc/motd", "contents": "aGVsbG8="}
    whole |= {"user_data": "aGVsbG8="} if asking.since(57) else {"personality": [file]}
    return [{"imageRef": IMAGE}, whole]


def _unshelve(asking: Asking) -> list[Any]:
    if asking.since(91) and asking.role == "admin":
        return [None, {"host": asking.things.hosts[0]}, {"availability_zone": None}]
    return [None, {"availability_zone": "nova"}] if asking.since(77) else [None]


RESIZED = ("resize", {"flavorRef": LARGER_FLAVOR}, "VERIFY_RESIZE")
for each in ("os-stop", "pause", "suspend", "shelve", "forceDelete", "trigger_crash_dump"):
    action(each)
action("os-start", ("os-stop", None, "SHUTOFF"))
action("unpause", ("pause", None, "PAUSED"))
action("resume", ("suspend", None, "SUSPENDED"))
action("unshelve", ("shelve", None, "SHELVED_OFFLOADED"), bodies=_unshelve)
action("lock", bodies=_lock)
action("createImage", bodies=lambda _: [{"name": "snap"}, {"name": "snap", "metadata": {"a": "b"}}])
action("createBackup", bodies=lambda _: [{"name": "copy", "backup_type": "daily", "rotation": 1}])
action("rescue", bodies=lambda _: [None, {"adminPass": "given-pass", "rescue_image_ref": IMAGE}])
action("unrescue", ("rescue", None, "RESCUE"))
action("changePassword", bodies=lambda _: [{"adminPass": "given-pass"}])
action("unlock", ("lock", None, "ACTIVE"))
action("reboot", bodies=lambda _: [{"type": "HARD"}, {"type": "SOFT"}])
action("rebuild", bodies=_rebuild)
action("resize", bodies=lambda _: [{"flavorRef": LARGER_FLAVOR}])
action("confirmResize", RESIZED)
action("revertResize", RESIZED)
action("migrate", bodies=_migrate)
action("os-migrateLive", bodies=_live)
action("os-getConsoleOutput", bodies=lambda _: [{}, {"length": 5}])
action("os-resetState", bodies=lambda _: [{"state": "active"}], allowed=(409,))
action("injectNetworkInfo")
action("restore", allowed=(409,))


@example("POST", "/servers/{}/action", "addSecurityGroup")
def add_security_group(asking: Asking) -> None:
    server = asking.boot(networks=[{"uuid": asking.things.network}])
    asking.send(server, body={"addSecurityGroup": {"name": "default"}})
    asking.drop(server)


@example("POST", "/servers/{}/action", "removeSecurityGroup")
def remove_security_group(asking: Asking) -> None:
    server = asking.boot(networks=[{"uuid": asking.things.network}])
    asking.send(server, body={"removeSecurityGroup": {"name": "default"}}, allowed=(409,))
    asking.drop(server)


def _attach(asking: Asking, server: str) -> str:
    """Attach an interface; its port ID, once the host has done that."""
    body = {"interfaceAttachment": {"net_id": asking.things.network}}
    made = asking.plain("POST", f"/servers/{server}/os-interface", body)["interfaceAttachment"]
    asking.deployment.rest(server)
    return str(made["port_id"])


@example("POST", "/servers/{}/os-interface")
def attach_interface(asking: Asking) -> None:
    server = asking.boot()
    tag = {"tag": "blue"} if asking.since(49) else {}
    asking.send(server, body={"interfaceAttachment": {"net_id": asking.things.network} | tag})
    asking.drop(server)


@example("DELETE", "/servers/{}/os-interface/{}")
def detach_interface(asking: Asking) -> None:
    server = asking.boot()
    asking.send(server, _attach(asking, server))
    asking.drop(server)


@example("POST", "/servers/{}/action", "unlock")
def unlock(asking: Asking) -> None:
    server = asking.boot()
    asking.plain("POST", f"/servers/{server}/action", {"lock": None})
    asking.send(server, body={"unlock": None})
    asking.drop(server)


@example("POST", "/servers/{}/action", "shelveOffload")
def offload(asking: Asking) -> None:
    """A shelved server leaves its host at once here, so that the action has nothing to do, or is too late."""
    server = asking.boot()
    asking.plain("POST", f"/servers/{server}/action", {"shelve": None})
    asking.send(server, body={"shelveOffload": None}, allowed=(409,))
    asking.deployment.wait(server, "SHELVED_OFFLOADED")
    asking.drop(server)


@example("POST", "/servers/{}/action", "evacuate")
def evacuate(asking: Asking) -> None:
    """Its host must be down for that; here one is called so."""
    server = asking.boot()
    host = asking.deployment.show(server)["OS-EXT-SRV-ATTR:host"]
    services = asking.plain("GET", "/os-services?binary=nova-compute", role="admin")["services"]
    [service] = [each["id"] for each in services if each["host"] == host]
    asking.plain("PUT", f"/os-services/{service}", {"forced_down": True}, role="admin")
    try:
        value: dict[str, Any] = {} if asking.since(14) else {"onSharedStorage": False}
        asking.send(server, body={"evacuate": value}, allowed=(409,))
    finally:
        asking.plain("PUT", f"/os-services/{service}", {"forced_down": False}, role="admin")
    asking.drop(server)


# -- flavors ---------------------------------------------------------------------------------------------------------------


def _flavor(asking: Asking, **fields: Any) -> str:
    body = {"flavor": {"name": name(), "ram": 64, "vcpus": 1, "disk": 1} | fields}
    return str(asking.plain("POST", "/flavors", body, role="admin")["flavor"]["id"])


@example("POST", "/flavors")
def create_flavor(asking: Asking) -> None:
    described = {"description": "made by an example"} if asking.since(55) else {}
    small = {"name": name(), "ram": 64, "vcpus": 1, "disk": 1, "id": None} | described
    made = [asking.send(body={"flavor": small})]
    full = {"OS-FLV-EXT-DATA:ephemeral": 0, "swap": 0, "rxtx_factor": 2.0, "os-flavor-access:is_public": False, "id": name()}
    made.append(asking.send(body={"flavor": small | {"name": name()} | full}))
    for each in made:
        if each.status == 200:
            asking.plain("DELETE", f"/flavors/{each.response['flavor']['id']}", role="admin")


@example("PUT", "/flavors/{}")
def update_flavor(asking: Asking) -> None:
    if asking.since(55):
        asking.send(asking.things.flavor, body={"flavor": {"description": "changed"}})


@example("DELETE", "/flavors/{}")
def delete_flavor(asking: Asking) -> None:
    asking.send(_flavor(asking))


@example("POST", "/flavors/{}/os-extra_specs")
def add_specs(asking: Asking) -> None:
    asking.send(asking.things.flavor, body={"extra_specs": {"hw:cpu_policy": "shared"}})


@example("PUT", "/flavors/{}/os-extra_specs/{}")
def set_spec(asking: Asking) -> None:
    asking.send(asking.things.flavor, "hw:cpu_policy", body={"hw:cpu_policy": "shared"})


@example("DELETE", "/flavors/{}/os-extra_specs/{}")
def delete_spec(asking: Asking) -> None:
    flavor = _flavor(asking)
    asking.plain("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"hw:cpu_policy": "shared"}}, role="admin")
    asking.send(flavor, "hw:cpu_policy")
    asking.plain("DELETE", f"/flavors/{flavor}", role="admin")


@example("GET", "/flavors/{}/os-flavor-access")
def list_access(asking: Asking) -> None:
    flavor = _flavor(asking, **{"os-flavor-access:is_public": False})
    asking.plain("POST", f"/flavors/{flavor}/action", {"addTenantAccess": {"tenant": "p1"}}, role="admin")
    asking.send(flavor)
    asking.plain("DELETE", f"/flavors/{flavor}", role="admin")


@example("POST", "/flavors/{}/action", "addTenantAccess")
def add_access(asking: Asking) -> None:
    flavor = _flavor(asking, **{"os-flavor-access:is_public": False})
    asking.send(flavor, body={"addTenantAccess": {"tenant": "p1"}})
    asking.plain("DELETE", f"/flavors/{flavor}", role="admin")


@example("POST", "/flavors/{}/action", "removeTenantAccess")
def remove_access(asking: Asking) -> None:
    flavor = _flavor(asking, **{"os-flavor-access:is_public": False})
    asking.plain("POST", f"/flavors/{flavor}/action", {"addTenantAccess": {"tenant": "p1"}}, role="admin")
    asking.send(flavor, body={"removeTenantAccess": {"tenant": "p1"}})
    asking.plain("DELETE", f"/flavors/{flavor}", role="admin")


# -- key pairs, groups, aggregates -----------------------------------------------------------------------------------------


@example("POST", "/os-keypairs")
def create_keypair(asking: Asking) -> None:
    typed = {"type": "ssh"} if asking.since(2) else {}
    names = [name()]
    asking.send(body={"keypair": {"name": names[0], "public_key": ED25519} | typed})
    if not asking.since(92):
        for asked in (typed, {"type": "x509"}) if typed else (typed,):
            names.append(name())
            asking.send(body={"keypair": {"name": names[-1]} | asked})
    for each in names:
        asking.plain("DELETE", f"/os-keypairs/{each}")


@example("DELETE", "/os-keypairs/{}")
def delete_keypair(asking: Asking) -> None:
    made = name()
    asking.plain("POST", "/os-keypairs", {"keypair": {"name": made, "public_key": ED25519}})
    asking.send(made)


def group_body(version: Version, group_name: str) -> dict[str, Any]:
    policy = {"policy": "anti-affinity"} if version >= (2, 64) else {"policies": ["anti-affinity"]}
    return {"server_group": {"name": group_name} | policy}


@example("POST", "/os-server-groups")
def create_group(asking: Asking) -> None:
    bodies = [group_body(asking.version, name())]
    if asking.since(64):
        rules = {"policy": "anti-affinity", "rules": {"max_server_per_host": 2}}
        bodies.append({"server_group": {"name": name()} | rules})
    for body in bodies:
        made = asking.send(body=body)
        if made.status == 200:
            asking.plain("DELETE", f"/os-server-groups/{made.response['server_group']['id']}")


@example("DELETE", "/os-server-groups/{}")
def delete_group(asking: Asking) -> None:
    made = asking.plain("POST", "/os-server-groups", group_body((2, 1), name()), (2, 1))
    asking.send(str(made["server_group"]["id"]))


def _aggregate(asking: Asking) -> str:
    made = asking.plain("POST", "/os-aggregates", {"aggregate": {"name": name()}}, role="admin")
    return str(made["aggregate"]["id"])


def _drop_aggregate(asking: Asking, aggregate: str) -> None:
    asking.plain("DELETE", f"/os-aggregates/{aggregate}", role="admin")


@example("POST", "/os-aggregates")
def create_aggregate(asking: Asking) -> None:
    for more in ({}, {"availability_zone": "zone-x"}):
        made = asking.send(body={"aggregate": {"name": name()} | more})
        if made.status == 200:
            _drop_aggregate(asking, str(made.response["aggregate"]["id"]))


@example("PUT", "/os-aggregates/{}")
def update_aggregate(asking: Asking) -> None:
    aggregate = _aggregate(asking)
    asking.send(aggregate, body={"aggregate": {"name": name()}})
    _drop_aggregate(asking, aggregate)


@example("DELETE", "/os-aggregates/{}")
def delete_aggregate(asking: Asking) -> None:
    asking.send(_aggregate(asking))


@example("POST", "/os-aggregates/{}/action", "add_host")
def add_host(asking: Asking) -> None:
    aggregate, host = _aggregate(asking), asking.things.hosts[0]
    if asking.send(aggregate, body={"add_host": {"host": host}}).status == 200:
        asking.plain("POST", f"/os-aggregates/{aggregate}/action", {"remove_host": {"host": host}}, role="admin")
    _drop_aggregate(asking, aggregate)


@example("POST", "/os-aggregates/{}/action", "remove_host")
def remove_host(asking: Asking) -> None:
    aggregate, host = _aggregate(asking), asking.things.hosts[0]
    asking.plain("POST", f"/os-aggregates/{aggregate}/action", {"add_host": {"host": host}}, role="admin")
    if asking.send(aggregate, body={"remove_host": {"host": host}}).status != 200:
        asking.plain("POST", f"/os-aggregates/{aggregate}/action", {"remove_host": {"host": host}}, role="admin")
    _drop_aggregate(asking, aggregate)


@example("POST", "/os-aggregates/{}/action", "set_metadata")
def set_metadata(asking: Asking) -> None:
    aggregate = _aggregate(asking)
    asking.send(aggregate, body={"set_metadata": {"metadata": {"key": "value"}}})
    _drop_aggregate(asking, aggregate)


@example("POST", "/os-aggregates/{}/images")
def cache_images(asking: Asking) -> None:
    if asking.since(81):
        asking.send(asking.things.aggregate, body={"cache": [{"id": IMAGE}]})


# -- images ----------------------------------------------------------------------------------------------------------------


@example("DELETE", "/images/{}")
def delete_image(asking: Asking) -> None:
    asking.send(asking.deployment.upload(asking.role))


@example("POST", "/images/{}/metadata")
@example("PUT", "/images/{}/metadata")
def change_image_metadata(asking: Asking) -> None:
    asking.send(asking.things.images[asking.role], body={"metadata": {"role": "web", "kind": "small"}})


@example("PUT", "/images/{}/metadata/{}")
def change_image_item(asking: Asking) -> None:
    asking.send(asking.things.images[asking.role], "role", body={"meta": {"role": "web"}})


@example("DELETE", "/images/{}/metadata/{}")
def delete_image_item(asking: Asking) -> None:
    image = asking.things.images[asking.role]
    asking.plain("POST", f"/images/{image}/metadata", {"metadata": {"gone": "soon"}}, version=(2, 1))
    asking.send(image, "gone")


# -- services, quotas, events ----------------------------------------------------------------------------------------------


def _service_of(asking: Asking, host: str) -> str:
    found = asking.plain("GET", "/os-services?binary=nova-compute", role="admin")["services"]
    return next(str(each["id"]) for each in found if each["host"] == host)


@example("PUT", "/os-services/{}")
def change_service(asking: Asking) -> None:
    host = asking.things.hosts[-1]
    if asking.since(53):
        service = _service_of(asking, host)
        asking.send(service, body={"status": "disabled", "disabled_reason": "repair"})
        asking.send(service, body={"forced_down": True})
        asking.send(service, body={"forced_down": False})
        asking.send(service, body={"status": "enabled"})
        return
    named = {"host": host, "binary": "nova-compute"}
    asking.send("disable", body=named)
    asking.send("disable-log-reason", body=named | {"disabled_reason": "repair"})
    asking.send("enable", body=named)
    if asking.since(11):
        asking.send("force-down", body=named | {"forced_down": True})
        asking.send("force-down", body=named | {"forced_down": False})


@example("DELETE", "/os-services/{}")
def delete_service(asking: Asking) -> None:
    """A service that is up is refused, and so is one with servers."""
    if asking.since(53):
        asking.send(_service_of(asking, asking.things.hosts[-1]), allowed=(409,))


@example("DELETE", "/servers/{}/migrations/{}")
def abort_migration(asking: Asking) -> None:
    """There is no live migration under way."""
    if asking.since(24):
        asking.send(asking.things.servers["admin"][0], "17", allowed=(404,))


@example("PUT", "/os-hosts/{}")
def change_host(asking: Asking) -> None:
    for status in ("disable", "enable"):
        asking.send(asking.things.hosts[-1], body={"status": status})


@example("DELETE", "/servers/{}/os-server-password")
def clear_password(asking: Asking) -> None:
    asking.send(asking.things.servers[asking.role][0])


@example("PUT", "/os-quota-sets/{}")
def change_quotas(asking: Asking) -> None:
    asking.send("p2", body={"quota_set": {"instances": 20, "cores": 40}})
    asking.send("p2", body={"quota_set": {"force": True, "instances": 21}})
    asking.send("p2", query="user_id=u2", body={"quota_set": {"instances": 5, "key_pairs": 3}})


@example("DELETE", "/os-quota-sets/{}")
def delete_quotas(asking: Asking) -> None:
    asking.plain("PUT", "/os-quota-sets/p2", {"quota_set": {"instances": 5}}, role="admin")
    asking.plain("PUT", "/os-quota-sets/p2?user_id=u2", {"quota_set": {"instances": 1}}, role="admin")
    asking.send("p2", query="user_id=u2")
    asking.send("p2")


@example("PUT", "/os-quota-class-sets/{}")
def change_class(asking: Asking) -> None:
    asking.send("default", body={"quota_class_set": {"instances": 100}})


@example("POST", "/os-server-external-events")
def external_event(asking: Asking) -> None:
    server = asking.things.servers["admin"][0]
    asking.send(body={"events": [{"name": "network-changed", "server_uuid": server, "status": "completed"}]})


@example("POST", "/servers/{}/remote-consoles")
def remote_console(asking: Asking) -> None:
    server = asking.things.servers[asking.role][0]
    if asking.since(6):
        asking.send(server, body={"remote_console": {"protocol": "vnc", "type": "novnc"}}, allowed=(400,))
        asking.send(server, body={"remote_console": SERIAL_CONSOLE})


@example("GET", "/servers/{}/diagnostics")
def diagnostics(asking: Asking) -> None:
    """The first server runs; some of the others have no guest."""
    running, *others = asking.things.servers[asking.role]
    asking.send(running)
    for server in others:
        asking.send(server, allowed=(409,))


def _console(action_name: str, kind: str, *allowed: int) -> None:
    def ask(asking: Asking) -> None:
        asking.send(asking.things.servers[asking.role][0], body={action_name: {"type": kind}}, allowed=allowed)

    EXAMPLES[Route("POST", "/servers/{}/action", action_name)] = ask


_console("os-getVNCConsole", "novnc", 400)
_console("os-getSPICEConsole", "spice-html5", 400)
_console("os-getSerialConsole", "serial")
