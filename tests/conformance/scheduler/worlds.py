"""Random fleets and requests in JSON: what Nova's scheduler and ours are both asked about.

A world has ``settings``, ``hosts``, ``aggregates``, ``servers`` (host by uuid) and ``requests``. Amounts are vCPUs, MiB, GiB.
``left`` of a request are the hosts that are weighed.
"""

from __future__ import annotations

import json
import uuid
from random import Random
from typing import Any

Json = dict[str, Any]

CELLS = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
HOSTS_PER_WORLD = 14
REQUESTS_PER_WORLD = 8
PROJECTS = ("11111111111111111111111111111111", "22222222222222222222222222222222")
IMAGES = ("aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000002")
ZONES = ("east", "west")
DEFAULT_ZONE = "nova"
FLAVORS = ("small", "large", "gpu.large")
OPERATORS = ("=", "<in>", "<all-in>", "==", "!=", ">=", "<=", "s==", "s!=", "s<", "s<=", "s>", "s>=", "<or>")
TEXTS = ("r1", "r2", "ssd", "x86_64", "sse2", "12", "4", "3.5", "True", "none")
STATS = ("rack", "ssd", "level")
"""Facts that a driver reports beside the standard ones: ``stats`` of Nova's host, attributes of ours."""
HOST_STATE = ("vcpus_total", "free_ram_mb", "num_instances")
"""Attributes of Nova's HostState that no driver of ours reports."""
CUSTOM_PROPERTIES = ("rack_kind", "site.licence")
"""Image properties that Nova does not know."""
PROPERTIES: dict[str, tuple[str, ...]] = {
    "hw_architecture": ("x86_64", "amd64", "aarch64", "i686", "X86_64"),
    "architecture": ("x86_64", "i386"),
    "img_hv_type": ("kvm", "qemu", "xen"),
    "hw_vm_mode": ("hvm", "xen", "hv"),
    "img_hv_requested_version": (">=6.0", ">=6.0,<7", "==6.1", "!=6.1", "<7.0"),
    "os_distro": ("debian", "rhel"),
    "os_type": ("linux", "windows"),
    "hw_qemu_guest_agent": ("true", "True", "no"),
    "hw_cpu_cores": ("2", "4"),
    "rack_kind": ("old", "new"),
    "site.licence": ("a", "b"),
}
TRAITS = ("HW_CPU_X86_AVX", "CUSTOM_SSD")
NUMBERS = ("1", "3", "5", "0", "-1", "0.5", "2.5", "1e1", "nan", "inf", "many", "")
"""Values of aggregates for keys that are numbers."""
QUERY_NUMBERS = (
    "free_ram_mb",
    "free_disk_mb",
    "total_usable_ram_mb",
    "total_usable_disk_gb",
    "vcpus_total",
    "vcpus_used",
    "num_instances",
    "num_io_ops",
    "failed_builds",
    "hypervisor_version",
)
MULTIPLIERS = (
    "ram_weight_multiplier",
    "cpu_weight_multiplier",
    "disk_weight_multiplier",
    "num_instances_weight_multiplier",
    "build_failure_weight_multiplier",
    "io_ops_weight_multiplier",
    "cross_cell_move_weight_multiplier",
    "soft_affinity_weight_multiplier",
    "soft_anti_affinity_weight_multiplier",
)


def world(seed: int) -> Json:
    """The same world for the same seed."""
    rng = Random(seed)
    hosts = _hosts(rng)
    names = sorted({host["host"] for host in hosts})
    servers = {str(uuid.UUID(int=rng.getrandbits(128), version=4)): rng.choice([*names, "elsewhere"]) for _ in range(10)}
    made: Json = {
        "settings": _settings(rng, names),
        "hosts": hosts,
        "aggregates": _aggregates(rng, names),
        "servers": servers,
        "requests": [],
    }
    made["requests"] = [_request(rng, made) for _ in range(REQUESTS_PER_WORLD)]
    return made


