"""The interface between the agent and a hypervisor."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable
from typing import Protocol

import msgspec

from objects import numa
from objects.amounts import Amounts
from objects.base import Object
from objects.build import Origin
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind
from objects.diagnostics import Diagnostics
from objects.flavor import Flavor
from objects.port import Port
from objects.spec import BootSecrets, Image
from objects.task import DriveChanges, NewImage, Power, SendTarget, StoredContent

CALL_LIMIT_S = 60.0
"""Seconds after which a call of a driver that gets no answer from its hypervisor raises ``errors.HypervisorDown``."""


class Guest(Object, frozen=True, kw_only=True):
    """One instance on a hypervisor: vCPUs, MiB, GiB; ``resources`` by resource class, as its flavor requests them.

    The order gives ``fence`` and ``attempt``, the agent start gives ``builder``. A driver stores them with the guest, because a
    restarted agent needs them to report its guests. ``metadata`` is the tenant's and may hold secrets.

    ``server_uuid``: the uuid that the guest itself sees; empty: ``uuid``, which names its disk and its entry on the host only.
    ``power``: what it is to be once spawned; from ``guests()``, what it is now. ``off_reason``: from ``guests()``, a sentence
    that says why a guest is off, such as a crash; empty if the hypervisor does not know. ``macs``: of its network interfaces, where
    the driver keeps them here. ``numa_nodes``: the NUMA nodes of the host that it is tied to, as numbered in the driver's report.
    Each has an equal part of it. Empty: it is tied to none. ``image_hash``: see ``objects.spec.Image``.
    ``project_id``, ``user_id``, ``ports``: from ``guests()``, those of its ``GuestSpec``; ``ports`` as they are now. With them a
    guest can be adopted whose records are lost. ``last_task``: the number of its latest task (``note_task``); 0: it had none.
    """

    uuid: str
    name: str
    node: str
    fence: int
    attempt: int
    builder: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    batch_id: str = ""
    image_id: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    server_uuid: str = ""
    power: Power = Power.ON
    off_reason: str = ""
    macs: tuple[str, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    image_hash: str = ""
    project_id: str = ""
    user_id: str = ""
    ports: tuple[Port, ...] = ()
    last_task: int = 0

    @property
    def taken_amounts(self) -> Amounts:
        """The resources that it uses on its node."""
        takes = Amounts.of_size(self.vcpus, self.memory_mb, self.disk_gb, self.resources)
        if not self.numa_nodes:
            return takes
        on_nodes = numa.taken_by_class(self.numa_nodes, takes.vcpus, takes.memory_mb)
        return msgspec.structs.replace(takes, resources=takes.resources | on_nodes)

    def __repr__(self) -> str:
        """Without the tenant's metadata."""
        return f"Guest({self.uuid}, {self.name!r}, node={self.node!r}, attempt={self.attempt}, builder={self.builder!r})"


class GuestSpec(Object, frozen=True, kw_only=True):
    """What was asked of one new guest, beside its ``Guest``. A driver that needs some of it later keeps it with the guest.

    ``flavor``: with its extra specs, with root, ephemeral and swap apart. ``image``: with its properties. ``networks``: as text.
    ``ports``: the network interfaces. ``public_key``: the text of the key ``key_name``, if it is known. ``availability_zone``: as
    asked for. ``metadata`` may hold secrets.
    """

    project_id: str
    user_id: str
    flavor: Flavor
    hostname: str
    image: Image | None = None
    networks: str = "none"
    block_devices: tuple[dict[str, str | int | bool | None], ...] = ()
    key_name: str | None = None
    public_key: str | None = None
    ports: tuple[Port, ...] = ()
    config_drive: bool = False
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    tags: tuple[str, ...] = ()
    availability_zone: str | None = None

    def __repr__(self) -> str:
        """Without the tenant's metadata."""
        return f"GuestSpec({self.flavor.name!r}, image={self.image!r}, networks={self.networks!r})"


def builder_of(host: str) -> str:
    """A name for one start of the host's agent. It begins with the host name, so a guest keeps the name of its host."""
    return f"{host}:{uuid.uuid4().hex[:12]}"


