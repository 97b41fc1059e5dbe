"""An API over real databases, cells and bus, and the hands of the conductors and agents behind it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import falcon.testing
import msgspec

from api.http.microversions import MAXIMUM, format_version
from api.main import ApiService, build_app
from api.opts import ApiSettings
from cells.cell import Cell
from cells.registry import CellRegistry, RegistrySettings
from compute.main import VERSION
from conductor.guest_reader import GuestReader
from db.api.claims.claims import Ledger
from db.api.deployment import cell_mappings
from db.api.projects import flavors
from db.api.queue import builds, leases
from db.api.reconcile import events
from db.api.servers import mappings
from db.cell import feed, instances, services, staging
from objects import lifecycle
from objects.cell import CELL0_UUID, CellMapping
from objects.console import ConsoleKind, ConsolePlace
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from objects.feed import INSTANCE_EVENTS
from objects.feed_check import checked_event
from objects.flavor import Flavor
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Outcome
from objects.selection import HostCapacity, Selection
from rpc.transport import Bus
from service.vault import Vault
from tests.support.ground import Ground

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
CELL1_UUID = "11111111-1111-4111-8111-111111111111"
SMALL = Flavor(flavor_id="1", name="m1.small", vcpus=1, memory_mb=2048, root_gb=20, extra_specs={"a": "b"})
PRIVATE = Flavor(flavor_id="2", name="m1.private", vcpus=1, memory_mb=4096, root_gb=1, swap_mb=512, is_public=False)
RETIRED = Flavor(flavor_id="3", name="m1.retired", vcpus=1, memory_mb=1024, disabled=True)
LIMITS = HostCapacity(vcpus=64.0, memory_mb=65536.0, disk_gb=1000.0)
TENANT = {"X-Project-Id": "p1", "X-User-Id": "u1", "X-Roles": "member"}
OTHER_TENANT = {"X-Project-Id": "p2", "X-User-Id": "u2", "X-Roles": "member"}
NEWEST = {"OpenStack-API-Version": f"compute {format_version(MAXIMUM)}"}
"""The headers of callers; without any of them an administrator of the default project asks, at 2.1."""


TESTING_HOST = "falconframework.org"
"""The name by which falcon's test client asks."""


def with_status(answer: falcon.testing.Result, status: int) -> falcon.testing.Result:
    """The answer, which must have this status."""
    assert answer.status_code == status, answer.text
    return answer


def refusal(answer: falcon.testing.Result, status: int) -> str:
    """The message of an answer with this status."""
    assert answer.status_code == status, answer.text
    (fault,) = answer.json.values()
    return str(fault["message"])


