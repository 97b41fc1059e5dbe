"""Run a role as a process of its own: a master that forks workers, replaces those that die, and passes signals on."""

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
from service.garbage import freeze
from service.monitor import Monitor
from service.opts import list_opts

LOG = logging.getLogger(__name__)

FAILED = 1
NOT_STARTED = "it has not started yet: its log says what it waits for"
MISCONFIGURED = 78
"""Exit status of a worker whose configuration cannot work (EX_CONFIG): starting it again would change nothing."""


class Role(Protocol):
    """What runs in a worker. Made after the fork, so it may open transports and databases."""

    def start(self, stopped: threading.Event) -> None:
        """Wait for what is needed, then serve; return soon after ``stopped`` is set. Raises Misconfigured."""
        ...

    def stop(self) -> None:
        """Take no new work and finish what was begun, in bounded time. Also called where ``start`` was cut short or failed."""
        ...

    def reload(self) -> None:
        """Mutable options may have changed. Raises Misconfigured; then what was in force stays so."""
        ...


class Plan(Object, frozen=True, kw_only=True):
    """What a master has found out before it forks: so many workers, each of which makes its role with ``make``."""

    make: Callable[[], Role]
    workers: int = 1


def main(name: str, argv: Sequence[str] | None, listings: Sequence[config.Listing], plan: Callable[[cfg.ConfigOpts], Plan]) -> int:
    """The whole life of one process; return its exit status.

    ``plan`` is called with the configuration before any worker is forked, so that what can never work is told in one line, with
    status 1, instead of by workers that die one after the other. Connections must be opened in ``make`` or later.
    """
    try:
        conf = config.load(sys.argv[1:] if argv is None else argv, list_opts(), *listings)
        logs.setup(conf)
        planned = plan(conf)
    except errors.SuperconductorError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201 - where a person who starts a process looks
        return FAILED
    return _Master(name, conf, planned).run()


class _Master:
    """Holds cotyledon's manager. It ends on SIGTERM once its workers have, and by itself where no worker can ever run."""

    def __init__(self, name: str, conf: cfg.ConfigOpts, planned: Plan) -> None:
        self._name = name
        self._status = 0
        self._manager = cotyledon.ServiceManager(
            graceful_shutdown_timeout=conf.graceful_shutdown_timeout,
            mp_context=multiprocessing.get_context("fork"),  # workers share the memory of what was imported
        )
        self._manager.register_hooks(on_dead_worker=self._dead)
        self._manager.add(_Worker, workers=planned.workers, args=(name, conf, planned.make))
        guru.pass_on()

    def run(self) -> int:
        LOG.info("%s starts", self._name)
        freeze()
        try:
            self._manager.run()
        except SystemExit as exit_:  # how the manager ends
            return self._status or int(exit_.code or 0)
        return self._status

    def _dead(self, service: object, worker: int, status: int) -> None:
        if status == MISCONFIGURED and not self._status:
            self._status = FAILED
            threading.Thread(target=self._manager.shutdown, daemon=True).start()  # it waits for the thread that runs this
        elif status and not self._status:
            LOG.warning("worker %d of %s ended with status %d: another one takes its place", worker, self._name, status)


class _Worker(cotyledon.Service):
    """One forked process."""

    def __init__(self, worker_id: cotyledon.types.WorkerId, name: str, conf: cfg.ConfigOpts, make: Callable[[], Role]) -> None:
        super().__init__(worker_id)
        type(self).name = name
        self._conf = conf
        self._make = make
        self._role: Role | None = None
        self._stopped = threading.Event()
        self._started = threading.Event()
        self._sign = health.HealthCheck("start", lambda: None if self._started.is_set() else NOT_STARTED)
        self._monitor = Monitor(monitor.settings(conf, worker_id))
        guru.on_signal(name, conf)  # here, as only a process's first thread may say what signals do

    def run(self) -> None:
        """Called once, in a thread of its own."""
        health.BOARD.watch(self._sign)
        self._monitor.start()
        failure = self._start()
        self._started.set()
        if failure is not None:
            LOG.error("%s cannot start: %s", self.name, failure)
            raise SystemExit(MISCONFIGURED if isinstance(failure, errors.Misconfigured) else FAILED)
        if not self._stopped.is_set():
            LOG.info("%s is ready", self.name)

    def _start(self) -> errors.SuperconductorError | None:
        """Return what kept it from starting. Other errors end the worker with their trace."""
        try:
            self._role = self._make()
            self._role.start(self._stopped)
        except errors.SuperconductorError as error:
            return error
        return None

    def terminate(self) -> None:
        """SIGTERM. The process ends as soon as this returns."""
        self._stopped.set()
        self._started.wait()  # the manager's alarm bounds this and what follows
        if self._role is not None:
            self._role.stop()
        self._monitor.stop()
        LOG.info("%s has stopped", self.name)

    def reload(self) -> None:
        """SIGHUP. What cannot be read or used leaves everything as it was."""
        try:
            self._conf.mutate_config_files()
            if self._role is not None:
                self._role.reload()
        except (cfg.Error, ValueError, errors.SuperconductorError) as error:
            LOG.error("the configuration was not reloaded: %s", " ".join(str(error).split()))
        else:
            LOG.info("%s has reloaded its configuration", self.name)
