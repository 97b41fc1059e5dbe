"""Every role in one process, on SQLite files and the embedded bus, in one folder."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from api.console_opts import ConsoleUrls, ProxySettings
from api.consoles import process
from api.main import ApiService, Middleware
from api.opts import ApiSettings
from cells import template
from cells.bulkhead import BulkheadSettings
from cells.presence import Presence
from cells.registry import CellRegistry, RegistrySettings, open_database
from cells.template import Local
from cli.standalone import key_file
from compute.driver import ComputeDriver
from compute.main import ComputeService, make_reporter
from compute.opts import ComputeSettings, SimulatedSettings
from conductor.image_rows import complete_rows, missing_images
from conductor.main import CellConductorService, SuperConductorService
from conductor.notify import of_api_level, of_cell
from conductor.opts import ConductorSettings
from db.api.servers import images
from db.sql import ready
from db.sql.engine import ApiDatabase, CellDatabase
from images.store import FolderStore
from objects import errors, stored
from objects.base import Object
from objects.cell import CellMapping
from objects.process import API_BINARY, CONDUCTOR_BINARY, CONSOLE_PROXY_BINARY, SCHEDULER_BINARY
from rpc.counting import Observer
from rpc.transport import Bus
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from service import config, health, logs, private_files
from service.notifications import NotificationSettings as Notifications
from service.vault import Vault

LOG = logging.getLogger(__name__)


class RoleService(Protocol):
    """What every role's composition root looks like from outside."""

    def start(self) -> object: ...

    def stop(self) -> object: ...


class SimulatedHost(Object, frozen=True, kw_only=True):
    """A host to simulate: CPUs, MiB, GiB; ``failure_rate`` of its builds fail; spawns take up to ``spawn_delay`` seconds.

    ``resources``: amounts of custom resource classes. ``numa_nodes``: how many NUMA nodes it reports. ``task_delay``: seconds that
    reboots, rebuilds, images and new passwords take.
    """

    name: str
    cell: str
    vcpus: int = 16
    memory_mb: int = 65536
    disk_gb: int = 1000
    failure_rate: float = 0.0
    spawn_delay: tuple[float, float] = (0.05, 0.2)
    task_delay: float = 0.0
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    numa_nodes: int = 0


class DriverHost(Object, frozen=True, kw_only=True):
    """A host with another driver than the simulated one. ``open_driver`` opens it when the agent is made."""

    name: str
    cell: str
    open_driver: Callable[[ComputeSettings], ComputeDriver]


Host = SimulatedHost | DriverHost


class StateFolder:
    """One deployment's folder: its databases, ``hosts/`` with the guests, ``images/``, ``secrets.key``, ``driver``, log and lock.

    Only its owner may enter it, since its databases hold tenants' metadata in the clear.

    Raises ``errors.Conflict`` if another process holds the folder, ``errors.Misconfigured`` if it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            private_files.own_folder(self.path)
            private_files.hide_from_git(self.path)
            for name in ("hosts", "images"):
                (self.path / name).mkdir(exist_ok=True, mode=private_files.FOLDER_MODE)
            self._lock = private_files.open_own(self.path / "lock", os.O_RDWR | os.O_APPEND, "a+")
        except OSError as error:
            text = f"{self.path} cannot be used as a state folder: {error.strerror}; give another with --state."
            raise errors.Misconfigured(text) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise errors.Conflict(
                f"{self.path} is in use by process {owner}: stop that one, or give another folder with --state."
            ) from None
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def database_url(self, name: str) -> str:
        return f"sqlite:///{self.path / name}.db"

    def bus_url(self, name: str) -> str:
        """An embedded bus that no other folder's deployment in this process shares."""
        return f"embedded://{hashlib.blake2b(bytes(self.path), digest_size=4).hexdigest()}/{name}"

    @property
    def images_folder(self) -> Path:
        """The folder of the image store."""
        return self.path / "images"

    @property
    def log_file(self) -> Path:
        return self.path / "superconductor.log"

    def claim_driver(self, name: str) -> None:
        """Record that the hosts of this folder have this driver.

        Raises ``errors.Misconfigured`` if they have another one, whose guests this one would not find.
        """
        file = self.path / "driver"
        if not file.exists():
            file.write_text("simulated" if (self.path / "api.db").exists() else name)  # older folders have no such file
        if (known := file.read_text().strip()) != name:
            raise errors.Misconfigured(f"the hosts in {self.path} are {known} ones: give --driver {known}, or another --state")

    def release_lock(self) -> None:
        self._lock.close()


def log_to(folder: StateFolder) -> None:
    """From here on this process logs to the folder's file, one line for every step of every build."""
    private_files.open_own(folder.log_file, os.O_WRONLY | os.O_APPEND, "a").close()
    logs.setup(config.load_options([], files=[], overrides={"log_file": str(folder.log_file)}))


