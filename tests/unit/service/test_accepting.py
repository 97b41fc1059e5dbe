"""A server that is out of descriptors pauses, logs once, and goes on when it has some again."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waitress.adjustments import Adjustments
from waitress.server import BaseWSGIServer
from waitress.task import ThreadedTaskDispatcher

from service.accepting import ACCEPT_PAUSE_S, PausingServer
from service.rate_limited_log import RateLimitedLog


@pytest.fixture
def server() -> Iterator[PausingServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = (listener.family, listener.type, listener.proto, listener.getsockname())
        adjustments = Adjustments(sockets=[listener], threads=1, ident=None)
        made = PausingServer(
            lambda *_: [],
            {},
            True,
            listener,
            dispatcher=ThreadedTaskDispatcher(),
            adj=adjustments,
            bind_socket=False,
            sockinfo=place,
        )
        made._complaints = RateLimitedLog(logging.getLogger("service.accepting"))
        yield made
        made.close()


def refuse(number: int) -> Any:
    def accept(_: object) -> None:
        raise OSError(number, "refused")

    return accept


def test_a_server_without_descriptors_pauses(
    server: PausingServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert server.readable()
    monkeypatch.setattr(BaseWSGIServer, "accept", refuse(errno.EMFILE), raising=False)
    for _ in range(100):
        server.handle_accept()
        assert not server.readable()
    assert len(caplog.records) == 1
    assert "cannot be accepted" in caplog.text
    assert "Traceback" not in caplog.text
    monkeypatch.undo()
    time.sleep(ACCEPT_PAUSE_S)
    assert server.readable()


def test_another_error_is_no_reason_to_pause(server: PausingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseWSGIServer, "accept", refuse(errno.ECONNABORTED), raising=False)
    server.handle_accept()
    assert server.readable()
