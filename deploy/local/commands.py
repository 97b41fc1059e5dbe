"""Run the operator's commands on a region, shown as a person would type them."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Callable

from cli import app
from deploy.local.folder import Folder
from objects import errors
from objects.mask import mask_url


class Commands:
    """``superconductor`` with the file of the API level, in this process: a new one for each would take a second to start."""

    def __init__(self, folder: Folder, say: Callable[[str], None]) -> None:
        """``say`` is told of each command before it runs, without passwords."""
        self._file = str(folder.etc / "api.conf")
        self._say = say

    def run(self, *words: str) -> None:
        """Run one command. Raises ``errors.Invalid`` with what it said where it fails."""
        self._run("--config-file", self._file, *words)

    def new_key(self) -> str:
        """A master key for the API level."""
        return self._run("secrets", "new")

    def key_of(self, cell: str) -> str:
        """The keys of a cell's conductors."""
        return self._run("--config-file", self._file, "secrets", "cell", cell).removeprefix("keys = ")

    def _run(self, *words: str) -> str:
        self._say(mask_url(f"$ superconductor {shlex.join(words)}"))
        output, errors_ = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors_):
            status = app.main(["--quiet", *words])
        if status:
            said = (errors_.getvalue().strip() or output.getvalue().strip() or f"status {status}").splitlines()[-1]
            raise errors.Invalid(mask_url(said.removeprefix("superconductor: ")))
        return output.getvalue().strip()
