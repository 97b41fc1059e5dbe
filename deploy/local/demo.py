"""The demo's workload against a region of its own."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from cli.standalone.demo import plan
from cli.standalone.demo.run import EXIT_INTERRUPTED, run
from cli.standalone.demo.site import Site
from deploy.local.folder import Folder
from deploy.local.make import notes_of
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.start import Start
from deploy.local.stop import stop
from objects import errors


def run_demo(state: Path | None, shape: Shape, console: Console, say: Callable[[str], None]) -> int:
    """Start a region, run the workload, judge, and stop it. The exit status, 0 for the strict verdict only.

    With ``state`` the region is kept there, and a run that was interrupted or killed goes on from there when started again.
    """
    folder = Folder(state or _temporary_folder())
    with folder.hold_lock():
        notes = notes_of(folder, shape)
        if len(notes.shape.cell_names()) != len(plan.CELLS):
            raise errors.Invalid(f"The demo is written for {len(plan.CELLS)} cells.")
        console.rule(f"a region in {folder.path}")
        say(f"If this is killed, stop the rest with 'make region-down STATE={folder.path}'.")
        region = Region(folder, notes, say)
        Start(region).run()
        try:
            stopped = threading.Event()
            before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
            site = Site(folder, region.commands, notes.api_endpoints(), notes.shape.list_hosts())
            again = "Interrupted; with STATE (make demo CONFIG=region STATE=dir) the next run goes on from here."
            status = run(site, console, stopped, again)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not keep the region running
            stop(region)
            signal.signal(signal.SIGINT, before)
    if state is None and status in (0, EXIT_INTERRUPTED):
        shutil.rmtree(folder.path, ignore_errors=True)
    elif status:
        say(f"Logs and databases are in {folder.path}.")
    return status


def _temporary_folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="superconductor-region-"))
    path.chmod(0o711)  # a database server of another user must get to its own folder
    return path
