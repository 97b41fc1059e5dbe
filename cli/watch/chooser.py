"""The list of servers or hosts in ``top``: its filter, the line that is chosen, and the keys that change them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cli.shared.console import table_of

ROWS = 10
"""Lines of the list at most."""
HELP = "q quit  up/down choose  Enter explain  / filter  Tab servers or hosts"


class ListKind(enum.StrEnum):
    """What the list shows."""

    SERVERS = "Servers"
    HOSTS = "Hosts"


class Chooser:
    """What is shown and chosen. Keys change it; ``quits`` says that the user wants to leave."""

    def __init__(self) -> None:
        self.listed = ListKind.SERVERS
        self.filter = ""
        self.quits = False
        self.opened: dict[str, Any] | None = None
        """The server or host that is explained, instead of the picture."""
        self.scrolled = 0
        """Lines of the explanation above the screen."""
        self._typing = False
        self._at = 0

    def press_keys(self, keys: bytes, items: Sequence[dict[str, Any]]) -> None:
        """Do what the keys say. ``items``: those of the list, now."""
        for key in _parse_keys(keys):
            if self._typing:
                self._type_key(key)
            elif key in ("q", "Q", "\x03", "\x04"):
                self.quits = True
            elif self.opened is not None:
                self._read(key)
            elif key in ("up", "down", "k", "j"):
                self._at = max(0, min(self._at, len(items) - 1) + (1 if key in ("down", "j") else -1))
            elif key == "enter" and items:
                self.opened, self.scrolled = items[min(self._at, len(items) - 1)], 0
            elif key == "/":
                self._typing, self.filter = True, ""
            elif key == "\t":
                self.listed = ListKind.HOSTS if self.listed is ListKind.SERVERS else ListKind.SERVERS
                self._at, self.filter = 0, ""
            elif key == "escape":
                self.filter = ""

    def _read(self, key: str) -> None:
        """Keys while an explanation is shown."""
        if key in ("up", "down", "k", "j"):
            self.scrolled = max(0, self.scrolled + (1 if key in ("down", "j") else -1))
        elif key in ("enter", "escape"):
            self.opened = None

    def _type_key(self, key: str) -> None:
        """Keys while the filter is typed."""
        self._at = 0
        if key in ("enter", "escape"):
            self._typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def shown_list(self, items: Sequence[dict[str, Any]], height: int) -> RenderableType:
        """The list, no longer than fits into a terminal of this height."""
        rows = max(3, min(ROWS, height - 20))
        chosen = min(self._at, max(0, len(items) - 1))
        first = max(0, min(chosen - rows // 2, len(items) - rows))
        lines = [
            (">" if first + number == chosen else "", *_item_row(item)) for number, item in enumerate(items[first : first + rows])
        ]
        columns = ("", "Name", "Status", "Host") if self.listed is ListKind.SERVERS else ("", "Host", "State", "Status")
        title = f"{self.listed}{f' with {self.filter!r} in their names' if self.filter else ''}"
        typed = Text(f"/{self.filter}_", style="reverse") if self._typing else Text(HELP, style="dim")
        table = table_of(title, columns, lines) if lines else Text(f"{title}: none")
        return Group(table, typed)


def _item_row(item: dict[str, Any]) -> tuple[str, str, str]:
    """A server, or a host as its service."""
    if "binary" in item:
        return item["host"], item["state"], item["status"]
    return item.get("name", item["id"]), item["status"], item.get("OS-EXT-SRV-ATTR:host") or ""


SEQUENCES = {"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down"}
NAMED = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace"}


def _parse_keys(read: bytes) -> Iterator[str]:
    """The keys in what a terminal sent; other escape sequences are left out."""
    text = read.decode(errors="ignore")
    while text:
        if text[:3] in SEQUENCES:
            yield SEQUENCES[text[:3]]
            text = text[3:]
        elif text[0] == "\x1b" and len(text) > 1:
            text = ""
        else:
            yield NAMED.get(text[0], text[0])
            text = text[1:]
