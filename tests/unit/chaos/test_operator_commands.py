"""The operator's commands of ``make chaos``: what must never come of one is kept, and nothing is begun after the end."""

from __future__ import annotations

import threading
from pathlib import Path

from chaos.operator_commands import OperatorCommands
from deploy.local.folder import Folder


def test_an_operator_command_must_finish_or_leave_something(tmp_path: Path) -> None:
    said: list[str] = []
    over = threading.Event()
    commands = OperatorCommands(Folder(tmp_path), over, said.append)
    assert commands._run("no-such-command") == 2
    assert len(commands.complaints) == len(said) == 1
    over.set()
    commands.attempt_command(60.0, "host", "drain", "h1")
    assert commands.ends == {"no-such-command: 2": 1}
