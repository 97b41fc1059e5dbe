"""``superconductor replay``: a running standalone's decisions are taken again while its servers come."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from db.api.claims import decisions
from objects.decision import Decision
from service.periodic import wait_until
from tests.functional.cli.test_cli_standalone import file_of
from tests.support.commands import Shell, standalone
from tests.support.databases import sqlite_url, synced
from tests.support.region import IMAGE

SERVERS = 8


def test_the_decisions_of_a_standalone_are_taken_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, shell = tmp_path / "state", Shell(tmp_path / "state", capsys)
    with requests.Session() as http, standalone(state, file_of(tmp_path, "")) as endpoint:
        http.trust_env = False
        flavor = http.get(f"{endpoint}/flavors").json()["flavors"][0]["id"]

        def boot(number: int) -> str:
            body = {"server": {"name": f"web-{number}", "flavorRef": flavor, "imageRef": IMAGE}}
            answer = requests.post(f"{endpoint}/servers", json=body, proxies={"http": ""}, timeout=30)
            assert answer.status_code == 202, answer.text
            return str(answer.json()["server"]["id"])

        def active() -> bool:
            servers: list[dict[str, Any]] = http.get(f"{endpoint}/servers/detail").json()["servers"]
            return [server["status"] for server in servers] == ["ACTIVE"] * SERVERS

        with ThreadPoolExecutor(SERVERS) as pool:
            servers = list(pool.map(boot, range(SERVERS)))
        assert wait_until(active, 60.0)
        hosts: dict[str, str] = {}
        for server in servers:
            [decision] = http.get(f"{endpoint}/servers/{server}/explanation").json()["explanation"]["decisions"]
            told = shell.json(f"replay {decision['id']}")
            [replayed] = told["servers"]
            assert told["same"], told
            assert replayed == {
                "instance_uuid": server,
                "then": decision["choices"][0]["host"],
                "now": decision["choices"][0]["host"],
                "certain": True,
            }
            hosts[decision["id"]] = replayed["then"]
        fullest = tmp_path / "fullest.conf"
        fullest.write_text("[scheduler]\nram_weight_multiplier = -1\ncpu_weight_multiplier = -1\n")
        others = [shell.json(f"replay {key} --config {fullest}") for key in hosts]
        moved = [told for told in others if not told["same"]]
        assert moved, "the emptier of two hosts is not the fuller one"
        assert moved[0]["settings"]["ram_weight_multiplier"] == {"then": 1.0, "now": -1.0}
        assert any("RAMWeigher adds" in reason for reason in moved[0]["reasons"])
        text = shell.done(f"replay {moved[0]['decision']} --config {fullest}")
        for part in ("Host Then", "Host Now", "ram_weight_multiplier: 1.0 then, -1.0 now.", "The record keeps 2 of 2 hosts"):
            assert part in text


def test_an_impossible_replay_is_reported_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(tmp_path, capsys)
    shell.done("-q db sync")
    database = synced(sqlite_url(tmp_path, "api"), "api")
    made = Decision(id=str(uuid.uuid4()), batch_id=str(uuid.uuid4()), request_id="r", at=1.0, driver="filter", hosts=1)
    database.write(decisions.store_all, [made])
    database.dispose_connections()
    assert "is not the id of a decision" in shell.refused("replay web-1")
    assert "not found" in shell.refused(f"replay {uuid.uuid4()}")
    assert "the request of its batch is deleted" in shell.refused(f"replay {made.id}")
    assert "nowhere.conf" in shell.refused(f"replay {made.id} --config nowhere.conf")
    wrong = tmp_path / "wrong.conf"
    wrong.write_text("[scheduler]\nenabled_filters = Nonsense\n")
    assert "the request of its batch is deleted" in shell.refused(f"replay {made.id} --config {wrong}")
    wrong.write_text("[scheduler]\nhost_subset_size = none\n")
    assert "host_subset_size" in shell.refused(f"replay {made.id} --config {wrong}")
