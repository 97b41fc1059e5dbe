"""An agent whose release the cell's conductors cannot work with."""

from __future__ import annotations

import logging

import msgspec
import pytest

from objects.messages_version import SPAN
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import MemoryCell

PATIENCE = 90.0


def test_an_incompatible_agent_refuses_orders_until_it_may(
    agents: Agents, cell: MemoryCell, caplog: pytest.LogCaptureFixture
) -> None:
    cell.refusal = "superconductor-compute on h1 (0.9); they are too old: upgrade them first"
    with caplog.at_level(logging.WARNING):
        agents.start()
        assert wait_until(lambda: cell.stopping.get("h1") is True, PATIENCE)
        assert wait_until(lambda: "they are too old: upgrade them first" in caplog.text, PATIENCE)
    assert "h1" not in cell.introduced

    cell.refusal = ""
    assert wait_until(lambda: cell.stopping["h1"] is False, PATIENCE)
    assert cell.introduced["h1"].messages == str(SPAN)


def test_an_agent_corrects_an_outdated_introduction(agents: Agents, cell: MemoryCell) -> None:
    agents.start(stats_full_interval=1.0)
    assert wait_until(lambda: "h1" in cell.introduced, PATIENCE)
    cell.introduced["h1"] = msgspec.structs.replace(cell.introduced["h1"], messages="1.0")  # as a conductor that was frozen
    assert wait_until(lambda: cell.introduced["h1"].messages == str(SPAN), PATIENCE)