class Doorbells:
    """Where a super conductor would listen: what it was told, in order. ``guests``: a real one's part that asks hosts."""

    def __init__(self, guests: GuestReader) -> None:
        self.guests = guests
        self.heard: queue.Queue[tuple[str, object]] = queue.Queue()

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        self.heard.put(("build", batch_id))

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        for batch_id in batch_ids:
            self.heard.put(("build", batch_id))

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        self.heard.put(("delete", tuple(uuids)))

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Tests carry operations out by hand."""

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str:
        return self.guests.console_output(context, uuid, lines, timeout)

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace:
        return self.guests.open_console(context, uuid, kind, path_digest, lifetime, timeout)

    def diagnostics(self, context: RequestContext, uuid: str, timeout: float) -> Diagnostics:
        return self.guests.diagnostics(context, uuid, timeout)

    def next(self) -> tuple[str, object]:
        """Raises queue.Empty where nobody rings within seconds."""
        return self.heard.get(timeout=10)


class Front:
    """The API of one region with cell0 and one cell, ``cell1``, whose rows the test moves on by hand.

    It stands on the ground given, on SQLite files and embedded buses where a folder is given.
    """

    def __init__(self, place: Path | Ground, settings: ApiSettings | None = None, vault: Vault | None = None) -> None:
        self.settings = msgspec.structs.replace(settings or ApiSettings(), allowed_hosts=(TESTING_HOST,))
        if self.settings.images_folder:
            Path(self.settings.images_folder).mkdir(parents=True, exist_ok=True)
        self.ground = Ground("lite", place) if isinstance(place, Path) else place
        self.database = self.ground.open("api")
        for name, cell_uuid, transport in (("cell0", CELL0_UUID, "none:///"), ("cell1", CELL1_UUID, self.ground.bus("cell1"))):
            url = self.ground.database(name)
            mapping = CellMapping(uuid=cell_uuid, name=name, database_url=url, transport_url=transport)
            self.database.write(cell_mappings.create, mapping)
        for flavor in (SMALL, PRIVATE, RETIRED):
            self.database.write(flavors.create, flavor)
        self.registry = CellRegistry(self.database, RegistrySettings())
        self.bus = Bus(self.ground.bus("api"))
        self.doorbells = Doorbells(GuestReader(self.database, self.registry, self.settings.service_down_time))
        self.bus.serve_topic("super-conductor", "test", [self.doorbells], threads=1)
        self.ledger = Ledger(self.database, "test")
        self.app = build_app(self.settings, self.registry, self.database, self.bus, vault)
        self.client = falcon.testing.TestClient(self.app)

    def close(self) -> None:
        self.registry.close()
        self.bus.close()
        self.database.dispose_connections()

    @property
    def cell(self) -> Cell:
        return self.registry.get(CELL1_UUID)

    # -- asking ----------------------------------------------------------------------------------------------------------

    def get(self, path: str, headers: dict[str, str] | None = None, **params: str) -> falcon.testing.Result:
        return self.client.simulate_get(path, headers=headers, params=params)

    def post(self, body: Any, headers: dict[str, str] | None = None) -> falcon.testing.Result:
        return self.client.simulate_post("/v2.1/servers", headers=headers, json=body)

    def delete(self, server: str, headers: dict[str, str] | None = None) -> falcon.testing.Result:
        return self.client.simulate_delete(f"/v2.1/servers/{server}", headers=headers)

    def boot(self, name: str = "web", headers: dict[str, str] | None = None, **fields: Any) -> str:
        """Boot at 2.1 and return the (first) server's uuid."""
        server = {"name": name, "flavorRef": "1", "imageRef": IMAGE} | fields
        answer = self.post({"server": server}, headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json["server"]["id"])

    def uuids(self) -> list[str]:
        """Every server there is, oldest first."""
        query = mappings.ServerQuery(sort=(("created_at", "asc"), ("launch_index", "asc")))
        return [server.uuid for server in self.database.read(mappings.list_, query)]

    def batch_of(self, server: str) -> str:
        found = self.database.read(mappings.get, server)
        assert found is not None
        return found.batch_id

    # -- what conductors and agents do ------------------------------------------------------------------------------------

    def hand_over(self, host: str = "h1", zone: str | None = None, alternates: Sequence[str] = ()) -> None:
        """Everything that is queued is staged in cell1 for this host and handed over: STAGED."""
        now = time.time()
        waiting = self.database.read(leases.list_waiting, now, 1000)
        others = tuple(Selection(host=h, node=h, cell_uuid=CELL1_UUID, limits=LIMITS) for h in alternates)
        for batch in self.database.write(leases.lease_batches, "test", waiting, now, 60.0):
            rows = [
                staging.NewInstance(
                    instance=Instance(
                        uuid=request.instance_uuid,
                        state=State.STAGED,
                        fence=request.fence,
                        host=host,
                        node=f"{host}-node",
                        availability_zone=zone,
                        limits=LIMITS,
                        alternates=others,
                        max_attempts=batch.spec.max_attempts,
                        deadline=request.deadline,
                    ),
                    name=request.name,
                    launch_index=request.launch_index,
                    created_at=request.created_at,
                )
                for request in batch.requests
            ]
            self.cell.write(staging.stage_instances, batch.spec, rows, now)
            items = [
                builds.HandOver(
                    instance_uuid=request.instance_uuid,
                    fence=request.fence,
                    cell_uuid=CELL1_UUID,
                    host=host,
                    node=f"{host}-node",
                    availability_zone=zone,
                )
                for request in batch.requests
            ]
            self.database.write(builds.hand_over, items, now)

    def bury(self, fault: str) -> None:
        """Everything that is queued ends in cell0, for this reason."""
        now = time.time()
        waiting = self.database.read(leases.list_waiting, now, 1000)
        for batch in self.database.write(leases.lease_batches, "test", waiting, now, 60.0):
            items = [builds.Burial(instance_uuid=r.instance_uuid, fence=r.fence, fault=fault) for r in batch.requests]
            self.ledger.write(builds.bury_requests, items, now)

    def accept(self, server: str) -> None:
        """Its agent begins: BUILDING."""
        self._transition(server, lambda row: lifecycle.accept_order(row, row.host or "", row.fence, row.attempt, "b1"))

    def activate(self, server: str) -> None:
        """Its agent begins, and its guest runs: ACTIVE."""
        self.accept(server)
        self.activate_accepted(server)

    def bring_up(self, server: str) -> None:
        """All that is queued is handed over, and this server's guest runs, as the API level hears."""
        self.hand_over()
        self.activate(server)
        self.follow_feed()

    def activate_accepted(self, server: str) -> None:
        """Its guest runs: BUILDING -> ACTIVE."""
        now = time.time()
        self._transition(server, lambda row: lifecycle.confirm_active(row, row.host or "", row.fence, row.attempt, "b1", now))

    def fail(self, server: str, message: str = "boom", kind: FailureClass = FailureClass.HOST) -> None:
        """The attempt under way is over."""
        failure = Failure(kind=kind, error="BuildFailed", message=message, at=time.time())
        self._transition(server, lambda row: lifecycle.fail_attempt(row, row.host or "", row.fence, row.attempt, "b1", failure))

    def destroyed(self, server: str) -> None:
        """Its guest is gone, as was asked for."""
        self._transition(server, lambda row: lifecycle.confirm_gone(row, row.host or "", row.attempt, time.time()))

    def follow_feed(self) -> None:
        """What happened in the cell reaches the summaries."""
        cursor = self.database.write(events.lock_cursor, CELL1_UUID)
        page = self.cell.read(feed.read, cursor, 1000)
        if page.events:
            upto = page.events[-1].sequence
            checked = [checked_event(event) for event in page.events if event.kind in INSTANCE_EVENTS]
            self.ledger.write(events.apply_page, events.FeedPosition(cell_uuid=CELL1_UUID, cursor=cursor, upto=upto), checked)

    def heartbeat(self, host: str, at: float | None = None) -> None:
        """Its agent is alive, or was."""
        self.cell.write(
            services.record_heartbeats,
            [services.Beat(host=host, binary="superconductor-compute", version=VERSION)],
            time.time() if at is None else at,
        )

    def _transition(self, server: str, decide: Any) -> None:
        outcome: Outcome = self.cell.write(instances.transition_rows, [server], decide, time.time())[server]
        assert isinstance(outcome, lifecycle.Change), outcome


@contextmanager
def front_on(ground: str, folder: Path, settings: ApiSettings | None = None, vault: Vault | None = None) -> Iterator[Front]:
    """A Front on one of GROUNDS. What it leaves there is cleared while the next test runs."""
    place = Ground(ground, folder)
    made = Front(place, settings, vault)
    yield made
    place.end(made.close, place.release)


@contextmanager
def serve_http(front: Front, settings: ApiSettings | None = None, vault: Vault | None = None) -> Iterator[ApiService]:
    """A real HTTP server before the API, on a free port."""
    chosen = (settings or front.settings).__replace__(port=0)
    service = ApiService(chosen, front.registry, front.database, front.bus, vault=vault)
    service.start()
    yield service
    service.stop()


def endpoint_of(service: ApiService) -> str:
    return f"http://127.0.0.1:{service.listen_port}/v2.1"
