"""Why a server is where it is, and the deployment at a glance: what administrators and tenants are told."""

from __future__ import annotations

import time
import uuid
from typing import Any

import falcon.testing
import msgspec
import pytest

from api.main import build_app
from api.scheduling import explanation
from db.api.claims import decisions
from db.api.deployment import cell_mappings
from db.api.operations import accepting
from db.api.operations.accepting import NewOperation
from db.api.servers import mappings
from db.cell import services
from db.cell.services import Beat
from objects.cell import CellMapping
from objects.decision import Candidate, DecidedInstance, Decision, FilterCount
from objects.machine import Machine
from objects.operation import OperationKind
from objects.process import AGENT_BINARY, API_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, About
from objects.relaxation import Asked, Relaxation, RelaxationPair
from tests.support.api import CELL1_UUID, IMAGE, OTHER_TENANT, TENANT, Front, with_status

REMEDIES = {"would_have_fitted", "would_have_fitted_together", "largest_flavor", "unread_hints"}


def decide(front: Front, server: str, **fields: object) -> Decision:
    """A scheduler's decision about the batch of this server."""
    found = front.database.read(mappings.get, server)
    assert found is not None
    known: dict[str, object] = {
        "id": str(uuid.uuid4()),
        "batch_id": found.batch_id,
        "request_id": "req-1",
        "at": time.time(),
        "driver": "filter",
        "hosts": 12,
        "filters": (FilterCount(name="ram", before=12, after=3, reason="secret-host lacks memory"),),
        "candidates": (Candidate(host="secret-host", node="n", cell="cell1", score=1.5, parts={"ram": 1.5}),),
        "choices": (
            DecidedInstance(instance_uuid=server, host="secret-host", cell="cell1", alternates=("h2",)),
            DecidedInstance(instance_uuid="another", host="h9"),
        ),
        "cells": {"cell1": 0.5, "cell2": None},
    }
    decision = Decision(**(known | fields))  # type: ignore[arg-type]  # a dictionary of fields of several types
    front.database.write(decisions.store_all, [decision])
    return decision


def test_an_administrator_reads_everything(front: Front) -> None:
    """Filters, scores, the choice of this server and no other's, and each attempt with its failure."""
    server = front.boot()
    decision = decide(front, server)
    front.hand_over("h1", alternates=("h2",))
    front.accept(server)
    front.fail(server, "disk broke")
    told = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert (told["server_id"], told["status"], told["cell_uuid"], told["host"]) == (server, "BUILD", CELL1_UUID, "h2")
    [record] = told["decisions"]
    assert (record["id"], record["filters"][0]["after"]) == (decision.id, 3)
    [choice] = record["choices"]
    assert (choice["instance_uuid"], choice["alternates"]) == (server, ["h2"])
    first, second = told["attempts"]
    assert (first["number"], first["host"], first["outcome"], first["message"]) == (1, "h1", "failed", "disk broke")
    assert (second["number"], second["host"], second["outcome"]) == (2, "h2", "building")


def test_a_tenant_reads_a_sentence_without_hosts(front: Front) -> None:
    """At every moment of a server's life."""
    server = front.boot(headers=TENANT)
    path = f"/v2.1/servers/{server}/explanation"

    def look() -> str:
        answer = front.get(path, TENANT)
        assert set(answer.json["explanation"]) == {"server_id", "name", "status", "message", *REMEDIES}
        assert "secret-host" not in answer.text
        assert "cell1" not in answer.text
        return str(answer.json["explanation"]["message"])

    assert look() == explanation.QUEUED
    decide(front, server)
    assert look() == explanation.DECIDED
    nowhere = (DecidedInstance(instance_uuid=server, host=None),)
    decide(front, server, message="Safe words.", at=time.time() + 1, choices=nowhere)
    assert look() == "Safe words."
    front.hand_over("secret-host")
    front.accept(server)
    front.fail(server, "broken")
    assert look() == "Exhausted all hosts available for retrying build failures."
    assert front.get(path, OTHER_TENANT).status_code == 404


def test_a_refused_boot_says_why_without_an_attempt(front: Front) -> None:
    """All decisions are told in their order; the newest counts."""
    server = front.boot()
    relaxations = (Relaxation(asked=Asked.VCPUS, less=2), Relaxation(asked=Asked.CELL, places=("cell1",)))
    nowhere = {"choices": (DecidedInstance(instance_uuid=server, host=None),), "message": "No valid host was found."}
    decide(front, server, relaxations=relaxations, **nowhere)
    decide(front, server, at=1.0, message="older")
    decide(front, server, at=time.time() + 1, choices=(DecidedInstance(instance_uuid="another", host="h9"),))
    front.bury("No valid host was found.")
    told = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert (told["status"], told["message"], told["attempts"]) == ("ERROR", "No valid host was found.", [])
    assert [record["message"] for record in told["decisions"]] == ["older", "No valid host was found."]
    assert told["decisions"][1]["choices"][0]["host"] is None
    assert told["would_have_fitted"] == ["with a flavor of 2 vCPUs less"]


