"""``top``: the deployment at work, looked at again and again."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from cli.servers.explain import describe_explanation
from cli.shared.console import EscapingConsole, console_on
from cli.shared.http import ApiClient, HttpCommand
from cli.shared.scrape import Scrape, of_process, scrape_metrics
from cli.watch.chooser import Chooser, ListKind
from cli.watch.frame import Look, draw_frame
from objects import errors

REDRAW_INTERVAL_S = 0.25
"""Seconds between two pictures of the same look."""
SERVERS_LIMIT = "100"
"""Servers of the list at most: the newest, or those that the filter finds."""
ANSWER_TIMEOUT_S = 3.0
"""Seconds without an answer after which that is said."""


class Top(HttpCommand):
    """Show cells, servers and the queue as they change, with the rates of boots, decisions and messages.

    Rates are those of the process that answers: of a whole standalone, or else of one API. --metrics names other processes.

    q or Ctrl-C ends it. Up and down choose a server, and Enter explains it. / filters by name, and Tab shows hosts. One frame is
    shown with --once, and where the output is no terminal or a dumb one.

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
            "--interval", type=_parse_seconds, default=2.0, metavar="SECONDS", help="time between two updates (default: 2)"
        )
        parser.add_argument("--once", action="store_true", help="show one frame and end")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        addresses = parsed_args.metrics or [one for one in os.environ.get("SUPERCONDUCTOR_METRICS", "").split(",") if one.strip()]
        console = console_on(self.app.stdout)
        if parsed_args.once or not console.is_terminal or console.is_dumb_terminal:
            now = take_look(client, addresses, None)
            console.print(draw_frame(client.endpoint, now, None))
            self.status = 1 if now.trouble else 0
            return
        looks = _Looks(client, addresses, parsed_args.interval)
        with contextlib.suppress(KeyboardInterrupt), _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while not looks.chooser.quits:
                live.update(looks.draw_picture(console), refresh=True)
                looks.press_keys(_read_keys())


class _Looks:
    """Looks again and again in a thread of its own: an API that does not answer holds up no key."""

    def __init__(self, client: ApiClient, addresses: list[str], interval: float) -> None:
        self.chooser = Chooser()
        self._client = client
        self._addresses = addresses
        self._interval = interval
        self._latest: tuple[Look | None, Look | None] = None, None
        self._explained: tuple[dict[str, Any], dict[str, Any] | str] | None = None
        self._woken = threading.Event()
        self._began = time.monotonic()
        threading.Thread(target=self._run, name="top", daemon=True).start()

    def press_keys(self, keys: bytes) -> None:
        """What the keys ask for is fetched at once."""
        now, _ = self._latest
        before = self._wanted_view()
        self.chooser.press_keys(keys, () if now is None else now.items)
        if self._wanted_view() != before:
            self._woken.set()

    def _wanted_view(self) -> object:
        return self.chooser.listed, self.chooser.filter, self.chooser.opened

    def draw_picture(self, console: Console) -> RenderableType:
        """Of the latest look, or of what is explained."""
        opened = self.chooser.opened
        if opened is None:
            return self._draw_frame(console)
        explained = self._explained
        if explained is None or explained[0] is not opened:
            return Text(f"Asking for {opened.get('name') or opened.get('host')}...")
        lines = explanation_lines(explained[1], console.width)
        self.chooser.scrolled = min(self.chooser.scrolled, max(0, len(lines) - 1))
        return Text("\n".join(["Enter goes back, up and down scroll", *lines[self.chooser.scrolled :]]))

    def _draw_frame(self, console: Console) -> RenderableType:
        """If the latest look is old, that is said."""
        now, before = self._latest
        if now is None:
            now = Look(at=self._began, status=None, trouble="", counts=Scrape(told={}, silent={}))
        silent = time.monotonic() - now.at - self._interval
        if silent > ANSWER_TIMEOUT_S:
            now = msgspec.structs.replace(now, trouble=now.trouble or f"No answer for {silent:.0f} s.")
        return draw_frame(self._client.endpoint, now, before, self.chooser.shown_list(now.items, console.height))

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if (opened := self.chooser.opened) is not None:
                self._explained = opened, explain_item(self._client, opened)
            else:
                now, _ = self._latest
                latest = take_look(self._client, self._addresses, now)
                self._latest = msgspec.structs.replace(latest, items=list_items(self._client, self.chooser)), now
            self._woken.wait(self._interval)


def take_look(client: ApiClient, addresses: list[str], before: Look | None) -> Look:
    """Ask the API and the processes. Where the API does not answer, its last answer stays.

    What the processes have counted comes from their metrics where these are named, and else from the API.
    """
    counts = scrape_metrics(addresses)
    try:
        status, trouble = client.get("superconductor/status")["status"], ""
        counts = counts if addresses else of_process(status)
    except errors.SuperconductorError as error:
        status, trouble = None if before is None else before.status, str(error)
    return Look(at=time.monotonic(), status=status, trouble=trouble, counts=counts)


def list_items(client: ApiClient, chooser: Chooser) -> tuple[dict[str, Any], ...]:
    """The servers or hosts of the list; none where the API does not answer."""
    try:
        if chooser.listed is ListKind.HOSTS:
            hosts = client.get("os-services", binary="nova-compute")["services"]
            return tuple(host for host in hosts if chooser.filter in host["host"])
        name = re.escape(chooser.filter) or None
        return tuple(client.get("servers/detail", all_tenants="1", limit=SERVERS_LIMIT, name=name)["servers"])
    except errors.SuperconductorError:
        return ()


def explain_item(client: ApiClient, item: dict[str, Any]) -> dict[str, Any] | str:
    """The explanation of a server as the API has it, or a text about a host, or why there is none."""
    try:
        if "binary" not in item:
            return dict(client.get(f"servers/{item['id']}/explanation")["explanation"])
        servers = client.get("servers/detail", all_tenants="1", host=item["host"], limit=SERVERS_LIMIT)["servers"]
        facts = [f"{name}: {value}" for name, value in item.items() if value not in (None, "")]
        return "\n".join(
            [*facts, "", f"Servers ({len(servers)}):", *(f"  {server['name']}  {server['status']}" for server in servers)]
        )
    except errors.SuperconductorError as error:
        return str(error)


def explanation_lines(explanation: dict[str, Any] | str, width: int) -> list[str]:
    """An explanation as lines of this width at most."""
    out = io.StringIO()
    console = EscapingConsole(file=out, width=max(20, width), height=1, highlight=False)
    if isinstance(explanation, str):
        console.print(explanation, markup=False)
    else:
        describe_explanation(console, explanation)
    return out.getvalue().splitlines()


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
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


def _read_keys() -> bytes:
    """What was typed, after a moment at most. The end of the input counts as the end of the text, which quits."""
    if not sys.stdin.isatty():
        time.sleep(REDRAW_INTERVAL_S)
    elif select.select([sys.stdin], [], [], REDRAW_INTERVAL_S)[0]:
        return os.read(sys.stdin.fileno(), 1024) or b"\x04"
    return b""


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 3600")
    return seconds