class DeploymentTimes(Object, frozen=True, kw_only=True):
    """How impatient a deployment in one process may be; times in seconds. ``build_timeout``: from accept to ACTIVE or ERROR."""

    spawn_timeout: float = 60.0
    build_timeout: float = 600.0
    lease_seconds: float = 10.0
    sweep_interval: float = 1.0
    resend_age: float = 2.0
    cell_timeout: float = 3.0
    feed_interval: float = 0.25
    idle_interval: float = 5.0
    report_interval: float = 5.0
    stats_interval: float = 2.0
    down_time: float = 30.0

    def conductor_settings(self, images_folder: Path) -> ConductorSettings:
        """Of the conductors of both levels."""
        return ConductorSettings(
            lease_seconds=self.lease_seconds,
            sweep_interval=self.sweep_interval,
            feed_interval=self.feed_interval,
            idle_interval=self.idle_interval,
            resend_age=self.resend_age,
            service_down_time=self.down_time,
            sizes_wait=False,
            images_folder=str(images_folder),
        )

    @property
    def scheduler_settings(self) -> SchedulerSettings:
        return SchedulerSettings(
            service_down_time=self.down_time, feed_poll_interval=self.feed_interval, idle_interval=self.idle_interval
        )


class AllInOne:
    """API, super conductor, scheduler, and for every cell of the API database a conductor and its hosts.

    ``start`` expects synced databases (see ``cli/standalone/bootstrap.py``). What was building when the process before died goes
    on.
    """

    def __init__(
        self,
        folder: StateFolder,
        hosts: Sequence[Host],
        *,
        api: ApiSettings,
        pace: DeploymentTimes | None = None,
        scheduler: SchedulerSettings | None = None,
        observer: Observer | None = None,
        notify: Notifications | None = None,
        guard: Middleware | None = None,
        consoles: ProxySettings | None = None,
    ) -> None:
        """``scheduler``: how hosts are chosen; None: by the defaults, at the pace. ``observer`` is told of every message sent.
        ``notify``: whether and where notifications go; None: nowhere. ``guard`` authenticates the callers. ``consoles``: how the
        console proxy listens; None: there is none.

        Raises Misconfigured where a filter, weigher or driver is named that does not exist, if the proxy's address is in use, or if
        its library is missing.
        """
        self._folder = folder
        self._observer = observer
        self._pace = pace = pace or DeploymentTimes()
        vault = Vault(key_file.read_or_make(folder.path))
        self._notify = notify or Notifications()
        outbox = self._notify.is_on
        self._api_database = ApiDatabase(folder.database_url("api"), name="api", max_pool_size=20, outbox=outbox)
        self._bus = Bus(folder.bus_url("api"), name="api", observer=observer)
        self._local = Local(database_url=folder.database_url("api"), transport_url=folder.bus_url("api"))
        patience = RegistrySettings(bulkhead=BulkheadSettings(timeout=pace.cell_timeout, threads=8), local=self._local)
        opened = partial(open_database, outbox=outbox)
        self.registry = CellRegistry(self._api_database, patience, open_database=opened, open_bus=self._open_bus)
        conductor = pace.conductor_settings(folder.images_folder)
        self._closing: list[Bus | ApiDatabase | CellDatabase] = [self._bus, self._api_database]
        _record_images(FolderStore(folder.images_folder), self._api_database)
        self._services: list[RoleService] = []
        for cell in self.registry.list_cells():
            self._add_cell(cell.current_mapping, Vault(vault.keys_of(cell.uuid)), conductor, hosts)
        self.scheduler = SchedulerService(scheduler or pace.scheduler_settings, self.registry, self._api_database, self._bus)
        self._services += [
            self.scheduler,
            SuperConductorService(conductor, self.registry, self._api_database, self._bus, vault=vault),
            of_api_level(self._notify, folder.bus_url("api"), self._api_database, self.registry),
            *(Presence(self._api_database, "api", binary) for binary in (SCHEDULER_BINARY, CONDUCTOR_BINARY)),
        ]
        self._api_presence = Presence(self._api_database, "api", API_BINARY)
        api = msgspec.structs.replace(api, images_folder=str(folder.images_folder))
        self.console_url: str | None = None
        """Where the console proxy is, for clients of serial consoles."""
        if consoles is not None:
            api = msgspec.structs.replace(api, consoles=self._add_console_proxy(consoles))
        self._api = ApiService(api, self.registry, self._api_database, self._bus, vault=vault, guard=guard)
        self._api_host = api.host
        database = self._api_database
        self._sign = health.HealthCheck("the API database", lambda: ready.check_writable(database, "api"))

    def _add_cell(self, mapping: CellMapping, vault: Vault, settings: ConductorSettings, hosts: Sequence[Host]) -> None:
        name, mapping = mapping.name, template.expand_mapping(mapping, self._local)
        database = CellDatabase(mapping.database_url, name=f"conductor of {name}", max_pool_size=10, outbox=self._notify.is_on)
        bus = Bus(mapping.transport_url, name=name, observer=self._observer)
        self._closing += [bus, database]
        self._services.append(CellConductorService(settings, name, database, bus, vault=vault))
        self._services.append(of_cell(self._notify, mapping.transport_url, database))
        self._services.append(Presence(database, "cell", CONDUCTOR_BINARY))
        members = [(host, self._compute_settings(host)) for host in hosts if host.cell == name]
        if members:
            reporter = make_reporter(members[0][1], bus)  # agents that share a process share messages and their threads
            self._services.append(reporter)
        for host, compute in members:
            driver = host.open_driver(compute) if isinstance(host, DriverHost) else None
            self._services.append(ComputeService(compute, bus, driver=driver, reporter=reporter))

    def _add_console_proxy(self, settings: ProxySettings) -> ConsoleUrls:
        """The URLs that lead to it. Unless one is given, it is that of the proxy itself."""
        console_proxy = process.load_proxy()
        listener = console_proxy.bind(settings)
        host, scheme = _in_url(settings.host), "wss" if settings.cert else "ws"
        url = settings.urls.serial_url or f"{scheme}://{host}:{listener.getsockname()[1]}/"
        self.console_url = url
        urls = msgspec.structs.replace(settings.urls, serial_url=url)
        settings = msgspec.structs.replace(settings, urls=urls)
        self._services.append(console_proxy.ConsoleProxyService(settings, self._api_database, listener))
        self._services.append(Presence(self._api_database, "api", CONSOLE_PROXY_BINARY))
        return urls

    def _open_bus(self, mapping: CellMapping) -> Bus | None:
        if mapping.is_cell0:
            return None
        return Bus(mapping.transport_url, name=mapping.name, observer=self._observer)

    def _compute_settings(self, host: Host) -> ComputeSettings:
        common = ComputeSettings(
            host=host.name,
            spawn_timeout=self._pace.spawn_timeout,
            report_interval=self._pace.report_interval,
            stats_interval=self._pace.stats_interval,
            audit_interval=10.0,
            images_folder=str(self._folder.images_folder),
            simulated=SimulatedSettings(state_path=str(self._folder.path / "hosts"), shared_folder=True),
        )
        if isinstance(host, DriverHost):
            return common
        simulated = msgspec.structs.replace(
            common.simulated,
            vcpus=host.vcpus,
            memory_mb=host.memory_mb,
            disk_gb=host.disk_gb,
            spawn_delay_min=host.spawn_delay[0],
            spawn_delay_max=host.spawn_delay[1],
            task_delay=host.task_delay,
            failure_rate=host.failure_rate,
            resources=stored.dump_value(host.resources),
            numa_nodes=host.numa_nodes,
        )
        return msgspec.structs.replace(common, simulated=simulated)

    @property
    def api_endpoint(self) -> str:
        """Where the API answers, once it serves."""
        return f"http://{_in_url(self._api_host)}:{self._api.listen_port}/v2.1"

    def count_schedulable(self) -> int:
        """Hosts that the scheduler could place something on."""
        return self.scheduler.count_schedulable()

    def count_known(self) -> int:
        """Hosts that the scheduler knows, also those that are called down."""
        return self.scheduler.count_known()

    def start(self) -> None:
        """Start every role but the API, the ones that others call first."""
        health.BOARD.watch_part(self._sign)
        for service in self._services:
            service.start()

    def serve_api(self) -> None:
        """Open the API. Before the hosts are known, what it accepted would be refused by the scheduler, and for good."""
        self._api.start()
        self._api_presence.start()

    def stop(self) -> None:
        """Stop in the opposite order; what is still building goes on at the next start."""
        health.BOARD.forget_part(self._sign)
        self._api.stop()
        self._api_presence.stop()
        for service in reversed(self._services):
            service.stop()
        self.registry.close()
        for thing in self._closing:
            thing.close() if isinstance(thing, Bus) else thing.dispose_connections()
        self._folder.release_lock()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _record_images(store: FolderStore, database: ApiDatabase) -> None:
    """Record the images that were added before the first start, or by an older release: the folder is this process's."""
    try:
        complete_rows(database, store)
        for record, project_id in missing_images(database, store):
            database.write(images.record_hash, record.to_stored(project_id))
    except errors.ServiceUnavailable as error:
        LOG.warning("images are not recorded: %s", error)
