"""The schedule of faults: which, on what, when and for how long. A function of its seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection, Mapping, Sequence

from chaos.links import links_of, list_levels
from deploy.cluster import NODES
from deploy.local.shape import Member, Role, Shape
from objects.base import Object


class Kind(enum.StrEnum):
    """What is done. Everything is undone after the fault's seconds."""

    KILL = "kill"  # SIGKILL: to a worker, to a master, or to all processes of a member; masters are started again
    STOP = "stop"  # SIGSTOP to all processes of a member, and SIGCONT
    BROKER = "broker"  # ended in order or killed, and started again with its data; of a cluster one node, or the majority frozen
    DATABASE = "database"  # the same
    CUT = "cut"  # connections are reset and new ones refused
    FREEZE = "freeze"  # nothing moves; what was sent meanwhile arrives later
    MUTE = "mute"  # what is asked arrives, answers do not
    HOST = "host"  # its power is cut, it is called dead, and its servers are evacuated; then it comes back
    DRAIN = "drain"  # no fault, but work: a host is disabled, and its servers are migrated; then it is enabled
    LIBVIRT = "libvirt"  # the libvirtd of a host is killed, or stands still
    GUEST = "guest"  # the QEMU of one guest is killed, or stands still


REAL_ONLY = frozenset({Kind.LIBVIRT, Kind.GUEST})
"""What only hosts with libvirt have."""


WEIGHTS: Mapping[Kind, float] = {
    Kind.KILL: 5.0,
    Kind.STOP: 3.0,
    Kind.BROKER: 0.7,
    Kind.DATABASE: 0.7,
    Kind.CUT: 2.0,
    Kind.FREEZE: 2.0,
    Kind.MUTE: 2.0,
    Kind.HOST: 2.0,
    Kind.DRAIN: 2.0,
    Kind.LIBVIRT: 4.0,
    Kind.GUEST: 3.0,
}
"""How often each happens, compared with the others."""


SINGLE_SERVERS = ("mariadb", "postgresql", "rabbitmq")
CLUSTER_WEIGHT = 6.0
"""The same for the servers, where they are clusters: then the run is about them."""
CLUSTER_SPAN_S = (2.0, 20.0)
"""A silent node of Galera is left behind after five seconds."""


class Fault(Object, frozen=True, kw_only=True):
    """``at``: seconds since the load began. ``seconds``: how long it lasts. ``target``: one of ``list_targets``."""

    at: float
    kind: Kind
    target: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.target} for {self.seconds:.1f} s"


HOWS = ("worker", "master", "all")
"""Which processes of a member a kill hits."""


def plan_faults(seed: int, duration: float, every: float, kinds: Collection[Kind], shape: Shape) -> tuple[Fault, ...]:
    """Faults ``every`` seconds on average, up to ``duration``. The first comes when the load has found its feet."""
    chance = random.Random(f"faults {seed}")
    chosen_kinds = [kind for kind in Kind if kind in kinds]
    faults: list[Fault] = []
    at = chance.expovariate(1 / every)
    while chosen_kinds and at < duration:
        (kind,) = chance.choices(
            chosen_kinds, [CLUSTER_WEIGHT if _is_of_cluster(kind, shape) else WEIGHTS[kind] for kind in chosen_kinds]
        )
        target = chance.choice(list_targets(kind, shape))
        seconds = chance.uniform(*_span_of(kind, target, shape))
        faults.append(Fault(at=round(at, 3), kind=kind, target=target, seconds=round(seconds, 3)))
        at += chance.expovariate(1 / every)
    return tuple(faults)


def list_targets(kind: Kind, shape: Shape) -> Sequence[str]:
    """What a fault of this kind may hit. Roles get the same share each, however many processes they have."""
    return _TARGETS[kind](shape)


def _weighted_members(shape: Shape) -> list[Member]:
    members = shape.list_members()
    most = max(sum(1 for member in members if member.role is role) for role in Role)
    weighted: list[Member] = []
    for role in Role:
        if of_role := [member for member in members if member.role is role]:
            weighted += of_role * (most // len(of_role))
    return weighted


SERVER_FAULTS: Mapping[str, Sequence[str]] = {
    "mariadb": ("stop", "kill"),
    "postgresql": ("stop", "kill"),
    "rabbitmq": ("stop", "kill"),
    "galera": (*(f"{how} node{n}" for how in ("stop", "kill", "freeze") for n in range(NODES)), "freeze majority"),
    "postgresql-replicated": ("fail-over", "kill standby"),
    "rabbitmq-cluster": tuple(f"{how} node{n}" for how in ("stop", "kill", "freeze") for n in range(NODES)),
}
"""What may happen to a server, by its name in ``Shape``."""


def _server_faults(name: str) -> Sequence[str]:
    return SERVER_FAULTS[name.removesuffix("-two-writers")]


def _is_of_cluster(kind: Kind, shape: Shape) -> bool:
    return {Kind.BROKER: shape.broker, Kind.DATABASE: shape.database}.get(kind, "mariadb") not in SINGLE_SERVERS


def _kill_and_stop(shape: Shape) -> list[str]:
    return [f"{how} {host.name}" for host in shape.list_hosts() for how in ("kill", "stop")]


_TARGETS: Mapping[Kind, Callable[[Shape], Sequence[str]]] = {
    Kind.KILL: lambda shape: [f"{how} {member.name}" for member in _weighted_members(shape) for how in HOWS],
    Kind.STOP: lambda shape: [member.name for member in _weighted_members(shape)],
    Kind.BROKER: lambda shape: _server_faults(shape.broker),
    Kind.DATABASE: lambda shape: _server_faults(shape.database),
    Kind.CUT: lambda shape: (*list_levels(shape), *links_of(shape)),
    Kind.FREEZE: lambda shape: (*list_levels(shape), *links_of(shape)),
    Kind.MUTE: lambda shape: (*list_levels(shape), *links_of(shape)),
    Kind.HOST: lambda shape: [host.name for host in shape.list_hosts()],
    Kind.DRAIN: lambda shape: [host.name for host in shape.list_hosts()],
    Kind.LIBVIRT: _kill_and_stop,
    Kind.GUEST: _kill_and_stop,
}

_SPANS: Mapping[Kind, tuple[float, float]] = {
    Kind.KILL: (0.0, 5.0),
    Kind.STOP: (12.0, 25.0),  # a lease is 10 seconds
    Kind.BROKER: (0.0, 6.0),
    Kind.DATABASE: (0.0, 6.0),
    Kind.CUT: (1.0, 15.0),
    Kind.FREEZE: (3.0, 25.0),  # the database's clients give up after 15
    Kind.MUTE: (3.0, 25.0),
    Kind.HOST: (6.0, 30.0),  # for the evacuations: at the shortest it is back before they are over
    Kind.DRAIN: (5.0, 20.0),
    Kind.LIBVIRT: (1.0, 30.0),  # one that does not answer is noticed after 15 to 20
    Kind.GUEST: (1.0, 60.0),  # a call may wait 45 for QEMU
}
AGENT_STOP_RANGE_S = (5.0, 50.0)
"""A host is called down after 30 seconds of silence: some are while their agent lives."""


def _span_of(kind: Kind, target: str, shape: Shape) -> tuple[float, float]:
    if _is_of_cluster(kind, shape):
        return CLUSTER_SPAN_S
    if kind is Kind.STOP and target in {host.name for host in shape.list_hosts()}:
        return AGENT_STOP_RANGE_S
    return _SPANS[kind]
