"""The proxies of ``make chaos``: what they pass on, hold back and break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from chaos.proxy import Proxies

PATIENCE = 90.0
BRIEF = 0.3
"""Seconds in which nothing must come that is held back."""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(1000):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxies(echo: int) -> Iterator[Proxies]:
    made = Proxies({"one": echo, "other": echo})
    yield made
    made.close()


def connect(proxies: Proxies, name: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxies.port_of(name)), timeout=PATIENCE)
    assert ask(connection, b"hello") == b"hello"
    return connection


def ask(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(1000)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(BRIEF)
    try:
        return not connection.recv(1000)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE)


def test_a_cut_refuses_until_over_sparing_other_links(proxies: Proxies) -> None:
    with connect(proxies, "one") as one, connect(proxies, "other") as other:
        proxies.cut_links(["one"])

        with pytest.raises(ConnectionError):
            ask(one, b"lost")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxies.port_of("one")), timeout=PATIENCE)
        assert ask(other, b"still") == b"still"
        proxies.restore_links(["one"])
        connect(proxies, "one").close()


@pytest.mark.parametrize("how", ["freeze", "mute"])
def test_what_was_held_back_arrives_later(proxies: Proxies, how: str) -> None:
    with connect(proxies, "one") as one:
        getattr(proxies, f"{how}_links")(["one"])
        one.sendall(b"late")

        assert is_silent(one)
        proxies.restore_links(["one"])
        assert one.recv(1000) == b"late"


def test_frozen_links_take_connections_and_serve_them_later(proxies: Proxies) -> None:
    proxies.freeze_links(["one"])
    with socket.create_connection(("127.0.0.1", proxies.port_of("one")), timeout=PATIENCE) as late:
        late.sendall(b"hello")

        assert is_silent(late)
        proxies.restore_links(["one"])
        assert late.recv(1000) == b"hello"


def test_a_muted_server_gets_what_is_asked() -> None:
    heard = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def hear() -> None:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(1000) == b"write this":
                heard.set()

    threading.Thread(target=hear, daemon=True).start()
    proxies = Proxies({"link": listener.getsockname()[1]})
    try:
        proxies.mute_links(["link"])
        with socket.create_connection(("127.0.0.1", proxies.port_of("link")), timeout=PATIENCE) as client:
            client.sendall(b"write this")
            assert heard.wait(PATIENCE)
    finally:
        proxies.close()
        listener.close()