def host_of(builder: str) -> str:
    """The host name in a builder; empty if the text contains none."""
    return builder.rpartition(":")[0]


class ComputeDriver(Protocol):
    """A hypervisor. Called from several threads, but never by two at once for one uuid (``destroy`` comes after ``spawn``
    or a task returned).

    ``console_output``, ``check_console``, ``connect_console`` and ``diagnostics`` may come at any time, also during a task of the
    same guest.

    While a driver is open, no other agent may hold the same host. Its data survives the agent's death.

    Each call but ``trouble`` raises ``errors.HypervisorDown`` if the hypervisor cannot be used, ``untouched`` if nothing changed.
    From then on ``trouble`` says why, until the hypervisor can be used again.

    Each call returns or raises within ``CALL_LIMIT_S``, also if the hypervisor hangs. ``spawn``, ``send`` and soft tasks may take
    longer while they make progress.
    """

    @property
    def instances_folder(self) -> str:
        """Where the disks of the guests are. With the ID of the machine it says whether an agent is the same one, started again.

        A driver without this property has one such folder on each machine.
        """
        return ""

    def trouble(self) -> str | None:
        """Why the hypervisor cannot be used now; None if it can. Never waits: the agent asks once a second.

        Meanwhile the host takes no orders. Its guests and their records stay as they are. A driver without this method has none.
        """
        ...

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        """Make the guest's disk, bring the guest to ``guest.power``, and return when it is so. Must return or raise soon after
        ``cancel`` is set.

        The disk is a complete copy of the disk of ``origin``, which may be a snapshot in the image store; None: it is made from
        the image. An INCOMING guest gets its disk with its memory: return when it listens.

        ``secrets`` are for the guest alone: never write them to a log or a file. The one exception is a config drive, of mode
        0600 on a file system in memory, which ``destroy`` removes. After a restart of the host it is made again without them.

        Raises:
        - ``errors.BuildFailed``: another host may succeed. Also if the origin's disk cannot be read completely.
        - ``errors.BuildAborted``: no other host would succeed.
        - ``errors.PolicyViolated``: another host may succeed, and this one is not at fault.
        - ``errors.ServiceUnavailable``: no host could succeed now. The agent calls again later.

        The agent calls ``destroy`` after any error, so ``spawn`` may leave a partial guest.
        """
        ...

    def destroy(self, uuid: str) -> None:
        """Remove everything of this uuid from the host. Idempotent: an unknown uuid is no error."""
        ...

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        """Bring the guest to this power, and return when it is so. Idempotent. ``hard``: do not ask its system to stop by itself.

        A guest that was spawned INCOMING is only brought to ``power`` if it has received all. Otherwise close it first, so that
        nothing can go over to it any more, then raise ``errors.TaskFailed``. So it stays for every later call.

        Raises ``errors.TaskFailed`` if it cannot; the agent treats any other error alike. So do ``reboot``, ``rebuild`` and
        ``send``.
        """
        ...

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        """Migrate the guest live to ``target``, an INCOMING guest, and return when it is off here: its power is then HELD.

        In one step it stops here and runs there. Until then it runs here, also if this call raises, is cancelled or dies. A paused
        guest goes over in the same way, and never runs meanwhile. Called again for a guest that has gone over, it returns. Must
        return or raise soon after ``cancel`` is set. A driver that cannot migrate live raises ``errors.TaskFailed``.
        """
        ...

    def reboot(self, uuid: str, *, hard: bool) -> None:
        """Stop the guest and start it. ``hard``: do not ask its system to stop by itself."""
        ...

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        """Replace the guest's disk by a new one from ``guest.image_id`` under the same uuid, and bring it to ``guest.power``.

        Its config drive is made anew: with the ``secrets``, for which the rules of ``spawn`` hold, with the key of ``changes``, or
        the key that it had, and with the user data of its old drive unless there is new one or ``changes`` removes it. The old
        drive's password and files are gone.
        """
        ...

    def console_output(self, uuid: str, max_bytes: int) -> bytes:
        """The last ``max_bytes`` of what the guest has written to its console. It is passed on without control characters.

        Raises ``errors.NotFound`` for an unknown uuid, and ``errors.NotOffered`` if the driver keeps no consoles; a driver without
        this method counts as such.
        """
        ...

    def check_console(self, uuid: str, kind: ConsoleKind) -> None:
        """Return if ``connect_console`` would succeed now.

        Raises ``errors.NotFound`` for an unknown uuid, ``errors.Conflict`` for a guest that is off, and ``errors.NotOffered`` if
        the guest has no such console; a driver without this method counts as such.
        """
        ...

    def connect_console(self, uuid: str, kind: ConsoleKind) -> socket.socket:
        """A connected stream to the guest's first serial port, or to its VNC server. The caller closes it.

        It ends with the guest. A new one to a serial port may end an earlier one. Raises what ``check_console`` does.
        """
        ...

    def diagnostics(self, uuid: str) -> Diagnostics:
        """What the hypervisor knows of the guest now, without waiting for the guest.

        Raises ``errors.NotFound`` for an unknown uuid, and ``errors.NotOffered`` if the driver knows nothing; a driver without this
        method counts as such.
        """
        ...

    def snapshot(self, uuid: str, image_id: str) -> StoredContent | None:
        """Copy the disk of the guest, which is off, to the image store, and return when the copy is complete and durable.

        Returns what was written, which later readers compare; None: nobody compares it. Idempotent: a copy of this name is replaced
        as a whole. Raises ``errors.TaskFailed`` if it cannot.
        """
        ...

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> StoredContent | None:
        """Make an image of the guest's root disk in the image store, and return when it is complete and durable.

        Returns what was written, as ``snapshot`` does. The guest may run, and goes on. The image has the disk as it is at one
        moment, so it looks as after a power cut. Idempotent: an image of this id that is there stays. Must return or raise soon
        after ``cancel`` is set.

        Raises ``errors.TaskFailed`` if it cannot; a driver without this method counts as such.
        """
        ...

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        """Boot the guest from a new disk of the image, with its own root disk as the second one. Its power is then RESCUED.

        Its system is asked to stop first. ``image_hash``: see ``objects.spec.Image``; an earlier release's driver does without.
        ``secrets``: the password of the rescue system, for which the rules of ``spawn`` hold. The guest's own config drive stays as
        it is. Idempotent: a rescue that did not end is made anew. ``set_power`` with any other power ends the rescue: the new disk
        is removed, and the guest has what it had before.
        """
        ...

    def set_password(self, uuid: str, password: str) -> None:
        """Give the guest's administrator another password, through the guest's system. It is in no log and no file.

        Raises ``errors.TaskFailed`` if the guest cannot be asked; a driver without this method counts as such.
        """
        ...

    def crash_dump(self, uuid: str) -> None:
        """Interrupt the guest so that its system dumps its memory, if it is set up for that. A driver may leave this method out."""
        ...

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        """Give the guest these network interfaces and no others, known by their MACs, and return when it is so. Idempotent.

        A guest that runs keeps the others as they are, and goes on. It has an interface after this call, or after an earlier one
        that was killed, only if it is among ``ports``. The config drive stays as it is.

        Raises ``errors.TaskFailed`` if it cannot; a driver without this method counts as such.
        """
        ...

    def note_task(self, uuid: str, number: int) -> None:
        """Keep the number of the guest's latest task durably, with the guest: its ``last_task``.

        No task of a lower number is carried out after that, whatever a restored cell orders. A driver without this method keeps
        none. Raises ``errors.TaskFailed``.
        """
        ...

    def guests(self) -> list[Guest]:
        """Every guest that was spawned and not destroyed, by any start of the agent. One that has received all is not INCOMING."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed``, from any thread, when a guest may have gone off. The agent then reads ``guests()`` in about a second.

        Events may be lost or doubled: the agent concludes nothing from them. A driver without this method is read at each audit.
        """
        ...

    def nodes(self) -> list[ComputeNode]:
        """The host's nodes with their capacity. The agent fills in usage and allocation ratios.

        ``reserved_memory_mb`` is a proposal: the option of this name replaces it. ``guest_overhead_mb``: the agent adds it for
        each guest.
        """
        ...

    def close(self) -> None:
        """Release the host. Guests keep running."""
        ...
