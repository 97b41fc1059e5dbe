"""A terminal at the serial console of a server, until Ctrl-]."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from objects import errors

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

ESCAPE = b"\x1d"
"""Ctrl-], as in telnet and virsh."""
READ_SIZE = 4096


def check_terminal() -> None:
    """Raises errors.Invalid if nobody could type."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise errors.Invalid("--attach needs a terminal; programs can open the URL that --url serial prints")


def attach_terminal(url: str) -> None:
    """Pass on what is typed and what the server writes, as it is. Returns when either side has ended.

    Raises errors.Misconfigured without the library, errors.Forbidden and errors.Conflict if there is no connection.
    """
    check_terminal()
    with open_console(url) as console, _raw_terminal(sys.stdin.fileno()):
        _pass_on(console, sys.stdin.fileno(), sys.stdout.fileno())


@contextlib.contextmanager
def open_console(url: str) -> Iterator[ClientConnection]:
    """A connection to the console. No error shows the URL: it holds a token."""
    try:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect
    except ImportError:
        raise errors.Misconfigured("--attach needs websockets: pip install 'superconductor-cloud[consoles]'") from None
    try:
        console = connect(url, legacy=True)
    except InvalidStatus as refusal:
        said = (refusal.response.body or b"").decode(errors="replace").strip()
        raise errors.Forbidden(f"The console proxy refuses the connection: {said[:200]}") from None
    except (OSError, WebSocketException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise errors.Conflict(f"The console proxy at {urlsplit(url).netloc} cannot be reached: {reason}") from None
    with console:
        yield console


def _pass_on(console: ClientConnection, typed: int, shown: int) -> None:
    from websockets.exceptions import ConnectionClosed

    ended, end = os.pipe()

    def show_output() -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            for message in console:
                data = message.encode() if isinstance(message, str) else message
                while data:
                    data = data[os.write(shown, data) :]
        os.write(end, b".")

    showing = threading.Thread(target=show_output, name="console", daemon=True)
    showing.start()
    try:
        while ended not in select.select([typed, ended], [], [])[0]:
            data, escape, _ = os.read(typed, READ_SIZE).partition(ESCAPE)
            with contextlib.suppress(ConnectionClosed):
                console.send(data)
            if escape or not data:
                break
    finally:
        console.close()
        showing.join()
        os.close(ended)
        os.close(end)


@contextlib.contextmanager
def _raw_terminal(terminal: int) -> Iterator[None]:
    """What is typed is not interpreted here: Ctrl-C goes to the server."""
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
