"""What ``superconductor standalone`` does: make the folder, start the roles, serve until a signal stops it."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from api import console_opts
from api import opts as api_opts
from api.console_opts import ProxySettings
from api.http import keystone
from api.http.identity import PUBLIC_PATHS
from api.http.policy import PolicyRules
from api.main import Middleware
from api.opts import ApiSettings
from cli.shared import running
from cli.shared.application import Application
from cli.shared.deployment import Deployment
from cli.standalone.all_in_one import AllInOne, DeploymentTimes, Host, SimulatedHost, StateFolder, log_to
from cli.standalone.bootstrap import Commands, add_starters, bootstrap_databases, starter_image
from cli.standalone.demo.machines import Machines
from cli.standalone.discovery import discover_until
from cli.standalone.libvirt_hosts import DRIVER, LibvirtHosts
from cli.standalone.starter import FLAVORS
from compute import drivers
from compute.libvirt import binding
from db.api.deployment import cell_mappings
from db.sql.engine import ApiDatabase
from images import spark
from objects import errors
from scheduler import opts as scheduler_opts
from scheduler.framework.settings import SchedulerSettings
from scheduler.plugins import load_driver
from service import config, guru, monitor, notifications
from service import opts as service_opts
from service.monitor import Monitor

CONSOLE_LINES = 3
"""Lines of the console of the first machine that are shown."""
TASK_DELAY_S = 2.0
"""How long reboots, rebuilds, images and new passwords of simulated guests take. Clients look for their statuses once a second."""


def run(app: Application, deployment: Deployment, parsed_args: argparse.Namespace) -> None:
    """Serve as ``standalone`` was told, until a signal stops it. Raises Invalid, Misconfigured and Conflict."""
    real = parsed_args.driver == DRIVER
    pace = DeploymentTimes()
    api, guard = api_settings(deployment.config_arguments, parsed_args)
    scheduler = scheduler_settings(deployment.config_arguments, pace)
    watched = Monitor(monitoring_settings(deployment.config_arguments))
    notify = notifications.read_settings(config.load_options(deployment.config_arguments, notifications.list_opts(), files=[]))
    consoles = console_settings(deployment.config_arguments, api.host)
    if real:
        drivers.find_factory(DRIVER)
        binding.load_libvirt()
    folder = StateFolder(deployment.named_state or Path("superconductor-state"))
    folder.claim_driver(parsed_args.driver)
    commands = Commands(folder, sys.stderr)
    bootstrap_databases(folder, [f"cell{n + 1}" for n in range(parsed_args.cells or (1 if real else 2))], commands)
    add_starters(folder, commands, network=not real)
    if real:
        starter_image(folder, commands)
    machines = LibvirtHosts(folder, deployment.config_arguments)
    try:
        hosts = make_hosts(parsed_args, _cell_names(folder), machines)
        log_to(folder)
        region = AllInOne(folder, hosts, api=api, pace=pace, scheduler=scheduler, notify=notify, guard=guard, consoles=consoles)
        _serve_region(app, folder, region, {host.name for host in hosts}, commands, watched, parsed_args.boot)
        if (guests := machines.running_guests()) and not parsed_args.stop_guests:
            app.print_error(f"{len(guests)} guests keep running, and the next start finds them; --stop-guests turns them off")
    finally:
        machines.stop(guests=parsed_args.stop_guests)


def _serve_region(
    app: Application,
    folder: StateFolder,
    region: AllInOne,
    hosts: set[str],
    commands: Commands,
    watched: Monitor,
    boot: str | None,
) -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    guru.on_signal("superconductor-standalone", None, folder.path)
    watched.start()
    region.start()
    noted = contextlib.ExitStack()
    try:
        discover_until(folder, region, hosts, commands, stopped)
        region.serve_api()
        noted.enter_context(running.announced_standalone(region.api_endpoint, folder.path))
        if region.console_url is None:
            app.print_error("there is no console proxy: pip install 'superconductor-cloud[consoles]'")
        app.print_error(f"serving at {region.api_endpoint}, state and log in {folder.path}; Ctrl-C stops it")
        if boot is not None:
            for line in first_machine(Machines(region.api_endpoint, stopped), boot):
                app.print_error(line)
        while not stopped.wait(0.5):  # an untimed wait would not always let the signal's handler run
            pass
    finally:
        app.print_error("stopping")
        noted.close()
        region.stop()
        watched.stop()


def first_machine(machines: Machines, name: str) -> Iterator[str]:
    """Boot a server from the starter image, unless there is one of this name, and say what became of it."""
    if name not in machines.servers_by_name():
        flavor, *_ = FLAVORS[0]
        machines.boot_servers(name, spark.IMAGE_ID, 1, machines.flavor_id(flavor))
    machines.wait_until(lambda: machines.servers_by_name()[name]["status"] != "BUILD")
    server = machines.servers_by_name()[name]
    yield f"server {name} is {server['status']}{': ' + server['fault']['message'] if 'fault' in server else ''}"
    if server["status"] == "ACTIVE" and machines.wait_until(lambda: len(machines.console_lines(server["id"])) >= CONSOLE_LINES):
        yield f"its console (superconductor server console {name}):"
        yield from (f"  {line}" for line in machines.console_lines(server["id"])[-CONSOLE_LINES:])


def make_hosts(parsed_args: argparse.Namespace, cells: Sequence[str], machines: LibvirtHosts) -> list[Host]:
    """The hosts of each cell, by the options of ``standalone``. Raises Invalid, or Misconfigured if a libvirtd does not start."""
    real = parsed_args.driver == DRIVER
    names = [(f"{cell}-host{n + 1}", cell) for cell in cells for n in range(parsed_args.hosts or (1 if real else 12))]
    if not real:
        offers = {"resources": dict(parsed_args.resources), "numa_nodes": parsed_args.numa_nodes, "task_delay": TASK_DELAY_S}
        return [SimulatedHost(name=name, cell=cell, **offers) for name, cell in names]
    if not parsed_args.libvirt_uri:
        return [machines.start_host(name, cell) for name, cell in names]
    if len(names) > 1:
        raise errors.Invalid(f"--libvirt-uri names the libvirt of one host, and this folder has {len(cells)} cells")
    return [machines.of_machine(name, cell, parsed_args.libvirt_uri) for name, cell in names]


def monitoring_settings(arguments: Sequence[str]) -> monitor.MonitorSettings:
    """The options of [monitoring] in files that were named, and in the environment. Raises Misconfigured."""
    return monitor.read_settings(config.load_options(arguments, [(monitor.GROUP, monitor.OPTIONS)], files=[]))


def api_settings(arguments: Sequence[str], parsed_args: argparse.Namespace) -> tuple[ApiSettings, Middleware | None]:
    """The API as files that were named, the environment and the command say, and what authenticates its callers, if anything does.

    A policy file counts if it is named, or if it is beside a file that was named. Raises Misconfigured, and Invalid for options
    that do not go together.
    """
    conf = config.load_options(arguments, api_opts.list_opts(), files=[])
    if conf.api.workers > 1:
        raise errors.Misconfigured("[api] workers: standalone is one process; leave the option out")
    settings = api_opts.read_settings(conf)
    if not arguments and not any(api_opts.is_given(conf, name) for name in ("policy_file", "policy_dirs")):
        settings = msgspec.structs.replace(settings, policy_files=())
    PolicyRules(settings.policy_files)
    changes = {name: value for name in ("host", "port") if (value := getattr(parsed_args, name)) is not None}
    settings = msgspec.structs.replace(settings, **changes, noauth_anywhere=settings.noauth_anywhere or parsed_args.noauth_anywhere)
    if settings.auth_strategy == "noauth":
        return settings, None
    for option in ("noauth_anywhere", "boot"):
        if getattr(parsed_args, option):
            raise errors.Invalid(f"--{option.replace('_', '-')} is for [api] auth_strategy = noauth")
    keystone.check_options(conf)
    return settings, partial(keystone.guard_application, conf=conf, public=PUBLIC_PATHS)


def console_settings(arguments: Sequence[str], host: str) -> ProxySettings | None:
    """The options of [console] in files that were named, and in the environment; else a free port of this host.

    None without the library of the proxy: then there is none. Raises Misconfigured.
    """
    if find_spec("websockets") is None:
        return None
    conf = config.load_options(arguments, console_opts.list_opts(), files=[])
    conf.set_default("host", host, group=console_opts.GROUP)
    conf.set_default("port", 0, group=console_opts.GROUP)
    return console_opts.read_proxy_settings(conf)


def scheduler_settings(arguments: Sequence[str], pace: DeploymentTimes) -> SchedulerSettings:
    """The options of [scheduler] in files that were named, and in the environment; where these say nothing the pace counts.

    Raises Misconfigured, also for filters, weighers and drivers that do not exist.
    """
    conf = config.load_options(arguments, scheduler_opts.list_opts(), files=[])
    for option in scheduler_opts.OPTIONS:
        conf.set_default(option.dest, getattr(pace.scheduler_settings, option.dest), group=scheduler_opts.GROUP)
    conf.register_opts(service_opts.SHARED)
    for option in service_opts.SHARED:
        conf.set_default(option.dest, getattr(pace.scheduler_settings, option.dest))
    settings = scheduler_opts.read_settings(conf)
    load_driver(settings)
    return settings


def _cell_names(folder: StateFolder) -> list[str]:
    database = ApiDatabase(folder.database_url("api"), name="api")
    try:
        return [m.name for m in database.read(cell_mappings.list_all) if not m.is_cell0]
    finally:
        database.dispose_connections()
