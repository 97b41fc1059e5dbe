"""A simulated hypervisor: capacity from the configuration, guests in a journal, disks in files, failures on demand.

Failures are deterministic: ``scripted_outcome`` predicts them. So tests can check from outside which boot must have failed on which
host, and which guest must be on which host.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from compute import opts
from compute.consoles import Consoles, boot_log, echo_console
from compute.disks import Disk, Disks, disks_path
from compute.driver import Guest, GuestSpec
from compute.journal import Journal, Received, has_guests
from compute.machine import booted_at
from images.store import NOT_CONFIGURED, open_store
from objects import errors, numa
from objects.build import Origin
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind
from objects.diagnostics import STATES, CpuDiagnostics, Diagnostics, DiskDiagnostics, NicDiagnostics
from objects.numa import HostNumaNode
from objects.port import Port
from objects.spec import BootSecrets
from objects.task import DriveChanges, NewImage, Power, SendTarget, StoredContent

METADATA_KEY = "simulated:outcome"
"""Server metadata key that scripts the outcome on every host: a value of ``SpawnOutcome``. ``fail:h1,h2``: on these hosts only."""


class SpawnOutcome(enum.StrEnum):
    """How a simulated spawn ends."""

    OK = "ok"
    FAIL = "fail"  # the host's fault: another one may succeed
    ERROR = "error"  # the host's fault too, but raised as an error that no driver should raise
    ABORT = "abort"  # the request's fault: no host would succeed
    POLICY = "policy"  # a placement policy would be broken here
    UNAVAILABLE = "unavailable"  # a service that all hosts share does not answer
    HANG = "hang"  # does not end until it is cancelled


RAISED: Mapping[SpawnOutcome, tuple[type[Exception], str]] = {
    SpawnOutcome.FAIL: (errors.BuildFailed, "The simulated hypervisor was told to fail this build."),
    SpawnOutcome.ERROR: (OSError, "The simulated hypervisor was told to break."),
    SpawnOutcome.ABORT: (errors.BuildAborted, "The simulated hypervisor was told to abort this build."),
    SpawnOutcome.POLICY: (errors.PolicyViolated, "The simulated hypervisor was told that this host breaks the group's policy."),
    SpawnOutcome.UNAVAILABLE: (errors.ServiceUnavailable, "The simulated image service does not answer."),
}


_SENDABLE = (Power.ON, Power.PAUSED)
"""The powers with which a guest goes over to another host live. It has the same one there."""


def draw_fraction(host: str, uuid: str, purpose: str) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    digest = hashlib.blake2b(f"{purpose}\n{host}\n{uuid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def scripted_outcome(host: str, uuid: str, rate: float, metadata: Mapping[str, str]) -> SpawnOutcome:
    """The outcome of spawning this instance on this host: from its metadata if that names one, else from the failure rate."""
    outcome, _, hosts = metadata.get(METADATA_KEY, "").partition(":")
    if outcome in set(SpawnOutcome):
        return SpawnOutcome(outcome) if not hosts or host in hosts.split(",") else SpawnOutcome.OK
    return SpawnOutcome.FAIL if draw_fraction(host, uuid, "outcome") < rate else SpawnOutcome.OK


def journal_path(state_path: str, host: str) -> Path:
    """The file that holds the guests of this simulated host."""
    return Path(state_path) / f"{host}.guests"


def cut_power(state_path: str, host: str) -> None:
    """Act as a host that loses its power: no guest of it runs any more, or listens.

    Raises ``errors.Misconfigured`` if the host's agent runs.
    """
    path = journal_path(state_path, host)
    hold = _hold_lock(path)
    try:
        journal, disks = Journal(path), Disks(disks_path(state_path, host))
        for guest in journal.list_guests():
            power = _power_now(guest, disks, state_path)
            if power.uses_disk:
                journal.change_guest(msgspec.structs.replace(guest, power=Power.OFF))
            elif power is Power.INCOMING:
                disks.close(guest.uuid)
        journal.close()
    finally:
        os.close(hold)


def _power_now(guest: Guest, disks: Disks, state_path: str) -> Power:
    """The power of a guest in a journal. A guest that has just come or gone over has another one than the journal says."""
    if guest.power is Power.INCOMING:
        return disks.received_power(guest.uuid) or Power.INCOMING
    if guest.power in _SENDABLE and disks.went_over(guest.uuid, state_path):
        return Power.HELD
    return guest.power


class SimulatedDriver:
    """The driver ``simulated``.

    Raises ``errors.Misconfigured`` if another agent holds the host, or if the state path cannot be used.
    """

    def __init__(self, settings: opts.ComputeSettings) -> None:
        self._host = settings.host
        self._settings = settings.simulated
        self._images = open_store(settings.images_folder, settings.images_drop)
        path = _machines_journal(self._settings, self._host)
        self._hold = _hold_lock(path)
        self._disks = Disks(path.with_suffix(".disks"))
        self._consoles = Consoles(path.with_suffix(".consoles"))
        try:
            self._disks.open()
            self._journal = Journal(path)
        except BaseException:
            os.close(self._hold)
            raise

    @property
    def instances_folder(self) -> str:
        return self._settings.state_path

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        outcome = scripted_outcome(self._host, guest.uuid, self._settings.failure_rate, guest.metadata)
        shortest, longest = self._settings.spawn_delay_min, self._settings.spawn_delay_max
        delay = shortest + max(0.0, longest - shortest) * draw_fraction(self._host, guest.uuid, "delay")
        cancelled = (
            cancel.wait(None if outcome is SpawnOutcome.HANG else delay)
            if delay or outcome is SpawnOutcome.HANG
            else cancel.is_set()
        )
        if cancelled:
            raise errors.BuildFailed("The build was cancelled.")
        if outcome in RAISED:
            error, text = RAISED[outcome]
            raise error(text)
        _check_nodes(guest, spec)
        if guest.power is Power.INCOMING:
            self._disks.mark_incoming(guest.uuid)
        elif origin is None:
            self._disks.create(guest.uuid, _new_disk(guest))
        else:
            self._copy_origin(guest, origin, cancel)
        # Neither a tenant's metadata nor its secrets may stay in a file; a digest shows that the secrets arrived.
        of_spec = {"project_id": spec.project_id, "user_id": spec.user_id, "ports": spec.ports}
        kept_guest = msgspec.structs.replace(guest, metadata={}, macs=tuple(port.mac for port in spec.ports), **of_spec)
        self._journal.add_guest(kept_guest, _received_secrets(secrets))

    def destroy(self, uuid: str) -> None:
        self._journal.remove_guest(uuid)
        self._disks.remove_disk(uuid)
        self._consoles.remove_log(uuid)

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        before = self._require_guest(uuid)
        if before.power is Power.INCOMING and not self._disks.close(uuid):
            raise errors.TaskFailed("The guest has received nothing, and listens no more.")
        guest = self._guest_now(before)
        if guest.power is power and guest is before:
            return
        if guest.power is not power:
            self._check_task(uuid, hard=hard)
        if guest.power.uses_disk is not power.uses_disk:
            self._disks.write(uuid)
        self._consoles.write(before, f"{guest.name}: {'has come live' if before.power is Power.INCOMING else f'is {power}'}")
        self._journal.change_guest(msgspec.structs.replace(guest, power=power))
        if guest is not before:
            self._disks.note_sent(uuid)

    def reboot(self, uuid: str, *, hard: bool) -> None:
        guest = self._require_guest(uuid)
        self._check_task(uuid, hard=hard)
        self._take_time()
        self._disks.write(uuid)
        self._consoles.write(guest, f"{guest.name}: reboots{' hard' if hard else ''}", *boot_log(guest))
        self._journal.change_guest(msgspec.structs.replace(guest, power=Power.ON))

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        guest = self._guest_now(self._require_guest(uuid))
        if guest.power is Power.HELD:
            self._gone_over(guest)
            return
        if guest.power not in _SENDABLE:
            raise errors.TaskFailed(f"The guest neither runs nor is paused: its power is {guest.power}.")
        self._check_task(uuid, hard=False)
        if cancel.wait(self._settings.copy_delay) if self._settings.copy_delay else cancel.is_set():
            raise errors.TaskFailed("The migration was cancelled.")
        self._disks.hand_over(uuid, self._settings.state_path, target, guest.power)
        self._gone_over(guest)

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        before = self._require_guest(guest.uuid)
        self._check_task(guest.uuid, hard=False)
        self._take_time()
        self._disks.replace_disk(guest.uuid, _new_disk(guest))
        after = msgspec.structs.replace(before, image_id=guest.image_id, image_hash=guest.image_hash, power=guest.power)
        self._consoles.write(before, f"{guest.name}: is rebuilt from image {guest.image_id or 'none'}")
        self._journal.change_guest(after, _received_again(self._journal.received_of(guest.uuid), changes, secrets))

    def console_output(self, uuid: str, max_bytes: int) -> bytes:
        return self._consoles.read(self._require_known(self._journal.list_guests(), uuid), max_bytes)

    def check_console(self, uuid: str, kind: ConsoleKind) -> None:
        guest = self._require_known(self.guests(), uuid)
        if kind is not ConsoleKind.SERIAL:
            raise errors.NotOffered("Simulated guests have a serial console only.")
        if not guest.power.uses_disk:
            raise errors.Conflict(f"The guest of instance {uuid} does not run.")

    def connect_console(self, uuid: str, kind: ConsoleKind) -> socket.socket:
        self.check_console(uuid, kind)
        return echo_console(self._require_guest(uuid))

    def diagnostics(self, uuid: str) -> Diagnostics:
        guest = self._require_known(self.guests(), uuid)
        return Diagnostics(
            state=STATES[guest.power],
            hypervisor="simulated",
            memory_mb=guest.memory_mb,
            cpus=tuple(CpuDiagnostics(id=number) for number in range(guest.vcpus)),
            disks=(DiskDiagnostics(device="vda"),),
            nics=tuple(NicDiagnostics(mac_address=mac) for mac in guest.macs),
        )

    def snapshot(self, uuid: str, image_id: str) -> StoredContent:
        guest = self._require_guest(uuid)
        self._check_task(uuid, hard=False)
        if self._images is None:
            raise errors.TaskFailed(NOT_CONFIGURED)
        return self._images.save_snapshot(image_id, self._disks.read_image(uuid, torn=guest.power.uses_disk))

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> StoredContent:
        guest = self._require_guest(uuid)
        self._check_task(uuid, hard=False)
        if self._images is None:
            raise errors.TaskFailed(NOT_CONFIGURED)
        delay = max(self._settings.copy_delay, self._settings.task_delay)
        if cancel.wait(delay) if delay else cancel.is_set():
            raise errors.TaskFailed("The copy of the disk was cancelled.")
        with self._disks.copied_file(uuid) as content:
            image_made = self._images.add_of_server(content, image_id, image, cancel)
        self._consoles.write(guest, f"{guest.name}: image {image_id} is made")
        return image_made

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        guest = self._require_guest(uuid)
        self._check_task(uuid, hard=False)
        self._disks.write(uuid)
        self._consoles.write(guest, f"{guest.name}: is rescued from image {image_id or 'none'}")
        self._journal.change_guest(msgspec.structs.replace(guest, power=Power.RESCUED))

    def set_password(self, uuid: str, password: str) -> None:
        guest = self._require_guest(uuid)
        self._check_task(uuid, hard=False)
        if guest.power is not Power.ON:
            raise errors.TaskFailed("The guest does not run, so its password cannot be set.")
        self._take_time()
        self._consoles.write(guest, f"{guest.name}: its password is changed")
        self._journal.change_guest(guest, msgspec.structs.replace(self._journal.received_of(uuid), admin_pass_set=True))

    def crash_dump(self, uuid: str) -> None:
        guest = self._require_guest(uuid)
        self._check_task(uuid, hard=False)
        if not guest.power.uses_disk:
            raise errors.TaskFailed("The guest does not run, so there is nothing to dump.")
        self._consoles.write(guest, f"{guest.name}: NMI received", f"{guest.name}: dumps its memory")

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        guest, macs = self._require_guest(uuid), tuple(port.mac for port in ports)
        self._check_task(uuid, hard=False)
        if guest.macs != macs:
            self._take_time()
            self._consoles.write(guest, f"{guest.name}: has the interfaces {', '.join(macs) or 'none'}")
        if (guest.macs, guest.ports) != (macs, ports):
            self._journal.change_guest(msgspec.structs.replace(guest, macs=macs, ports=ports))

    def note_task(self, uuid: str, number: int) -> None:
        guest = self._require_guest(uuid)
        if guest.last_task != number:
            self._journal.change_guest(msgspec.structs.replace(guest, last_task=number))

    def trouble(self) -> str | None:
        return None

    def watch(self, changed: Callable[[], None]) -> None:
        """A simulated guest changes only in a call."""

    def guests(self) -> list[Guest]:
        return [self._guest_now(guest) for guest in self._journal.list_guests()]

    def nodes(self) -> list[ComputeNode]:
        s = self._settings
        node = ComputeNode(
            host=self._host,
            node=self._host,
            vcpus=s.vcpus,
            memory_mb=s.memory_mb,
            disk_gb=s.disk_gb,
            hypervisor_type="simulated",
            hypervisor_version=1,
            attributes=s.parsed_attributes(),
            resources=s.parse_resources(),
            booted_at=booted_at(),
            numa_nodes=_numa_nodes(s),
        )
        return [node]

    def _copy_origin(self, guest: Guest, origin: Origin, cancel: threading.Event) -> None:
        """Copy the origin's disk. All simulated hosts of a region share one state path."""
        if origin.image_id is not None:
            self._disks.restore_disk(guest.uuid, self._read_snapshot(origin.image_id, origin.image_hash))
        else:
            path, delay = self._settings.state_path, self._settings.copy_delay
            self._disks.copy_disk(guest.uuid, path, origin.host, origin.instance_uuid, delay, cancel)
        if guest.power.uses_disk:
            self._disks.write(guest.uuid)

    def _guest_now(self, guest: Guest) -> Guest:
        power = _power_now(guest, self._disks, self._settings.state_path)
        return guest if power is guest.power else msgspec.structs.replace(guest, power=power)

    def _gone_over(self, guest: Guest) -> None:
        self._journal.change_guest(msgspec.structs.replace(guest, power=Power.HELD))
        self._disks.note_sent(guest.uuid)

    def _read_snapshot(self, image_id: str, image_hash: str) -> bytes:
        if self._images is None:
            raise errors.BuildFailed(NOT_CONFIGURED)
        try:
            return self._images.read(image_id, image_hash)
        except (errors.NotFound, errors.Invalid) as error:  # the hosts share the store
            raise errors.BuildAborted(str(error)) from error

    def _require_guest(self, uuid: str) -> Guest:
        matching = [guest for guest in self._journal.list_guests() if guest.uuid == uuid]
        if not matching:
            raise errors.TaskFailed(f"Host {self._host} has no guest of instance {uuid}.")
        return matching[-1]

    def _require_known(self, guests: Sequence[Guest], uuid: str) -> Guest:
        matching = [guest for guest in guests if guest.uuid == uuid]
        if not matching:
            raise errors.NotFound(f"Host {self._host} has no guest of instance {uuid}.")
        return matching[-1]

    def _take_time(self) -> None:
        """Take ``task_delay`` seconds, as a real guest takes some. Nothing has changed before, so it may be killed meanwhile."""
        time.sleep(self._settings.task_delay)

    def _check_task(self, uuid: str, *, hard: bool) -> None:
        """Fail the tasks of some guests unless they are hard, as when a guest's system does not react."""
        if not hard and draw_fraction(self._host, uuid, "task") < self._settings.task_failure_rate:
            raise errors.TaskFailed("The simulated hypervisor was told to fail the tasks of this guest.")

    def close(self) -> None:
        self._journal.close()
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