def test_tenants_see_waiting_and_administrators_its_reason(front: Front) -> None:
    server = front.boot(headers=TENANT)
    path = f"/v2.1/servers/{server}/explanation"
    nowhere = (DecidedInstance(instance_uuid=server, host=None),)
    decide(front, server, message="No valid host was found.", choices=nowhere, waits="nothing is heard from cell west")
    answer = front.get(path, TENANT)
    assert (answer.json["explanation"]["message"], "west" in answer.text) == (explanation.WAITS, False)
    assert front.get(path).json["explanation"]["decisions"][0]["waits"] == "nothing is heard from cell west"
    front.bury("Build timed out in scheduling.")
    assert front.get(path, TENANT).json["explanation"]["message"] == "Build timed out in scheduling."


NOWHERE = "No valid host was found"
NO_VCPUS = ": of 8 hosts 1 were left by AvailabilityZoneFilter, 0 by CoreFilter (not enough vCPUs)."
NO_CLASS = ": of 4 hosts 0 were left by A.B-Filter (no host offers CUSTOM.X (yet))."
COUNTED = {
    f"{NOWHERE}{NO_VCPUS}": f"{NOWHERE}: not enough vCPUs.",
    f"{NOWHERE}: of 4 hosts 2 were left by ComputeFilter, 1 by RamFilter, 0 by CoreFilter.": f"{NOWHERE}.",
    f"{NOWHERE} for instance 2 of 3: of 1 hosts none fits.": f"{NOWHERE} for instance 2 of 3.",
    f"{NOWHERE}: no host is known yet.": f"{NOWHERE}.",
    f"{NOWHERE}{NO_VCPUS} The largest flavor that fits is m1.tiny.": (
        f"{NOWHERE}: not enough vCPUs. The largest flavor that fits is m1.tiny."
    ),
    f"{NOWHERE}{NO_CLASS}": f"{NOWHERE}: no host offers CUSTOM.X (yet).",
    "The disk is full: of 4 hosts we know nothing.": "The disk is full: of 4 hosts we know nothing.",
}
AMOUNTS = (
    Relaxation(asked=Asked.VCPUS, less=2),
    Relaxation(asked=Asked.MEMORY, less=7),
    Relaxation(asked=Asked.DISK, name="x", less=5),
)


@pytest.mark.parametrize("sentence", COUNTED)
def test_tenants_learn_nothing_of_fleet_size_and_load(front: Front, sentence: str) -> None:
    """Unless the option says so; administrators read all."""
    server = front.boot(headers=TENANT)
    decide(front, server, message=sentence, choices=(DecidedInstance(instance_uuid=server, host=None),), relaxations=AMOUNTS)
    paths = (f"/v2.1/servers/{server}", f"/v2.1/servers/{server}/explanation", "/v2.1/servers/detail")

    def read(headers: dict[str, str]) -> list[Any]:
        shown, told, listed = (front.get(path, headers).json for path in paths)
        faults = [document["fault"]["message"] for document in (shown["server"], *listed["servers"]) if "fault" in document]
        return [told["explanation"]["message"], *faults]

    assert read(TENANT) == [COUNTED[sentence]]
    front.bury(sentence)
    assert read(TENANT) == [COUNTED[sentence]] * 3
    assert read(TENANT | {"X-Roles": "admin"}) == [sentence] * 3
    plain = ["with a flavor of fewer vCPUs", "with a flavor of less memory", "with a flavor that asks for less of x"]
    assert front.get(paths[1], TENANT).json["explanation"]["would_have_fitted"] == plain
    detailed = msgspec.structs.replace(front.settings, fault_detail="detailed")
    front.client = falcon.testing.TestClient(build_app(detailed, front.registry, front.database, front.bus))
    assert read(TENANT) == [sentence] * 3
    assert "2 vCPUs less" in front.get(paths[1], TENANT).text


def test_tenants_read_sufficient_changes_in_safe_words(front: Front) -> None:
    """A list that is empty says that no single change would have been; none at all that nobody looked."""
    server = front.boot(headers=TENANT)

    def look(*relaxations: Relaxation) -> object:
        at = time.time() + len(front.database.read(decisions.of_batch, front.batch_of(server)))
        decide(front, server, at=at, message="No valid host was found.", relaxations=relaxations)
        answer = front.get(f"/v2.1/servers/{server}/explanation", TENANT)
        assert "cell1" not in answer.text
        return answer.json["explanation"]["would_have_fitted"]

    assert look() == []
    assert look(Relaxation(asked=Asked.CELL, places=("cell1",))) == []
    assert look(Relaxation(asked=Asked.ZONE, places=("z2",)), Relaxation(asked=Asked.HINT, name="query")) == [
        "in availability zone z2",
        "without the hint query",
    ]
    decide(front, server, at=time.time() + 100)
    assert front.get(f"/v2.1/servers/{server}/explanation", TENANT).json["explanation"]["would_have_fitted"] is None


