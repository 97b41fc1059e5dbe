"""A Guru Meditation Report, as OpenStack's services write it on SIGUSR2: the state of a process, without stopping it.

oslo.reports shows the process-wide configuration only, which this project does not use (``docs/decisions/0026-monitoring.md``).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from oslo_config import cfg
from prometheus_client import generate_latest

from objects.mask import mask_url
from service import health, metrics
from service.release import DISTRIBUTION
from service.threads import start_daemon

LOG = logging.getLogger(__name__)

DISTRIBUTIONS = (DISTRIBUTION, "oslo.messaging", "oslo.db", "SQLAlchemy", "cotyledon", "msgspec", "numpy")
REPORT_WIDTH = 80


def on_signal(name: str, conf: cfg.ConfigOpts | None, folder: Path | None = None) -> None:
    """Write a report on SIGUSR2. Call this in the main thread.

    ``folder`` None: the folder of the log file, or standard error if there is no log file.
    """

    def start_report(number: int, frame: object) -> None:
        # In a thread: the interrupted one may hold a lock that the report needs.
        start_daemon("guru", write, name, conf, folder)

    signal.signal(signal.SIGUSR2, start_report)


def pass_on() -> None:
    """Forward SIGUSR2 to the workers of this process, which does no work itself. Call this in the main thread."""

    def pass_to_workers(number: int, frame: object) -> None:
        for worker in multiprocessing.active_children():
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGUSR2)

    signal.signal(signal.SIGUSR2, pass_to_workers)


def write(name: str, conf: cfg.ConfigOpts | None, folder: Path | None = None) -> Path | None:
    """Write the report; return the file, or None for standard error. Never raises."""
    text = report_text(name, conf)
    where = folder or _log_folder(conf)
    if where is not None:
        path = where / f"{name}_gurumeditation_{time.strftime('%Y%m%d%H%M%S', time.gmtime())}_{os.getpid()}"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            LOG.warning("the Guru Meditation Report cannot be written to %s: %s", path, error.strerror)
        else:
            LOG.info("a Guru Meditation Report is in %s", path)
            return path
    sys.stderr.write(text)
    sys.stderr.flush()
    return None


def report_text(name: str, conf: cfg.ConfigOpts | None) -> str:
    """The whole report. A section that fails shows its error; the other sections follow."""
    sections: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("Guru Meditation", lambda: _process_lines(name)),
        ("Threads", _thread_lines),
        ("Health", _health_lines),
        ("Metrics", _metric_lines),
        ("Configuration", lambda: _configuration_lines(conf)),
    ]
    lines: list[str] = []
    for title, section in sections:
        lines += ["=" * REPORT_WIDTH, f"====  {title}", "=" * REPORT_WIDTH]
        try:
            lines += section()
        except Exception as error:  # noqa: BLE001 - shown in place of the section; the others follow
            lines.append(f"(this section failed: {type(error).__name__}: {error})")
        lines.append("")
    return "\n".join(lines) + "\n"


def _process_lines(name: str) -> Iterator[str]:
    yield f"process  {name}, pid {os.getpid()} under {os.getppid()}, on {platform.node()}"
    yield f"at       {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC"
    yield f"python   {platform.python_version()}"
    for distribution in DISTRIBUTIONS:
        try:
            yield f"{distribution}  {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            yield f"{distribution}  (not installed)"


def _thread_lines() -> Iterator[str]:
    """Stack traces without variables, which may hold secrets."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    for ident, frame in sorted(sys._current_frames().items()):
        thread = known.get(ident)
        kind = "" if thread is None else " daemon" if thread.daemon else ""
        yield f"------  {thread.name if thread else 'unknown'} ({ident}){kind}"
        yield from "".join(traceback.format_stack(frame)).rstrip().splitlines()
        yield ""


def _health_lines() -> Iterator[str]:
    for finding in health.BOARD.look_at_parts().findings:
        yield f"{finding.check}: {finding.trouble or finding.note or 'well'}"


def _metric_lines() -> Iterator[str]:
    """The current values of all metrics, without descriptions and histogram buckets."""
    for line in generate_latest(metrics.REGISTRY).decode().splitlines():
        if not line.startswith("#") and "_bucket{" not in line and "_created" not in line:
            yield line


def _configuration_lines(conf: cfg.ConfigOpts | None) -> Iterator[str]:
    if conf is not None:
        lines = _Lines()
        logger = logging.Logger("guru")
        logger.addHandler(lines)
        conf.log_opt_values(logger, logging.INFO)  # it hides the values of secret options
        yield from map(mask_url, lines.found)


class _Lines(logging.Handler):
    """Collects log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def _log_folder(conf: cfg.ConfigOpts | None) -> Path | None:
    if conf is None:
        return None
    folder, file = Path(conf.log_dir or ""), str(conf.log_file or "")
    if file:
        return (folder / file).parent
    return folder if conf.log_dir else None