def _settings(rng: Random, names: list[str]) -> Json:
    isolated = rng.sample(names, rng.choice((0, 0, 2, 4)))
    return {
        "max_io_ops_per_host": rng.choice((1, 2, 8)),
        "max_instances_per_host": rng.choice((1, 5, 50)),
        "isolated_images": rng.sample(IMAGES, rng.choice((0, 1, 1, 2))),
        "isolated_hosts": [rng.choice((name, name, name.upper())) for name in isolated],
        "restrict_isolated_hosts_to_isolated_images": rng.random() < 0.6,
        "aggregate_image_properties_isolation_namespace": rng.choice((None, None, None, "site")),
        "image_properties_default_architecture": rng.choice((None, None, "x86_64")),
        "placement_aggregate_required_for_tenants": rng.random() < 0.3,
        **{name: rng.choice((1.0, 1.0, 0.5, 0.0, 2.0, 1e6, *_reversals(name))) for name in MULTIPLIERS},
    }


def _reversals(option: str) -> tuple[float, ...]:
    """Negative multipliers, which Nova refuses in the configuration for weighers of soft policies."""
    return () if option.startswith("soft_") else (-1.0,)


def _hosts(rng: Random) -> list[Json]:
    """Most have one node, some two. In half of the worlds memory and disk are not over-allocated anywhere."""
    plain = rng.random() < 0.5
    hosts: list[Json] = []
    for number in range(HOSTS_PER_WORLD):
        name = f"{rng.choice(('h', 'h', 'Host'))}{number}"
        nodes = (f"{name}-a", f"{name}-b") if rng.random() < 0.1 else (name,)
        cell, service = rng.choice(CELLS), _service(rng)
        hosts += [{"host": name, "node": node, "cell": cell, **service, **_node(rng, plain=plain)} for node in nodes]
    return hosts


def _service(rng: Random) -> Json:
    return {"disabled": rng.random() < 0.1, "forced_down": rng.random() < 0.1, "silent_s": rng.choice((0, 0, 0, 20, 120))}


def _node(rng: Random, *, plain: bool) -> Json:
    vcpus, memory, disk = rng.choice((4, 8, 16)), rng.choice((4096, 16384, 65536)), rng.choice((50, 200, 1000))
    instances = rng.choice((0, 0, 1, 2, 4, 6))
    known = rng.random() < 0.85
    return {
        "vcpus": vcpus,
        "memory_mb": memory,
        "disk_gb": disk,
        "vcpus_used": rng.randint(0, vcpus),
        "memory_mb_used": rng.randrange(0, memory, 512),
        "disk_gb_used": rng.randint(0, disk),
        "reserved_memory_mb": rng.choice((0, 0, 512)),
        "reserved_disk_gb": rng.choice((0, 0, 10)),
        "cpu_allocation_ratio": rng.choice((1.0, 4.0, 16.0)),
        "ram_allocation_ratio": 1.0 if plain else rng.choice((1.0, 1.5)),
        "disk_allocation_ratio": 1.0 if plain else rng.choice((1.0, 2.0)),
        "instances": instances,
        "running_vms": max(0, instances - rng.choice((0, 0, 1, 3)) + rng.choice((0, 0, 0, 1))),
        "failed_builds": rng.choice((0, 0, 0, 1, 3)),
        "hypervisor_type": rng.choice(("QEMU", "KVM", "xen")) if known else "",
        "hypervisor_version": rng.choice((6000000, 6001000, 7002003)) if known else 0,
        "host_ip": rng.choice(("10.0.0.7", "10.0.1.9", "10.1.0.1", "fd00::5", None)),
        "cpu_info": {"arch": rng.choice(("x86_64", "aarch64")), "maxphysaddr": {"bits": rng.choice((40, 46))}},
        "supported_instances": [
            [rng.choice(("x86_64", "aarch64", "i686")), rng.choice(("kvm", "qemu", "xen")), rng.choice(("hvm", "xen"))]
            for _ in range(rng.choice((0, 1, 2)))
        ],
        "stats": {name: rng.choice(TEXTS) for name in STATS if rng.random() < 0.6},
    }


