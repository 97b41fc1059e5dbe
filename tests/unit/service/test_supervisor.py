"""What a supervisor is told, and that nothing fails where it cannot be."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from service.supervisor import READY, STOPPING, VARIABLE, Supervisor


@pytest.mark.parametrize("abstract", [False, True])
def test_states_reach_the_socket_which_is_then_forgotten(tmp_path: Path, *, abstract: bool) -> None:
    place = f"@{tmp_path.name}-notify" if abstract else str(tmp_path / "s")
    environment = {VARIABLE: place, "HOME": "/"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(place.replace("@", "\0", 1))
        supervisor = Supervisor.from_environment(environment)
        supervisor.tell_states(READY)
        supervisor.tell_states(STOPPING, "STATUS=it drains")
        assert [listener.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1\nSTATUS=it drains"]
    assert environment == {"HOME": "/"}


def test_a_missing_supervisor_costs_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    Supervisor.from_environment({}).tell_states(READY)
    assert caplog.messages == []
    Supervisor.from_environment({VARIABLE: str(tmp_path / "gone")}).tell_states(READY)
    assert caplog.messages == [f"the supervisor at {tmp_path}/gone cannot be told READY=1: No such file or directory"]