def test_two_changes_and_a_flavor_are_named(front: Front) -> None:
    """Tenants read of the smallest two that they can know of, without amounts."""
    server = front.boot(headers=TENANT)
    amount, cell = Relaxation(asked=Asked.VCPUS, less=2, share=0.5), Relaxation(asked=Asked.CELL, places=("cell1",))
    pairs = (
        RelaxationPair(first=amount, second=cell),
        RelaxationPair(first=amount, second=Relaxation(asked=Asked.MEMORY, less=512)),
    )
    decide(front, server, message="No valid host was found.", relaxations=(), pairs=pairs, largest_flavor="m1.tiny")
    told = front.get(f"/v2.1/servers/{server}/explanation", TENANT)
    assert "cell1" not in told.text
    assert {name: told.json["explanation"][name] for name in REMEDIES} == {
        "would_have_fitted": [],
        "would_have_fitted_together": ["with a flavor of fewer vCPUs and less memory"],
        "largest_flavor": "m1.tiny",
        "unread_hints": [],
    }
    everything = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert everything["would_have_fitted_together"] == ["with a flavor of 2 vCPUs less and 512 MiB less memory"]
    assert everything["decisions"][0]["pairs"][0]["second"]["places"] == ["cell1"]


def test_a_moved_server_is_explained_by_all_decisions(front: Front) -> None:
    """The sentence is about the body that it is: a migration that found no host since says nothing of where it runs."""
    server = front.boot(headers=TENANT)
    front.hand_over("h1")
    front.activate(server)
    front.follow_feed()
    first = decide(front, server)
    move, now = str(uuid.uuid4()), time.time()
    asked = NewOperation(
        uuid=str(uuid.uuid4()),
        server_uuid=server,
        kind=OperationKind.MIGRATE,
        scope=None,
        user_id="u",
        request_id="req-2",
        deadline=now + 60.0,
        twin_uuid=str(uuid.uuid4()),
        batch_id=move,
    )
    front.database.write(accepting.accept_operation, asked, now)
    nowhere = (DecidedInstance(instance_uuid=asked.twin_uuid or "", host=None),)
    second = decide(front, server, batch_id=move, choices=nowhere, at=now + 1.0, message="No valid host was found.")
    told = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert [decision["id"] for decision in told["decisions"]] == [first.id, second.id]
    status = front.get("/v2.1/superconductor/status").json["status"]
    assert status["operations"]["placing"]["count"] == 1
    assert status["operations"]["placing"]["oldest_seconds"] >= 0
    assert told["message"] == explanation.DECIDED
    request = front.get(f"/v2.1/superconductor/requests/{move}/explanation").json["explanation"]
    assert [found["server_id"] for found in request["servers"]] == [server]
    assert request["servers"][0]["message"] == second.message
    of_boot = front.get(f"/v2.1/superconductor/requests/{first.batch_id}/explanation").json["explanation"]
    assert [found["server_id"] for found in of_boot["servers"]] == [server]


class TestARequest:
    def boot(self, front: Front) -> tuple[str, str]:
        """Two servers; the id of the request that asked for them, and the first of them."""
        answer = front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "min_count": 2}}, TENANT)
        return answer.headers["x-openstack-request-id"], answer.json["server"]["id"]

    def test_its_id_leads_to_what_came_of_it(self, front: Front) -> None:
        request, first = self.boot(front)
        [_, second] = front.uuids()
        choices = (DecidedInstance(instance_uuid=first, host="h1"), DecidedInstance(instance_uuid=second, host="h2"))
        decision = decide(front, first, choices=choices)
        batch = front.batch_of(first)
        for name in (request, batch, f"r-{batch.replace('-', '')}"):
            told = front.get(f"/v2.1/superconductor/requests/{name}/explanation").json["explanation"]
            assert told["request_id"] == request
            assert [(s["server_id"], s["message"]) for s in told["servers"]] == [
                (first, explanation.DECIDED),
                (second, explanation.DECIDED),
            ]
            [record] = told["decisions"]
            assert (record["id"], [choice["host"] for choice in record["choices"]]) == (decision.id, ["h1", "h2"])

    def test_a_tenant_reads_sentences_about_its_own(self, front: Front) -> None:
        request, first = self.boot(front)
        decide(front, first, message="Safe words.", relaxations=(Relaxation(asked=Asked.SERVERS, less=1),))
        path = f"/v2.1/superconductor/requests/{request}/explanation"
        answer = front.get(path, TENANT)
        assert set(answer.json["explanation"]) == {"request_id", "reservation_id", "servers", *REMEDIES}
        assert "secret-host" not in answer.text
        assert "cell1" not in answer.text
        assert answer.json["explanation"]["would_have_fitted"] == ["with fewer servers"]
        assert front.get(path, OTHER_TENANT).status_code == 404

    @pytest.mark.parametrize("name", ["req-1", "nonsense", "req-0deb5a44-14b7-4d81-863f-28ba81b72b41"])
    def test_one_that_asked_for_nothing(self, front: Front, name: str) -> None:
        answer = with_status(front.get(f"/v2.1/superconductor/requests/{name}/explanation"), 404)
        assert "has no known servers" in answer.text


