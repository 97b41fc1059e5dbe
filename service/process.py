"""Run a role as a process: a master forks workers, replaces those that die, and forwards signals to them."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import cotyledon
from oslo_config import cfg

from objects import errors
from objects.base import Object
from service import config, guru, health, logs, monitor
from service.garbage import freeze_garbage
from service.monitor import Monitor
from service.opts import list_opts
from service.supervisor import READY, STOPPING, Supervisor

LOG = logging.getLogger(__name__)

EXIT_FAILED = 1
NOT_STARTED = "it has not started yet: its log says what it waits for"
EXIT_MISCONFIGURED = 78
"""Exit status of a worker with an unusable configuration (EX_CONFIG): a restart would change nothing."""


class Role(Protocol):
    """The service that a worker runs. Created after the fork, so it may open transports and databases."""

    def start(self, stopped: threading.Event) -> None:
        """Wait for dependencies, then serve; return soon after ``stopped`` is set. Raises Misconfigured."""
        ...

    def stop(self) -> None:
        """Take no new work and finish work in progress, in bounded time. Also called if ``start`` was interrupted or failed."""
        ...

    def reload_settings(self) -> None:
        """Apply changed mutable options. Raises Misconfigured and keeps the previous values if they are invalid."""
        ...


class Plan(Object, frozen=True, kw_only=True):
    """What the master decides before it forks: the number of workers, and ``make``, which creates the role in each worker."""

    make: Callable[[], Role]
    workers: int = 1


def main(name: str, argv: Sequence[str] | None, listings: Sequence[config.Listing], plan: Callable[[cfg.ConfigOpts], Plan]) -> int:
    """Run the process until it ends; return its exit status.

    ``plan`` gets the configuration before any worker is forked. So a permanent error is reported in one line with status 1, instead
    of by workers that die one after the other. Open connections in ``make`` or later.
    """
    try:
        conf = config.load_options(sys.argv[1:] if argv is None else argv, list_opts(), *listings)
        logs.setup(conf)
        planned = plan(conf)
    except errors.SuperconductorError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201 - the person who starts the process looks there
        return EXIT_FAILED
    return run(name, [(conf, planned)])


def run(name: str, parts: Sequence[tuple[cfg.ConfigOpts, Plan]]) -> int:
    """Run the workers of these plans, each with its own configuration, until the process ends; return its exit status.

    The first configuration is the master's too, and logging is set up.
    """
    return _Master(name, parts, Supervisor.from_environment()).run()


class _Master:
    """Runs cotyledon's manager. It ends after its workers on SIGTERM, or by itself if no worker can ever run."""

    def __init__(self, name: str, parts: Sequence[tuple[cfg.ConfigOpts, Plan]], supervisor: Supervisor) -> None:
        self._name = name
        conf, _ = parts[0]
        self._status = 0
        self._manager = cotyledon.ServiceManager(
            graceful_shutdown_timeout=conf.graceful_shutdown_timeout,
            mp_context=multiprocessing.get_context("fork"),  # workers share the memory of imported modules
        )
        self._manager.register_hooks(on_dead_worker=self._note_dead_worker)
        for role_conf, planned in parts:
            self._manager.add(_Worker, workers=planned.workers, args=(name, role_conf, planned.make, supervisor))
        guru.pass_on()

    def run(self) -> int:
        LOG.info("%s starts", self._name)
        freeze_garbage()
        try:
            self._manager.run()
        except SystemExit as exit_:  # the manager ends with it
            return self._status or int(exit_.code or 0)
        return self._status

    def _note_dead_worker(self, service: object, worker: int, status: int) -> None:
        if status == EXIT_MISCONFIGURED and not self._status:
            self._status = EXIT_FAILED
            threading.Thread(target=self._manager.shutdown, daemon=True).start()  # shutdown waits for this thread
        elif status and not self._status:
            LOG.warning("worker %d of %s ended with status %d: a new worker replaces it", worker, self._name, status)


class _Worker(cotyledon.Service):
    """One forked process."""

    def __init__(
        self,
        worker_id: cotyledon.types.WorkerId,
        name: str,
        conf: cfg.ConfigOpts,
        make: Callable[[], Role],
        supervisor: Supervisor,
    ) -> None:
        super().__init__(worker_id)
        type(self).name = name
        self._conf = conf
        self._make = make
        self._supervisor = supervisor
        self._role: Role | None = None
        self._stopped = threading.Event()
        self._started = threading.Event()
        self._sign = health.HealthCheck("start", lambda: None if self._started.is_set() else NOT_STARTED)
        self._monitor = Monitor(monitor.read_settings(conf, worker_id))
        guru.on_signal(name, conf)  # here, because only the main thread may set signal handlers

    def run(self) -> None:
        """Called once, in a separate thread."""
        health.BOARD.watch_part(self._sign)
        self._monitor.start()
        failure = self._start()
        self._started.set()
        if failure is not None:
            LOG.error("%s cannot start: %s", self.name, failure)
            raise SystemExit(EXIT_MISCONFIGURED if isinstance(failure, errors.Misconfigured) else EXIT_FAILED)
        if not self._stopped.is_set():
            LOG.info("%s is ready", self.name)
            self._supervisor.tell_states(READY)  # the first worker that serves: each serves alone

    def _start(self) -> errors.SuperconductorError | None:
        """Start the role, and return the error that prevented it. Other errors end the worker with a stack trace."""
        try:
            self._role = self._make()
            self._role.start(self._stopped)
        except errors.SuperconductorError as error:
            return error
        return None

    def terminate(self) -> None:
        """Handle SIGTERM. The process ends as soon as this returns."""
        self._supervisor.tell_states(STOPPING)
        self._stopped.set()
        self._started.wait()  # the manager's alarm bounds this and what follows
        if self._role is not None:
            self._role.stop()
        self._monitor.stop()
        LOG.info("%s has stopped", self.name)

    def reload(self) -> None:
        """Handle SIGHUP. If the configuration cannot be read or used, the previous one stays in force."""
        try:
            self._conf.mutate_config_files()
            if self._role is not None:
                self._role.reload_settings()
        except (cfg.Error, ValueError, errors.SuperconductorError) as error:
            LOG.error("the configuration was not reloaded: %s", " ".join(str(error).split()))
        else:
            LOG.info("%s has reloaded its configuration", self.name)
