"""``superconductor rebalance --dry-run``: the moves of a running standalone are carried out as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.periodic import wait_until
from tests.functional.cli.test_cli_standalone import file_of
from tests.support.commands import Operator, Shell, standalone
from tests.support.region import IMAGE


def test_the_moves_of_a_standalone_are_carried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, shell = tmp_path / "state", Shell(tmp_path / "state", capsys)
    with standalone(state, file_of(tmp_path, "")) as endpoint:
        user = Operator(shell, endpoint)
        user.json(f"server boot web --flavor m1.small --image {IMAGE} --max 3 --wait")
        assert "add --dry-run" in user("rebalance").err
        assert "'0%' is not a percentage" in user("rebalance --dry-run --at-most 0%").err
        assert user.json("rebalance --dry-run") == [], "5 % of three servers"

        text = user.done("rebalance --dry-run --at-most 100% --flavor m1.medium")
        assert "1 moves empty 1 hosts; 2 at most by any 3 moves, of 3 servers." in text
        assert "Empty hosts: 0 before, 1 after." in text
        assert "m1.medium: " in text
        [move] = user.json("rebalance --dry-run --at-most 34")
        assert (move["Flavor"], move["RAM"], move["Live"], move["Gain"]) == ("m1.small", 2048, True, 1.0)
        assert user(f"server migrate {move['Server']} --to {move['To']} --live --wait").status == 0
        shown = user.json(f"server show {move['Server']}")
        assert move["To"] in shown.values()

        # the old body keeps its claim until its host has removed the guest, which nobody waits for
        assert wait_until(lambda: "Empty hosts: 1 before" in user.done("rebalance --dry-run --at-most 100%"), 90.0, pause=0.2)
        assert user.json("rebalance --dry-run --at-most 100%") == []
        assert "Empty hosts: 1 before, 1 after." in user.done("rebalance --dry-run --at-most 100%")
