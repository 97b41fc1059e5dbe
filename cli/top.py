"""``top``: the deployment at work, looked at again and again."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator

import msgspec
from rich.console import RenderableType
from rich.live import Live

from cli.console import console_on
from cli.frame import Look, frame
from cli.http import ApiClient, HttpCommand
from cli.scrape import Scrape, scrape
from objects import errors

QUIT = (b"q", b"Q", b"\x03", b"\x04")
REDRAW_INTERVAL_S = 0.25
"""Seconds between two pictures of the same look."""
ANSWER_TIMEOUT_S = 3.0
"""Seconds without an answer after which that is said."""


class Top(HttpCommand):
    """Show cells, servers and the queue as they change; with metrics also the rates of boots and the slowest stage.

    q or Ctrl-C ends it. One frame is shown with --once, and where the output is no terminal.

    Examples:
      superconductor top
      superconductor top --metrics http://super1:9110 --metrics http://east1:9130
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--metrics",
            metavar="URL",
            action="append",
            help="where a worker serves its metrics; may be repeated (environment: SUPERCONDUCTOR_METRICS, with commas)",
        )
        parser.add_argument(
            "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="time between two updates (default: 2)"
        )
        parser.add_argument("--once", action="store_true", help="show one frame and end")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.client(parsed_args)
        addresses = parsed_args.metrics or [one for one in os.environ.get("SUPERCONDUCTOR_METRICS", "").split(",") if one.strip()]
        console = console_on(self.app.stdout)
        if parsed_args.once or not console.is_terminal:
            now = look(client, addresses, None)
            console.print(frame(client.endpoint, now, None))
            self.status = 1 if now.trouble else 0
            return
        looks = _Looks(client, addresses, parsed_args.interval)
        with contextlib.suppress(KeyboardInterrupt), _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while not _quit():
                live.update(looks.frame(), refresh=True)


class _Looks:
    """Looks again and again in a thread of its own: an API that does not answer holds up no key."""

    def __init__(self, client: ApiClient, addresses: list[str], interval: float) -> None:
        self._client = client
        self._addresses = addresses
        self._interval = interval
        self._latest: tuple[Look | None, Look | None] = None, None
        self._began = time.monotonic()
        threading.Thread(target=self._run, name="top", daemon=True).start()

    def frame(self) -> RenderableType:
        """Of the latest look; if it is old, that is said."""
        now, before = self._latest
        if now is None:
            now = Look(at=self._began, status=None, trouble="", counts=Scrape(told={}, silent={}))
        silent = time.monotonic() - now.at - self._interval
        if silent > ANSWER_TIMEOUT_S:
            now = msgspec.structs.replace(now, trouble=now.trouble or f"No answer for {silent:.0f} s.")
        return frame(self._client.endpoint, now, before)

    def _run(self) -> None:
        while True:
            now, _ = self._latest
            self._latest = look(self._client, self._addresses, now), now
            time.sleep(self._interval)


def look(client: ApiClient, addresses: list[str], before: Look | None) -> Look:
    """Ask the API and the processes. Where the API does not answer, its last answer stays."""
    counts = scrape(addresses)
    try:
        status, trouble = client.get("superconductor/status")["status"], ""
    except errors.SuperconductorError as error:
        status, trouble = None if before is None else before.status, str(error)
    return Look(at=time.monotonic(), status=status, trouble=trouble, counts=counts)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Single keys are read without Enter, and not shown, where the input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit() -> bool:
    """Whether somebody wants to end it; waits for that for a moment."""
    if not sys.stdin.isatty():
        time.sleep(REDRAW_INTERVAL_S)
    elif select.select([sys.stdin], [], [], REDRAW_INTERVAL_S)[0]:
        key = os.read(sys.stdin.fileno(), 1)
        return not key or key in QUIT
    return False


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 3600")
    return seconds
