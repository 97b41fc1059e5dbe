"""What a scheduling decision was taken on: enough to take it again later, for the hosts that it keeps."""

from __future__ import annotations

from typing import Any

from objects.base import Object


class KeptHost(Object, frozen=True, kw_only=True, array_like=True, omit_defaults=True):
    """A host as the scheduler saw it before it placed anything of the batch, with what other batches of its transaction took.

    vCPUs, MiB, GiB. ``generation``: of its inventory, the latest that the scheduler had read.
    """

    inventory: int
    generation: int
    free_vcpus: float
    free_memory_mb: float
    free_disk_gb: float
    cap_vcpus: float
    cap_memory_mb: float
    cap_disk_gb: float
    instances: int = 0
    building: int = 0
    failed_builds: float = 0.0


class Basis(Object, frozen=True, kw_only=True, omit_defaults=True):
    """``hosts``: those of ``Decision.candidates`` in that order, then those of ``further`` as (host, node, cell).

    ``top``: so many of them, in the order of their scores, are the best of all hosts. ``passing``: how many hosts passed; 0 if it
    was not counted. ``rows``: the order of the hosts in the scheduler's table; empty if it did not matter.

    ``scales``: of each weigher the raw weight that counts as 0, the span up to 1, and whether lower weights were raised.
    ``terms``: what the weights of a weigher depend on of the fleet as a whole.
    ``raws``: the raw weight of each host, for weighers whose weights do not follow from the other fields. ``multipliers``: of each
    host, for weighers whose multipliers aggregates set, or that no option multiplies. ``limits``: the capacity of each host where
    aggregates lower it, by the name of the amount. ``members``: of the server group on each host, and slots held there.
    ``resources``: what is free of the custom classes that were asked for, and of NUMA nodes; -1: the host has no such node.

    ``settings``: the scheduler's settings that were not those of ``kept_hosts.UNSAID_SETTINGS``; None if they were too long.
    ``excluded_cells`` and ``excluded_hosts``: those of the call. ``ledger``: writers of claims that were seen last, with the last
    sequence number that was read of each. ``epochs``: of cells, host mappings and aggregates, as they were known. ``replaced``: how
    many servers of several lost their first host to other claims, and got another one. ``claimed``: servers that had their claims
    before.
    """

    hosts: tuple[KeptHost, ...]
    top: int
    further: tuple[tuple[str, str, str], ...] = ()
    passing: int = 0
    rows: tuple[int, ...] = ()
    scales: dict[str, tuple[float, float, bool]] = {}
    raws: dict[str, tuple[float, ...]] = {}
    multipliers: dict[str, tuple[float, ...]] = {}
    limits: dict[str, tuple[float, ...]] = {}
    members: tuple[tuple[int, int], ...] = ()
    resources: dict[str, tuple[float, ...]] = {}
    settings: dict[str, Any] | None = {}
    excluded_cells: tuple[str, ...] = ()
    excluded_hosts: tuple[str, ...] = ()
    ledger: tuple[tuple[int, int], ...] = ()
    epochs: dict[str, int] = {}
    replaced: int = 0
    claimed: tuple[str, ...] = ()
    terms: dict[str, tuple[float, ...]] = {}