def _numa_nodes(settings: opts.SimulatedSettings) -> tuple[HostNumaNode, ...]:
    """The NUMA nodes of the host, the first ones with what cannot be divided equally."""
    count = settings.numa_nodes
    parts = [[(amount + count - 1 - n) // count for n in range(count)] for amount in (settings.vcpus, settings.memory_mb)]
    return tuple(HostNumaNode(vcpus=vcpus, memory_mb=memory_mb) for vcpus, memory_mb in zip(*parts, strict=True))


def _check_nodes(guest: Guest, spec: GuestSpec) -> None:
    """Refuse a guest that asks for other NUMA nodes than it is tied to: a simulated host makes none of its own."""
    properties = spec.image.properties if spec.image is not None else {}
    requested = numa.requested_nodes(spec.flavor.extra_specs, properties, guest.taken_amounts.vcpus, guest.taken_amounts.memory_mb)
    if requested != (len(guest.numa_nodes) or 1):
        raise errors.PolicyViolated(
            f"The server asks for NUMA nodes, and is tied to {len(guest.numa_nodes)} of this simulated host."
        )


def _new_disk(guest: Guest) -> Disk:
    """A disk from the guest's image; a guest that starts has written once."""
    return Disk(server_uuid=guest.server_uuid or guest.uuid, image_id=guest.image_id, writes=int(guest.power.uses_disk))


def _received_secrets(secrets: BootSecrets | None) -> Received | None:
    if not secrets:
        return None
    digest = hashlib.sha256(secrets.user_data.encode()).hexdigest() if secrets.user_data is not None else None
    return Received(user_data_sha256=digest, admin_pass_set=secrets.admin_pass is not None, files=len(secrets.files))


def _received_again(before: Received, changes: DriveChanges, secrets: BootSecrets | None) -> Received:
    """What a rebuilt guest has: the new secrets, and of what it had the user data and the key that stay."""
    now = _received_secrets(secrets) or Received()
    user_data_hash = None if changes.removes_user_data else before.user_data_sha256
    key_name = before.key_name if changes.key_name is None else changes.key_name
    return msgspec.structs.replace(now, user_data_sha256=now.user_data_sha256 or user_data_hash, key_name=key_name)


def _machines_journal(settings: opts.SimulatedSettings, host: str) -> Path:
    """The file with this machine's guests. As with a hypervisor, they stay when the host is renamed."""
    own_journal = journal_path(settings.state_path, host)
    try:
        if settings.shared_folder or has_guests(own_journal):
            return own_journal
        return next((path for path in sorted(own_journal.parent.glob("*.guests")) if has_guests(path)), own_journal)
    except OSError as error:
        raise _unusable_path(own_journal.parent, error) from error


def _unusable_path(folder: Path, error: OSError) -> errors.Misconfigured:
    return errors.Misconfigured(f"[simulated] state_path: {folder} cannot be used: {error.strerror}.")


def _hold_lock(path: Path) -> int:
    """Take the host's lock file while the descriptor is open: the kernel releases the lock whenever the process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable_path(path.parent, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        message = (
            f"Another agent uses {path}: stop it, or give this one another [compute] host, and set [simulated] "
            "shared_folder if both keep their guests there."
        )
        raise errors.Misconfigured(message) from error
    return descriptor
