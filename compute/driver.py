"""What the agent needs from a hypervisor."""

from __future__ import annotations

import threading
import uuid
from typing import Protocol

import msgspec

from objects.amounts import Amounts
from objects.base import Object
from objects.compute_node import ComputeNode
from objects.spec import BootSecrets


class Guest(Object, frozen=True, kw_only=True):
    """One instance as a hypervisor holds it: vCPUs, MiB, GiB; ``resources`` by resource class, as its flavor asks for them.

    ``fence``, ``attempt`` and ``builder`` are the order's and the agent start's: a driver stores them with the guest, because an
    agent that restarts answers for its guests with them. ``metadata`` is the tenant's and may hold secrets.
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

    @property
    def takes(self) -> Amounts:
        """What it counts as on its node."""
        return Amounts.of(self.vcpus, self.memory_mb, self.disk_gb, self.resources)

    def __repr__(self) -> str:
        """Without the tenant's metadata."""
        return f"Guest({self.uuid}, {self.name!r}, node={self.node!r}, attempt={self.attempt}, builder={self.builder!r})"


def builder_of(host: str) -> str:
    """A name for one start of the host's agent. It begins with the host's name, which a guest remembers that way."""
    return f"{host}:{uuid.uuid4().hex[:12]}"


def host_of(builder: str) -> str:
    """The name that the host had when this start of its agent began; empty where the text tells of none."""
    return builder.rpartition(":")[0]


class ComputeDriver(Protocol):
    """A hypervisor. Called from several threads, for one uuid never by two at once (``destroy`` comes after ``spawn`` returned).

    While a driver is open no other agent may hold the same host; whatever it keeps survives the agent's death.
    """

    def spawn(self, guest: Guest, secrets: BootSecrets | None, cancel: threading.Event) -> None:
        """Make the guest run, and return when it does. Must return or raise soon after ``cancel`` is set.

        ``secrets`` are for the guest alone: they go neither into a log nor into a file that outlives the guest's start.
        Raises ``errors.BuildFailed`` (another host may succeed), ``errors.BuildAborted`` (no other host would),
        ``errors.PolicyViolated`` (another host may do, and this one is not at fault) or ``errors.ServiceUnavailable`` (no host
        could now: it is called again after a while). The agent calls ``destroy`` after any error, so what is half made may be left
        to that.
        """
        ...

    def destroy(self, uuid: str) -> None:
        """Leave nothing of this uuid on the host. Idempotent: an unknown uuid is no error."""
        ...

    def guests(self) -> list[Guest]:
        """Every guest that was spawned and not destroyed, by whichever agent start."""
        ...

    def nodes(self) -> list[ComputeNode]:
        """The host's nodes with what they offer; what is used and the allocation ratios are filled in by the agent."""
        ...

    def close(self) -> None:
        """Let go of the host. Guests keep running."""
        ...
