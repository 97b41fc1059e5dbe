"""Why a server is where it is, and the deployment at a glance: what administrators and tenants are told."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import explanation
from db import decisions, mappings
from objects.decision import Candidate, Choice, Decision, FilterCount
from tests.support.api import CELL1_UUID, OTHER_TENANT, TENANT, Front


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    yield front
    front.close()


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
            Choice(instance_uuid=server, host="secret-host", cell="cell1", alternates=("h2",)),
            Choice(instance_uuid="another", host="h9"),
        ),
        "cells": {"cell1": 0.5, "cell2": None},
    }
    decision = Decision(**(known | fields))  # type: ignore[arg-type]  # a dictionary of fields of several types
    front.database.write(decisions.store, decision)
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
    assert told["decision"]["id"] == decision.id
    assert told["decision"]["filters"][0]["after"] == 3
    assert [choice["instance_uuid"] for choice in told["decision"]["choices"]] == [server]
    assert told["choice"]["alternates"] == ["h2"]
    first, second = told["attempts"]
    assert (first["number"], first["host"], first["outcome"], first["message"]) == (1, "h1", "failed", "disk broke")
    assert (second["number"], second["host"], second["outcome"]) == (2, "h2", "building")


def test_a_tenant_reads_a_sentence_that_names_no_host(front: Front) -> None:
    """At every moment of a server's life."""
    server = front.boot(headers=TENANT)
    path = f"/v2.1/servers/{server}/explanation"

    def look() -> str:
        answer = front.get(path, TENANT)
        assert set(answer.json["explanation"]) == {"server_id", "name", "status", "message"}
        assert "secret-host" not in answer.text
        return str(answer.json["explanation"]["message"])

    assert look() == explanation.QUEUED
    decide(front, server)
    assert look() == explanation.DECIDED
    decide(front, server, message="Safe words.", at=time.time() + 1)
    assert look() == "Safe words."
    front.hand_over("secret-host")
    front.accept(server)
    front.fail(server, "broken")
    assert look() == "Exhausted all hosts available for retrying build failures."
    assert front.get(path, OTHER_TENANT).status_code == 404


def test_a_refused_boot_says_why_and_had_no_attempt(front: Front) -> None:
    """The newest decision counts."""
    server = front.boot()
    decide(front, server, at=1.0, message="older")
    decide(front, server, choices=(Choice(instance_uuid=server, host=None),), message="No valid host was found.")
    front.bury("No valid host was found.")
    told = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert (told["status"], told["message"], told["attempts"]) == ("ERROR", "No valid host was found.", [])
    assert told["choice"]["host"] is None


def test_without_a_decision_there_is_still_an_answer(front: Front) -> None:
    """Decisions are forgotten after a while."""
    server = front.boot()
    front.hand_over()
    told = front.get(f"/v2.1/servers/{server}/explanation").json["explanation"]
    assert (told["message"], told["decision"], told["choice"]) == (explanation.UNDECIDED, None, None)


def test_the_status_counts_cells_hosts_servers_and_the_queue(front: Front) -> None:
    """For administrators."""
    running = front.boot(max_count=2)
    front.hand_over()
    front.activate(running)
    front.follow_feed()
    front.boot()
    front.bury("No valid host was found.")
    front.boot(max_count=3)
    front.heartbeat("h1")
    front.heartbeat("h2", at=0.0)
    status = front.get("/v2.1/superconductor/status").json["status"]
    assert status["cells"] == [
        {
            "uuid": CELL1_UUID,
            "name": "cell1",
            "state": "enabled",
            "view": "answers",
            "hosts": {"UP": 1, "UNKNOWN": 1},
            "servers": {"active": 1, "building": 1},
        }
    ]
    assert status["buried"] == {"error": 1}
    assert (status["queue"]["depth"], status["queue"]["servers"]) == (3, {"building": 3})
    assert status["queue"]["oldest_seconds"] >= 0
    assert status["broken_cells"] == []
    assert front.get("/v2.1/superconductor/status", TENANT).status_code == 403


def test_an_empty_queue_has_no_oldest(front: Front) -> None:
    """Nor a deployment without servers any counts."""
    status = front.get("/v2.1/superconductor/status").json["status"]
    assert status["queue"] == {"depth": 0, "oldest_seconds": None, "servers": {}}
    assert status["cells"][0]["servers"] == {}