def _aggregates(rng: Random, names: list[str]) -> list[Json]:
    found = []
    for number, zone in enumerate(ZONES):
        theirs = names[number * 4 : number * 4 + rng.randint(0, 4)]  # no host is in two zones
        found.append({"name": zone, "hosts": theirs, "metadata": {"availability_zone": zone} | _metadata(rng)})
    return found + [
        {"name": f"a{number}", "hosts": rng.sample(names, rng.randint(0, 7)), "metadata": _metadata(rng)}
        for number in range(rng.choice((0, 2, 4)))
    ]


def _metadata(rng: Random) -> dict[str, str]:
    made: dict[str, str] = {}
    if rng.random() < 0.4:
        made["filter_tenant_id" + rng.choice(("", "_2"))] = rng.choice((*PROJECTS, ", ".join(PROJECTS), "other"))
    if rng.random() < 0.3:
        made["instance_type"] = rng.choice(("small", "small, large", "gpu.large,large", "none"))
    if rng.random() < 0.4:
        made[f"trait:{rng.choice(TRAITS)}"] = rng.choice(("required", "required", "no"))
    for key in ("max_io_ops_per_host", "max_instances_per_host", *MULTIPLIERS):
        if rng.random() < 0.12:
            made[key] = rng.choice(NUMBERS)
    for key in STATS:
        if rng.random() < 0.3:
            made[key] = ",".join(rng.sample(TEXTS, rng.choice((1, 2))))
    for key, values in PROPERTIES.items():
        if rng.random() < 0.15:
            made[key] = rng.choice((*values, ", ".join(values[:2])))
    return made


# -- requests ------------------------------------------------------------------------------------------------------------------


def _request(rng: Random, made: Json) -> Json:
    """Each part of a request is there in some of them."""
    hosts = made["hosts"]
    names = sorted({host["host"] for host in hosts})
    weighable = [number for number, host in enumerate(hosts) if not host["forced_down"]]
    asked: Json = {
        "flavor": {
            "name": rng.choice(FLAVORS),
            "vcpus": rng.choice((1, 4)),
            "memory_mb": rng.choice((512, 4096)),
            "root_gb": rng.choice((0, 20)),
            "ephemeral_gb": 0,
            "swap_mb": 0,
            "extra_specs": _extra_specs(rng),
        },
        "image": {"id": rng.choice(IMAGES), "properties": _properties(rng)} if rng.random() < 0.7 else None,
        "project_id": rng.choice(PROJECTS),
        "availability_zone": rng.choice((None, None, *ZONES, DEFAULT_ZONE)),
        "group": _group(rng, made["servers"]) if rng.random() < 0.6 else None,
        "hints": _hints(rng, made["servers"]),
        "ignore_hosts": [_in_some_case(rng, name) for name in rng.sample(names, 3)] if rng.random() < 0.2 else [],
        "force_hosts": [_in_some_case(rng, name) for name in rng.sample(names, rng.choice((1, 2)))] if rng.random() < 0.15 else [],
        "force_nodes": [rng.choice(hosts)["node"]] if rng.random() < 0.1 else [],
        "destination": None,
        "move": None,
        "left": sorted(rng.sample(weighable, rng.randint(min(1, len(weighable)), len(weighable)))),
    }
    if rng.random() < 0.2:
        wanted = rng.choice(hosts)
        asked["destination"] = {
            "host": _in_some_case(rng, wanted["host"]),
            "node": rng.choice((None, wanted["node"], "no-such-node")),
        }
    elif rng.random() < 0.3:
        asked["move"] = {"source_host": "gone", "source_cell": rng.choice(CELLS), "cross_cell": rng.random() < 0.7}
    return asked


def _in_some_case(rng: Random, name: str) -> str:
    return rng.choice((name, name, name.upper()))


