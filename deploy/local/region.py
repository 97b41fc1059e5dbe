"""A region at hand: its folder, what is remembered of it, its servers and its processes."""

from __future__ import annotations

from collections.abc import Callable

from deploy.local.backing import Backing
from deploy.local.commands import Commands
from deploy.local.folder import Folder, Notes
from deploy.local.processes import Table


class Region:
    """What starts, stops and shows a region works on. Whoever starts or stops anything holds the folder."""

    def __init__(self, folder: Folder, notes: Notes, say: Callable[[str], None]) -> None:
        """``say`` is told, line by line, of whatever is done."""
        self.folder = folder
        self.notes = notes
        self.say = say
        self.backing = Backing(folder, notes)
        self.table = Table(folder)
        self.commands = Commands(folder, say)
