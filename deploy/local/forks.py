"""One command that forks many processes: the conductors of cells, or agents of simulated hosts that share processes.

    python -m deploy.local.forks cell-conductors FILE
    python -m deploy.local.forks agents FILE

The processes share the memory of what is imported. A cell's conductor is the same as ``superconductor-conductor`` with its files.
An agent is that of ``superconductor-compute`` but for what it shares: a process has one bus for each of its cells, by which all its
agents of that cell listen and send, and one worker pool. So all of them log in as the same user.
"""

from __future__ import annotations

import logging
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from oslo_config import cfg

from cells import opts as cells_opts
from compute import machine
from compute import opts as compute_opts
from compute.heartbeats import Heartbeats
from compute.main import ADMISSION_WAIT_S, VERSION, ComputeService, make_reporter
from compute.process import CLEANUP_TIME_S
from compute.rounds import AgentThreads
from conductor import opts as conductor_opts
from conductor import process as conductor_process
from deploy.local.forked import Forks
from deploy.local.shape import AGENTS, CONDUCTORS
from images import opts as images_opts
from objects import typed
from rpc import compute
from rpc.server import TopicServer
from rpc.transport import Bus
from service import config, logs, process, upgrade_levels
from service.opts import list_opts
from service.process import Plan
from service.waiting import wait_for

LOG = logging.getLogger(__name__)

THREADS = 16
"""Threads of a process for the calls of all its agents."""


class CellAgents:
    """The agents of hosts of one cell in one process."""

    def __init__(self, conf: cfg.ConfigOpts, hosts: Sequence[str], threads: AgentThreads) -> None:
        settings = compute_opts.read_settings(conf)
        self._bus = Bus(conf.transport_url, name=f"cell of {hosts[0]}")
        self._reporter = make_reporter(settings, self._bus)
        own = machine.identify(settings.simulated.state_path)
        self._heartbeats = Heartbeats(self._bus, settings.report_interval, VERSION, own.id)
        self._drain_timeout = max(0.0, min(settings.drain_timeout, conf.graceful_shutdown_timeout - CLEANUP_TIME_S))
        self._settings = [msgspec.structs.replace(settings, host=host) for host in hosts]
        self._threads = threads
        self._services: list[ComputeService] = []
        self._server: TopicServer | None = None

    def start(self, stopped: threading.Event) -> None:
        """Wait for the bus, then start all agents."""
        if not wait_for("the bus of the cell", self._bus.check_broker, stopped):
            return
        make = partial(ComputeService, bus=self._bus, reporter=self._reporter, threads=self._threads, heartbeats=self._heartbeats)
        services = {agent_settings.host: make(agent_settings) for agent_settings in self._settings}
        self._services = list(services.values())
        for service in self._services:
            service.prepare_start()
        self._reporter.start()
        for service in self._services:
            service.begin_serving(is_served=True)
        end = time.monotonic() + ADMISSION_WAIT_S
        for service in self._services:
            service.wait_for_admission(max(0.0, end - time.monotonic()))
        self._server = compute.serve_each(self._bus, {host: service.make_endpoint() for host, service in services.items()})
        self._heartbeats.start()
        wait_for("the topics of the hosts", self._server.check_listening, stopped)

    def stop(self, pool: ThreadPoolExecutor) -> None:
        """Stop all agents within the drain time-out."""
        end = time.monotonic() + self._drain_timeout
        self._heartbeats.stop()
        if self._server is not None:
            self._server.stop()
        list(pool.map(lambda service: service.stop(max(0.0, end - time.monotonic())), self._services))
        self._reporter.stop()
        self._bus.close()


class AgentsRole:
    """All agents of one process."""

    def __init__(self, parts: Sequence[tuple[cfg.ConfigOpts, Sequence[str]]]) -> None:
        self._threads = AgentThreads("hosts", THREADS)
        self._cells = [CellAgents(conf, hosts, self._threads) for conf, hosts in parts]

    def start(self, stopped: threading.Event) -> None:
        self._threads.start()
        for cell in self._cells:
            if not stopped.is_set():
                cell.start(stopped)

    def stop(self) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for cell in self._cells:
                cell.stop(pool)
        self._threads.stop()

    def reload_settings(self) -> None:
        """Does nothing, as with an agent of its own process."""


def plan_agents(forks: Forks, folder: Path) -> list[tuple[cfg.ConfigOpts, Plan]]:
    """What to run for ``plan_agents``."""
    listings = (compute_opts.list_opts(), images_opts.list_opts(), upgrade_levels.list_opts())
    parts = [[(_load_conf(folder, group.files, *listings), group.hosts) for group in one] for one in forks.agents]
    return [(part[0][0], Plan(make=partial(AgentsRole, part))) for part in parts]


def plan_conductors(forks: Forks, folder: Path) -> list[tuple[cfg.ConfigOpts, Plan]]:
    """What to run for ``plan_conductors``."""
    listings = (conductor_opts.list_opts(), cells_opts.list_opts(), images_opts.list_opts())
    confs = [_load_conf(folder, files, *listings) for files in forks.conductors]
    return [(conf, conductor_process.read_plan(conf)) for conf in confs]


def _load_conf(folder: Path, files: Sequence[str], *listings: config.Listing) -> cfg.ConfigOpts:
    words = [word for name in files for word in ("--config-file", str(folder / name))]
    return config.load_options(words, list_opts(), *listings)


KINDS: dict[str, Callable[[Forks, Path], list[tuple[cfg.ConfigOpts, Plan]]]] = {AGENTS: plan_agents, CONDUCTORS: plan_conductors}


def main() -> int:
    """The command."""
    kind, file = sys.argv[1], Path(sys.argv[2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each simulated host holds two files open
    parts = KINDS[kind](typed.decode_json(file.read_bytes(), Forks), file.parent)
    logs.setup(parts[0][0])
    return process.run(kind, parts)


if __name__ == "__main__":
    sys.exit(main())