def _extra_specs(rng: Random) -> dict[str, str]:
    specs: dict[str, str] = {}
    for _ in range(rng.choice((0, 1, 1, 2))):
        name = rng.choice(
            (*STATS, *STATS, "cpu_info:arch", "cpu_info:maxphysaddr:bits", "hypervisor_type", "hypervisor_version", "no")
        )
        specs[f"capabilities:{name}"] = _wanted(rng)
    if rng.random() < 0.1:
        specs[f"capabilities:{rng.choice(HOST_STATE)}"] = rng.choice((">= 4", "4"))
    if rng.random() < 0.1:
        specs[rng.choice(("hypervisor_type", "hypervisor_version", *HOST_STATE))] = _wanted(rng)
    for _ in range(rng.choice((0, 0, 1, 2))):
        specs[f"aggregate_instance_extra_specs:{rng.choice(STATS)}"] = _wanted(rng)
    if rng.random() < 0.2:
        specs[rng.choice(STATS)] = _wanted(rng)
    if rng.random() < 0.3:
        specs[f"trait:{rng.choice(TRAITS)}"] = rng.choice(("required", "forbidden"))
    return specs


def _wanted(rng: Random) -> str:
    """A value of an extra spec: plain, or with one of the operators, now and then without an operand."""
    value, other = rng.choice((*TEXTS, "QEMU", "6001000", "40")), rng.choice(TEXTS)
    if rng.random() < 0.25:
        return value
    operator = rng.choice(OPERATORS)
    if operator == "<or>":
        return rng.choice((f"<or> {value} <or> {other}", f"<or> {value}", "<or>", f"<or> {value} {other}"))
    if operator == "<all-in>":
        return rng.choice((f"<all-in> {value} {other}", f"<all-in> {value[:1]}", "<all-in>"))
    return rng.choice((f"{operator} {value}", f"{operator} {value}", f"{operator} {value} {other}", operator))


def _properties(rng: Random) -> dict[str, str]:
    made = {key: rng.choice(values) for key, values in PROPERTIES.items() if rng.random() < 0.2}
    if rng.random() < 0.2:
        made[f"trait:{rng.choice(TRAITS)}"] = "required"
    return made


def _group(rng: Random, servers: dict[str, str]) -> Json:
    members = rng.sample(sorted(servers), rng.choice((0, 1, 2, 4)))
    return {
        "policy": rng.choice(("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")),
        "max_server_per_host": rng.choice((1, 1, 2)),
        "members": members,
        "moving": [member for member in members if rng.random() < 0.15],
    }


def _hints(rng: Random, servers: dict[str, str]) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for name in ("same_host", "different_host"):
        if rng.random() < 0.25:
            made[name] = [*rng.sample(sorted(servers), rng.choice((1, 3))), *rng.choice(([], [str(uuid.UUID(int=0))]))]
    if rng.random() < 0.25:
        made["build_near_host_ip"] = [rng.choice(("10.0.0.1", "10.0.1.200", "fd00::1"))]
        if rng.random() < 0.6:
            made["cidr"] = [rng.choice(("/8", "/16", "/24", "/32"))]
    if rng.random() < 0.6:
        made["query"] = [json.dumps(_condition(rng, 2))]
    return made


def _condition(rng: Random, depth: int) -> list[Any]:
    operator = rng.choice(("and", "or", "not")) if depth and rng.random() < 0.6 else rng.choice(("=", "<", ">", "<=", ">=", "in"))
    if operator == "not":
        return [operator, _condition(rng, depth - 1)]
    if operator in ("and", "or"):
        return [operator, *(_condition(rng, depth - 1) for _ in range(rng.choice((1, 2, 3))))]
    if rng.random() < 0.7:
        first: str | int = f"${rng.choice(QUERY_NUMBERS)}"
        others: list[Any] = [
            rng.choice((0, 1, 4, 2048, 6001000, f"${rng.choice(QUERY_NUMBERS)}")) for _ in range(rng.choice((1, 1, 2)))
        ]
    else:
        first = rng.choice(("$hypervisor_type", *(f"$stats.{name}" for name in STATS)))
        others = [rng.choice((*TEXTS, "QEMU", "KVM")) for _ in range(rng.choice((1, 1, 2)))]
    if rng.random() < 0.05:
        others[0] = rng.choice(("QEMU", 4))
    return [operator, first, *others] if rng.random() < 0.85 else [operator, others[0], first, *others[1:]]
