"""The driver ``libvirt``: guests of QEMU.

A spawn makes folder, disks, config drive and domain, starts it, and marks its metadata: from then on it is a guest. Whatever an
agent that died has left before its mark is removed when the next start first lists guests.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from oslo_config import cfg

from compute.config_drive import config_drive_files, rebuilt_drive_files, write_config_drive
from compute.driver import ComputeDriver, Guest, GuestSpec
from compute.libvirt import opts, qemu_img
from compute.libvirt.attachments import Attachments
from compute.libvirt.connection import LibvirtConnection
from compute.libvirt.consoles import GuestConsoles
from compute.libvirt.copies import Copies
from compute.libvirt.diagnostics import diagnostics_of
from compute.libvirt.disk_plan import plan_disks
from compute.libvirt.domain_xml import DomainDisk, DomainNic, DomainRequest, make_domain_xml
from compute.libvirt.domains import Domains, has_crashed
from compute.libvirt.guest_files import EPHEMERAL_DISK, IMAGE_DISK, NEW_DISK, RESCUE_DISK, ROOT_DISK, SWAP_DISK, GuestFiles
from compute.libvirt.host import Host
from compute.libvirt.interfaces import GuestInterfaces, interfaces_of
from compute.libvirt.kept_guest import KeptGuest
from compute.libvirt.live_copies import LiveCopies
from compute.libvirt.power import PowerSwitch
from compute.opts import ComputeSettings
from images.cache import CachedImage, ImageCache
from images.inspection import inspect_file
from images.record import ImageRecord
from images.source import ImageSource, open_source
from images.store import NOT_CONFIGURED, FolderStore, open_store
from objects import errors
from objects.build import Origin
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind
from objects.diagnostics import Diagnostics
from objects.port import Port
from objects.spec import BootSecrets
from objects.task import DriveChanges, NewImage, Power, SendTarget, StoredContent
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

GIB = 1 << 30
MIB = 1 << 20

list_opts = opts.list_opts


def open_libvirt(host: str, conf: cfg.ConfigOpts, settings: ComputeSettings) -> ComputeDriver:
    """The factory of the driver. It does not wait for libvirt. Raises ``errors.Misconfigured``."""
    snapshots = open_store(settings.images_folder, settings.images_drop)
    return LibvirtDriver(host, opts.read_settings(conf), open_source(conf, settings.images_folder), snapshots)


class LibvirtDriver:
    """The guests of ``host`` at one libvirt.

    Raises ``errors.Misconfigured`` if another agent uses the same folder, or for settings that cannot work.
    """

    def __init__(self, host: str, settings: opts.LibvirtSettings, source: ImageSource, snapshots: FolderStore | None) -> None:
        self._host_name = host
        self._settings = settings
        self._snapshots = snapshots
        self._files = GuestFiles(settings.instances_path, settings.config_drive_path)
        self._files.open()
        self._hold = _hold_lock(self._files.instances_path)
        self._source = source
        self._cache = ImageCache(Path(settings.cache_path), source)
        self._connection = LibvirtConnection(settings.connection_uri, settings.open_timeout)
        self._host = Host(self._connection, host, settings.guests, self._files.instances_path)
        self._domains = Domains(self._connection, host)
        self._attachments = Attachments(self._connection, settings.parse_attachments(), settings.dhcp_hosts_path)
        self._copies = Copies(settings, self._cache)
        self._live_copies = LiveCopies(self._connection)
        self._interfaces = GuestInterfaces(self._connection)
        self._consoles = GuestConsoles(self._connection, self._domains, host)
        self._power = PowerSwitch(self._connection, self._domains, settings.shutdown_timeout, self._before_start)
        self._complaints = RateLimitedLog(LOG)
        self._lock = threading.Lock()
        self._under_way: set[str] = set()  # uuids that a spawn or a destroy of this process works on
        self._defining = threading.Lock()  # from reading what other guests have for themselves until the next one has its part

    @property
    def instances_folder(self) -> str:
        return str(self._files.instances_path)

    # -- the life of a guest -------------------------------------------------------------------------------------------------------

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        self._connection.get()  # raises that nothing was touched
        with self._works_on(guest.uuid), _touching_guest():
            existing = self._domains.find_domain(guest.uuid)
            if existing is not None:
                self._check_same(guest, existing)
                return
            if guest.power is Power.INCOMING:
                raise errors.BuildAborted("Hosts with libvirt cannot receive a guest live.")
            folder = self._files.make_folder(guest.uuid)
            properties = self._make_disks(guest, spec, cancel, origin)
            if has_drive := self._wants_config_drive(spec, secrets):
                self._make_config_drive(guest, spec, secrets)
            _check_cancelled(cancel)
            kept_guest = KeptGuest(
                guest=guest, spec=spec, host=self._host_name, image_properties=properties, config_drive=has_drive
            )
            domain = self._define_guest(kept_guest, spawned=False)
            self._attachments.announce_addresses(spec.ports, spec.hostname)
            _check_cancelled(cancel)
            self._power.create(domain, guest.power)
            _check_cancelled(cancel)
            self._domains.keep_guest(domain, kept_guest)
            self._files.finish_guest(guest.uuid)
            LOG.debug("Instance %s: its guest is in %s", guest.uuid, folder)

    def destroy(self, uuid: str) -> None:
        with self._works_on(uuid):
            self._remove_guest(uuid)

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        with _touching_guest():
            domain = self._require_domain(guest.uuid)
            held = self._domains.read_kept(domain)
            spec = _with_key(held.spec, changes)
            has_drive = held.config_drive or self._wants_config_drive(spec, secrets)
            # everything that can fail for the image's sake comes first: until then, the guest is as it was
            image = self._cache.fetch_base(guest.image_id or "", threading.Event(), held.spec.project_id, guest.image_hash)
            new = self._files.disk_path(guest.uuid, NEW_DISK)
            with _as_task_failure():
                drive = self._rebuilt_drive(held, spec, changes, secrets) if has_drive else {}
                self._make_overlay(new, image, held.spec)
                self._power.bring_power(domain, Power.OFF, hard=True)
                new.replace(self._files.disk_path(guest.uuid))
                self._files.forget_bases(guest.uuid, image.path)
                if has_drive:
                    write_config_drive(self._files.config_drive(guest.uuid), drive)
                chosen = {"image_id": guest.image_id, "image_hash": guest.image_hash}
                after = msgspec.structs.replace(held.guest, power=guest.power, **chosen)
                properties = _merged_properties(image.record, held.spec, guest.image_id)
                kept_guest = msgspec.structs.replace(
                    held, guest=after, spec=spec, image_properties=properties, config_drive=has_drive
                )
                domain = self._define_guest(kept_guest, spawned=True)
            self._power.bring_power(domain, guest.power, hard=True)

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        domain = self._require_domain(uuid)
        is_rescued = self._domains.read_kept(domain).guest.power is Power.RESCUED
        if power is Power.RESCUED and not is_rescued:
            raise errors.TaskFailed("The guest is not rescued any more.")
        if is_rescued and power is not Power.RESCUED:
            domain = self._end_rescue(domain, hard=hard)
        self._power.bring_power(domain, power, hard=hard)

    def reboot(self, uuid: str, *, hard: bool) -> None:
        domain = self._require_domain(uuid)
        with _touching_guest():
            self._power.bring_power(domain, Power.OFF, hard=hard)
            self._power.bring_power(domain, Power.ON, hard=hard)

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        del uuid, target, cancel
        raise errors.TaskFailed("This driver cannot migrate a guest live.")

    def snapshot(self, uuid: str, image_id: str) -> StoredContent:
        domain = self._require_domain(uuid)
        if self._snapshots is None:
            raise errors.TaskFailed(NOT_CONFIGURED)
        if self._domains.power_of(domain).uses_disk:
            raise errors.TaskFailed("The guest runs, so a copy of its disk would be torn.")
        flat = self._files.disk_path(uuid, NEW_DISK)
        with _as_task_failure():
            flat.unlink(missing_ok=True)
            qemu_img.flatten_disk(self._files.disk_path(uuid), flat)
            saved = self._snapshots.save_file(image_id, flat)
            flat.unlink(missing_ok=True)
        return saved

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> StoredContent:
        domain = self._require_domain(uuid)
        if self._snapshots is None:
            raise errors.TaskFailed(NOT_CONFIGURED)
        disk, copy = self._files.disk_path(uuid), self._files.disk_path(uuid, IMAGE_DISK)
        try:
            with _as_task_failure():
                copy.unlink(missing_ok=True)
                if self._domains.power_of(domain).uses_disk:
                    self._live_copies.copy_disk(domain, disk, copy, cancel)
                else:
                    qemu_img.flatten_disk(disk, copy, cancel)
                properties = self._domains.read_kept(domain).image_properties
                return self._snapshots.add_of_server(copy, image_id, image, cancel, disk_format="qcow2", properties=properties)
        finally:
            copy.unlink(missing_ok=True)

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        with _touching_guest():
            domain = self._require_domain(uuid)
            held = self._domains.read_kept(domain)
            image = self._cache.fetch_base(image_id, threading.Event(), held.spec.project_id, image_hash)
            with _as_task_failure():
                drive = config_drive_files(held.guest, held.spec, secrets)
                self._power.stop(domain, hard=False)
                disk = self._files.disk_path(uuid, RESCUE_DISK)
                disk.unlink(missing_ok=True)
                qemu_img.create_overlay(disk, image.path, image.disk_format, None)
                write_config_drive(self._files.rescue_drive(uuid), drive)
                rescued = msgspec.structs.replace(held.guest, power=Power.RESCUED)
                domain = self._define_guest(msgspec.structs.replace(held, guest=rescued), spawned=True)
            self._power.bring_power(domain, Power.RESCUED, hard=False)

    def _end_rescue(self, domain: Any, *, hard: bool) -> Any:
        """The guest is defined as it was before its rescue, and is off. If this dies in between, it is still rescued."""
        held = self._domains.read_kept(domain)
        with _touching_guest(), _as_task_failure():
            self._power.stop(domain, hard=hard)
            off = msgspec.structs.replace(held.guest, power=Power.OFF)
            domain = self._define_guest(msgspec.structs.replace(held, guest=off), spawned=True)
            self._files.end_rescue(held.guest.uuid)
        return domain

    def set_password(self, uuid: str, password: str) -> None:
        domain = self._require_domain(uuid)
        properties = self._domains.read_kept(domain).image_properties
        user = properties.get("os_admin_user") or ("Administrator" if properties.get("os_type") == "windows" else "root")
        doing = f"set the password of {user}, through the guest agent of the guest"
        with self._connection.errors_as(errors.TaskFailed, doing):
            self._connection.ask_guest(lambda: domain.setUserPassword(user, password, 0), doing)

    def crash_dump(self, uuid: str) -> None:
        domain = self._require_domain(uuid)
        with _touching_guest(), self._connection.errors_as(errors.TaskFailed, "send the guest an NMI"):
            self._connection.ask_guest(lambda: domain.injectNMI(0), "send the guest an NMI")

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        domain = self._require_domain(uuid)
        held = self._domains.read_kept(domain)
        kept_guest = msgspec.structs.replace(held, spec=msgspec.structs.replace(held.spec, ports=ports))
        with _touching_guest(), _as_task_failure():
            interface_by_mac = interfaces_of(make_domain_xml(self._domain_request(kept_guest, spawned=True)))
            self._domains.keep_guest(domain, held)  # this waits for the last call of an agent that has died
            self._attachments.announce_addresses(tuple(port for port in ports if port not in held.spec.ports), held.spec.hostname)
            self._interfaces.bring_interfaces(domain, interface_by_mac)
            self._domains.keep_guest(domain, kept_guest)
            self._attachments.forget_addresses(tuple(port for port in held.spec.ports if port not in ports))

    def note_task(self, uuid: str, number: int) -> None:
        domain = self._require_domain(uuid)
        kept = self._domains.read_kept(domain)
        if kept.guest.last_task != number:
            self._domains.keep_guest(
                domain, msgspec.structs.replace(kept, guest=msgspec.structs.replace(kept.guest, last_task=number))
            )

    # -- what there is -------------------------------------------------------------------------------------------------------------

    def trouble(self) -> str | None:
        return self._connection.find_trouble()

    def watch(self, changed: Callable[[], None]) -> None:
        self._connection.changed = changed

    def guests(self) -> list[Guest]:
        guests, parts = self._domains.list_guests()
        self._sweep_leftovers({guest.uuid for guest in guests}, parts)
        self._files.cut_consoles(self._settings.console_log_kb << 10)
        return guests

    def nodes(self) -> list[ComputeNode]:
        node = self._host.read_node()
        bases = {disk: base for disk in self._files.disk_paths() if (base := qemu_img.backing_file(disk)) is not None}
        for disk, base in bases.items():
            if disk.name == ROOT_DISK:
                self._files.keep_base(disk, Path(self._settings.cache_path) / base.name)
        self._cache.sweep_unused(set(bases.values()), self._settings.cache_ttl)
        return [node]

    def console_output(self, uuid: str, max_bytes: int) -> bytes:
        if not self._files.folder_of(uuid).is_dir():
            raise errors.NotFound(f"Host {self._host_name} has no guest of instance {uuid}.")
        return self._files.read_console(uuid, max_bytes)

    def check_console(self, uuid: str, kind: ConsoleKind) -> None:
        self._consoles.check_console(uuid, kind)

    def connect_console(self, uuid: str, kind: ConsoleKind) -> socket.socket:
        return self._consoles.connect_console(uuid, kind)

    def diagnostics(self, uuid: str) -> Diagnostics:
        domain = self._domains.find_domain(uuid)
        if domain is None or not self._domains.is_spawned(domain):
            raise errors.NotFound(f"Host {self._host_name} has no guest of instance {uuid}.")
        counters = self._domains.read_counters(domain)
        guest, kept_guest = self._domains.as_counted(domain, counters), self._domains.read_kept(domain)
        return diagnostics_of(guest, kept_guest, counters, self._settings.guests.virt_type, crashed=has_crashed(counters))

    def close(self) -> None:
        self._connection.close()
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1

    # -- parts of a spawn ----------------------------------------------------------------------------------------------------------

    def _check_same(self, guest: Guest, existing: Any) -> None:
        """The same attempt may come again once it has ended; any other guest of this uuid is destroyed by the agent first."""
        held = self._domains.read_kept(existing).guest
        same = (held.fence, held.attempt, held.builder) == (guest.fence, guest.attempt, guest.builder)
        if not same or not self._domains.is_spawned(existing):
            raise errors.BuildFailed("Another guest of this uuid is on the host.")

    def _make_disks(self, guest: Guest, spec: GuestSpec, cancel: threading.Event, origin: Origin | None) -> dict[str, str]:
        """Make the guest's disks, and return the properties of its image."""
        plan = plan_disks(spec)
        disk, size = self._files.disk_path(guest.uuid), spec.flavor.root_gb * GIB
        if origin is None:
            image = self._cache.fetch_base(guest.image_id or "", cancel, spec.project_id, guest.image_hash)
            self._make_overlay(disk, image, spec)
            properties = _merged_properties(image.record, spec, guest.image_id)
        else:
            if origin.image_id is not None:
                self._copy_snapshot(origin.image_id, disk, cancel, origin.image_hash)
            else:
                self._copies.copy_disks(origin, guest.image_id, spec.project_id, disk.parent, cancel)
            _grow_disk(disk, size)
            properties = self._known_properties(guest.image_id, spec)
        if plan.ephemeral_gb:
            ephemeral = self._files.disk_path(guest.uuid, EPHEMERAL_DISK)
            if ephemeral.exists():
                _grow_disk(ephemeral, plan.ephemeral_gb * GIB)
            else:
                qemu_img.create(ephemeral, plan.ephemeral_gb * GIB)
        if plan.swap_mb:
            qemu_img.create(self._files.disk_path(guest.uuid, SWAP_DISK), plan.swap_mb * MIB)
        return properties

    def _make_overlay(self, disk: Path, image: CachedImage, spec: GuestSpec) -> None:
        """Make a root disk on the image. Raises ``errors.BuildAborted`` if the flavor is too small for the image."""
        record, flavor = image.record, spec.flavor
        root_size = flavor.root_gb * GIB
        if root_size and root_size < max(image.virtual_size, record.min_disk * GIB):
            needs = max(-(-image.virtual_size // GIB), record.min_disk)
            raise _too_small(record, spec, f"{needs} GiB of disk", flavor.root_gb)
        if flavor.memory_mb < record.min_ram:
            raise _too_small(record, spec, f"{record.min_ram} MiB of memory", flavor.memory_mb)
        disk.unlink(missing_ok=True)
        qemu_img.create_overlay(disk, image.path, image.disk_format, root_size or None)
        self._files.keep_base(disk, image.path)

    def _wants_config_drive(self, spec: GuestSpec, secrets: BootSecrets | None) -> bool:
        """There is no other way to tell the guest what it was given."""
        return self._settings.force_config_drive or spec.config_drive or bool(secrets or spec.public_key or spec.ports)

    def _make_config_drive(self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, *, remade: bool = False) -> None:
        files = config_drive_files(guest, spec, secrets, remade=remade)
        write_config_drive(self._files.config_drive(guest.uuid), files)

    def _rebuilt_drive(
        self, held: KeptGuest, spec: GuestSpec, changes: DriveChanges, secrets: BootSecrets | None
    ) -> dict[str, bytes]:
        return rebuilt_drive_files(
            *(self._files.config_drive(held.guest.uuid), held.guest, spec, secrets),
            removes_user_data=changes.removes_user_data,
            had_drive=held.config_drive,
        )

    def _before_start(self, kept_guest: KeptGuest) -> None:
        """A restart of the host has emptied the file system in memory: the drive is made again, without what is stored nowhere."""
        guest, spec = kept_guest.guest, kept_guest.spec
        if guest.power is Power.RESCUED:
            if not (drive := self._files.rescue_drive(guest.uuid)).exists():
                write_config_drive(drive, config_drive_files(guest, spec, None, remade=True))
        elif kept_guest.config_drive and not self._files.config_drive(guest.uuid).exists():
            LOG.info("Instance %s: its config drive is made again, without user data and password", guest.uuid)
            self._make_config_drive(guest, spec, None, remade=True)
        self._attachments.announce_addresses(spec.ports, spec.hostname)

    def _define_guest(self, kept_guest: KeptGuest, *, spawned: bool) -> Any:
        """Define the domain, or replace its definition."""
        with self._defining:
            request = self._domain_request(kept_guest, spawned=spawned)
            others = self._domains.taken_by_others(kept_guest.guest.uuid)
            return self._domains.define_domain(
                kept_guest.guest.uuid, make_domain_xml(msgspec.structs.replace(request, others=others))
            )

    def _domain_request(self, kept_guest: KeptGuest, *, spawned: bool) -> DomainRequest:
        """What its XML is made of, but for what the other guests have taken."""
        guest, spec = kept_guest.guest, kept_guest.spec
        is_rescued = guest.power is Power.RESCUED
        drive = self._files.rescue_drive(guest.uuid) if is_rescued else self._files.config_drive(guest.uuid)
        plan = plan_disks(spec)
        buses = {ROOT_DISK: plan.root_bus, EPHEMERAL_DISK: plan.ephemeral_bus, SWAP_DISK: plan.swap_bus}
        buses = {RESCUE_DISK: plan.root_bus, **buses} if is_rescued else buses
        paths = [path for name in buses if (path := self._files.disk_path(guest.uuid, name)).exists()]
        attached = [(port, self._attachments.attachment_of(port)) for port in spec.ports]
        return DomainRequest(
            guest=guest,
            name=self._domains.name_for(guest),
            spec=spec,
            host=self._host.read_facts(),
            settings=self._settings.guests,
            disks=tuple(
                DomainDisk(path=str(path), bus=buses[path.name], serial=guest.uuid if path.name == ROOT_DISK else "")
                for path in paths
            ),
            console_log=str(self._files.console_path(guest.uuid)),
            identity=kept_guest.as_text(),
            image_properties=kept_guest.image_properties,
            spawned=spawned,
            config_drive=str(drive) if kept_guest.config_drive or is_rescued else None,
            nics=tuple(DomainNic(mac=port.mac, kind=one.kind, source=one.name, mtu=port.mtu) for port, one in attached),
            direct_io=self._host.direct_io,
        )

    def _known_properties(self, image_id: str | None, spec: GuestSpec) -> dict[str, str]:
        """The properties of the image that a copied disk was once made from, as far as they are known."""
        try:
            return _merged_properties(self._source.get_record(image_id or ""), spec, image_id)
        except (errors.NotFound, errors.Invalid, errors.Forbidden):
            return _asked_properties(spec, image_id)

    def _copy_snapshot(self, image_id: str, disk: Path, cancel: threading.Event, image_hash: str) -> None:
        if self._snapshots is None:
            raise errors.BuildFailed(NOT_CONFIGURED)
        try:
            self._snapshots.copy_to(image_id, disk, cancel, image_hash)
            inspect_file(disk, "qcow2")
        except errors.Invalid as error:
            raise errors.BuildAborted(str(error)) from error
        except errors.NotFound as error:  # the hosts share the store
            raise errors.BuildAborted(str(error)) from error

    # -- ends ----------------------------------------------------------------------------------------------------------------------

    def _require_domain(self, uuid: str) -> Any:
        """The domain of this guest. Raises ``errors.TaskFailed`` if there is none."""
        domain = self._domains.find_domain(uuid)
        if domain is None:
            raise errors.TaskFailed(f"Host {self._host_name} has no guest of instance {uuid}.")
        return domain

    def _remove_guest(self, uuid: str) -> None:
        """Remove the domain, then the files: a death in between leaves a folder that the next start removes."""
        domain = self._domains.find_domain(uuid)
        if domain is not None:
            self._attachments.forget_addresses(self._domains.read_kept(domain).spec.ports)
        self._files.begin_removal(uuid)
        self._domains.remove_domain(uuid)
        self._files.remove_files(uuid)

    def _sweep_leftovers(self, spawned: set[str], parts: Sequence[str]) -> None:
        """Remove what no thread of this process works on and is no guest: an agent that has died left it."""
        for uuid in spawned & set(self._files.unfinished_names()):
            self._files.finish_guest(uuid)  # the agent died right after the mark
        for uuid in {*parts, *self._files.unfinished_names()} - spawned:
            with self._lock:
                if uuid in self._under_way:
                    continue
                self._under_way.add(uuid)
            try:
                domain = self._domains.find_domain(uuid)
                if domain is None or not self._domains.is_spawned(domain):
                    self._remove_guest(uuid)
                    LOG.info("Removed what an earlier start of the agent had left of instance %s", uuid)
            except (errors.BuildFailed, errors.TaskFailed) as error:
                text = "What is left of instance %s cannot be removed, and will be tried again: %s"
                self._complaints(uuid, logging.WARNING, text, uuid, error)
            finally:
                with self._lock:
                    self._under_way.discard(uuid)

    @contextmanager
    def _works_on(self, uuid: str) -> Iterator[None]:
        with self._lock:
            self._under_way.add(uuid)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(uuid)


def _too_small(record: ImageRecord, spec: GuestSpec, needs: str, has: int) -> errors.BuildAborted:
    return errors.BuildAborted(f"Image {record.id} needs {needs}, and flavor {spec.flavor.name} has {has}.")


def _merged_properties(record: ImageRecord, spec: GuestSpec, image_id: str | None) -> dict[str, str]:
    """The properties of the image and those of the request, which are about the image that it names."""
    return {**record.properties, **_asked_properties(spec, image_id)}


def _asked_properties(spec: GuestSpec, image_id: str | None) -> dict[str, str]:
    return spec.image.properties if spec.image is not None and spec.image.id == image_id else {}


def _with_key(spec: GuestSpec, changes: DriveChanges) -> GuestSpec:
    if changes.key_name is None:
        return spec
    return msgspec.structs.replace(spec, key_name=changes.key_name or None, public_key=changes.public_key or None)


def _grow_disk(disk: Path, size: int) -> None:
    """Give a copied disk the size of its flavor. Raises ``errors.BuildAborted`` if it would have to shrink."""
    now = qemu_img.read_info(disk).virtual_size
    if size and size < now:
        raise errors.BuildAborted(f"The disk has {-(-now // GIB)} GiB and cannot shrink to {size // GIB} GiB.")
    if size > now:
        qemu_img.resize_disk(disk, size)


def _check_cancelled(cancel: threading.Event) -> None:
    if cancel.is_set():
        raise errors.BuildFailed("The build was cancelled.")


@contextmanager
def _touching_guest() -> Iterator[None]:
    """From here on, something may have changed when the hypervisor goes down."""
    try:
        yield
    except errors.HypervisorDown as error:
        raise errors.HypervisorDown(str(error)) from error


@contextmanager
def _as_task_failure() -> Iterator[None]:
    """The errors of a build, as a task raises them."""
    try:
        yield
    except (errors.BuildFailed, errors.BuildAborted, OSError) as error:
        raise errors.TaskFailed(str(error)) from error


def _hold_lock(folder: Path) -> int:
    """Take the folder's lock while the descriptor is open: the kernel releases it whenever the process dies."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise errors.Misconfigured(
            f"Another agent uses {folder}: stop it, or give this one another [libvirt] instances_path."
        ) from error
    return descriptor