def test_without_a_decision_there_is_still_an_answer(front: Front) -> None:
    """Decisions are forgotten after a while."""
    server = front.boot()
    front.hand_over()
    told = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert (told["message"], told["decisions"], told["would_have_fitted"]) == (explanation.UNDECIDED, [], None)


def test_the_status_names_two_machines_of_one_host(front: Front) -> None:
    beat = Beat(host="h1", binary=AGENT_BINARY, machine="a" * 32)
    front.cell.write(services.introduce_service, beat, About(machine="rack-a"), 1.0)
    front.cell.write(services.admit, beat, Machine(id="b" * 32, name="rack-b"), 60.0)
    [cell] = front.get("/v2.1/superconductor/status").json["status"]["cells"]
    assert cell["refused_machines"] == [{"host": "h1", "machine": "rack-a", "refused": "rack-b"}]


def test_the_status_counts_cells_hosts_servers_and_queue(front: Front) -> None:
    """For administrators."""
    running = front.boot(max_count=2)
    front.bring_up(running)
    front.boot()
    front.bury("No valid host was found.")
    front.boot(max_count=3)
    front.heartbeat("h1")
    front.heartbeat("h2", at=0.0)
    status = front.get("/v2.1/superconductor/status").json["status"]
    well = {"reachable": True, "since": None, "reason": None}
    assert status["cells"] == [
        {
            "uuid": CELL1_UUID,
            "name": "cell1",
            "state": "enabled",
            "view": "answers",
            "database": well,
            "bus": well,
            "processes": {CONDUCTOR_BINARY: {"up": 0, "down": 0}},
            "feed": {"behind": 0, "seconds": None},
            "hosts": {"UP": 1, "UNKNOWN": 1},
            "disabled_hosts": 0,
            "unmapped_hosts": 2,
            "shared_user_hosts": 0,
            "refused_machines": [],
            "dead_letters": {},
            "waiting_sizes": [],
            "servers": {"active": 1, "building": 1},
            "silent_since": None,
        }
    ]
    assert status["processes"] == {binary: {"up": 0, "down": 0} for binary in (API_BINARY, SCHEDULER_BINARY, CONDUCTOR_BINARY)}
    assert status["buried"] == {"error": 1}
    assert (status["queue"]["depth"], status["queue"]["servers"]) == (3, {"building": 3})
    assert status["queue"]["oldest_seconds"] >= 0
    assert status["broken_cells"] == []
    assert front.get("/v2.1/superconductor/status", TENANT).status_code == 403


def test_the_status_names_hosts_up_in_two_cells(front: Front) -> None:
    """Nothing goes to these."""
    url, cell2 = front.ground.database("cell2"), str(uuid.uuid4())
    mapping = CellMapping(uuid=cell2, name="cell2", database_url=url, transport_url=front.ground.bus("cell2"))
    front.database.write(cell_mappings.create, mapping)
    front.registry.refresh_cells()
    for host in ("twin", "h1"):
        front.heartbeat(host)
    front.registry.get(cell2).write(
        services.record_heartbeats, [services.Beat(host="twin", binary="superconductor-compute")], time.time()
    )
    front.registry.get(cell2).write(services.record_heartbeats, [services.Beat(host="h1", binary="superconductor-compute")], 0.0)
    status = front.get("/v2.1/superconductor/status").json["status"]
    assert [(twin["host"], sorted(twin["cells"])) for twin in status["hosts_in_two_cells"]] == [("twin", ["cell1", "cell2"])]


def test_an_empty_queue_has_no_oldest(front: Front) -> None:
    """Nor a deployment without servers any counts."""
    status = front.get("/v2.1/superconductor/status").json["status"]
    assert status["queue"] == {"depth": 0, "oldest_seconds": None, "servers": {}}
    assert status["cells"][0]["servers"] == {}
