"""Runs in an environment of Nova and Placement: writes a small cloud by their own code. No code of this project is imported.

``python fill.py NOVA_CONF PLACEMENT_CONF``. Prints what it made as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nova import config, context, objects
from nova.db.main import api as database
from oslo_utils import timeutils, uuidutils

HOSTS = {"h1": 4, "h2": 4, "h3": 2, "unmapped": 4}
"""vCPUs by host."""


class Placement:
    """Its API, called in a process of its own: its settings of databases and Nova's would meet in one."""

    def __init__(self, path: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("placement_calls.py")), path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([method, path, body]), file=self._process.stdin, flush=True)
        status, text = json.loads(self._process.stdout.readline())
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {text}")
        return json.loads(text) if text else None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def make_host(ctxt: Any, placement: Placement, host: str, vcpus: int) -> str:
    uuid = uuidutils.generate_uuid()
    objects.Service(
        ctxt, host=host, binary="nova-compute", topic="compute", report_count=1, last_seen_up=timeutils.utcnow()
    ).create()
    objects.ComputeNode(
        ctxt,
        uuid=uuid,
        host=host,
        hypervisor_hostname=host,
        vcpus=vcpus,
        memory_mb=8192,
        local_gb=100,
        vcpus_used=0,
        memory_mb_used=0,
        local_gb_used=0,
        hypervisor_type="QEMU",
        hypervisor_version=8002000,
        cpu_info="{}",
        running_vms=0,
        stats={"failed_builds": "0", "io_workload": "0"},
        supported_hv_specs=[objects.HVSpec(arch="x86_64", hv_type="kvm", vm_mode="hvm")],
    ).create()
    database.service_update(ctxt, objects.Service.get_by_compute_host(ctxt, host).id, {"last_seen_up": timeutils.utcnow()})
    placement.call("POST", "/resource_providers", {"name": host, "uuid": uuid})
    inventories = {
        name: {"total": total, "max_unit": total, "allocation_ratio": ratio}
        for name, total, ratio in (("VCPU", vcpus, 2.0), ("MEMORY_MB", 8192, 1.0), ("DISK_GB", 100, 1.0))
    }
    body = {"resource_provider_generation": 0, "inventories": inventories}
    placement.call("PUT", f"/resource_providers/{uuid}/inventories", body)
    return uuid


def make_server(ctxt: Any, cell: Any, host: str | None, flavor: Any, **spec: Any) -> str:
    node = objects.ComputeNode.get_by_host_and_nodename(ctxt, host, host) if host else None
    instance = objects.Instance(
        ctxt,
        compute_id=node.id if node else None,
        uuid=uuidutils.generate_uuid(),
        project_id="p",
        user_id="u",
        display_name="web",
        host=host,
        node=host,
        vm_state="active" if host else "error",
        flavor=flavor,
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        root_gb=flavor.root_gb,
        ephemeral_gb=0,
        launched_at=timeutils.utcnow() if host else None,
        image_ref=uuidutils.generate_uuid(),
        instance_type_id=flavor.id,
        system_metadata={},
    )
    instance.create()
    api = context.get_admin_context()
    objects.InstanceMapping(api, instance_uuid=instance.uuid, cell_mapping=cell, project_id="p", user_id="u").create()
    image = objects.ImageMeta(id=instance.image_ref, properties=objects.ImageMetaProps(), disk_format="qcow2")
    objects.RequestSpec(
        api,
        instance_uuid=instance.uuid,
        flavor=flavor,
        image=image,
        num_instances=1,
        project_id="p",
        user_id="u",
        pci_requests=objects.InstancePCIRequests(requests=[]),
        numa_topology=None,
        limits=objects.SchedulerLimits(),
        is_bfv=False,
        **spec,
    ).create()
    return str(instance.uuid)


def claim(placement: Placement, consumer: str, provider: str, vcpus: int) -> None:
    body = {
        "allocations": {provider: {"resources": {"VCPU": vcpus, "MEMORY_MB": 1024, "DISK_GB": 10}}},
        "consumer_generation": None,
        "project_id": "p",
        "user_id": "u",
    }
    placement.call("PUT", f"/allocations/{consumer}", body)


def main(nova_conf: str, placement_path: str) -> dict[str, Any]:
    config.parse_args(["fill", "--config-file", nova_conf])
    objects.register_all()
    placement = Placement(placement_path)
    ctxt = context.get_admin_context()
    cells = {cell.name: cell for cell in objects.CellMappingList.get_all(ctxt)}
    flavor = objects.Flavor(ctxt, name="m1", flavorid="m1", vcpus=2, memory_mb=1024, root_gb=10, ephemeral_gb=0, swap=0)
    flavor.extra_specs = {"hw_rng:allowed": "true"}
    flavor.create()
    wide = objects.Flavor(ctxt, name="wide", flavorid="wide", vcpus=5, memory_mb=1024, root_gb=10, ephemeral_gb=0, swap=0)
    wide.create()
    with context.target_cell(ctxt, cells["cell1"]) as cell_context:
        providers = {host: make_host(cell_context, placement, host, vcpus) for host, vcpus in HOSTS.items()}
        for host in HOSTS:
            if host != "unmapped":
                objects.HostMapping(ctxt, host=host, cell_mapping=cells["cell1"]).create()
        group = objects.InstanceGroup(ctxt, project_id="p", user_id="u", name="db", policy="anti-affinity")
        group.create()
        placed = [make_server(cell_context, cells["cell1"], host, flavor) for host in ("h1", "h2")]
        without_claim = make_server(cell_context, cells["cell1"], "h3", flavor)
    objects.HostMapping(ctxt, host="gone", cell_mapping=cells["cell1"]).create()
    with context.target_cell(ctxt, cells["cell0"]) as cell_context:
        refused = make_server(cell_context, cells["cell0"], None, wide)
        instance = objects.Instance.get_by_uuid(cell_context, refused)
        fault = {"instance_uuid": instance.uuid, "code": 500, "message": "No valid host was found. ", "details": "", "host": None}
        database.instance_fault_create(cell_context, fault)
    for server, host in zip(placed, ("h1", "h2"), strict=True):
        claim(placement, server, providers[host], 2)
    orphan = uuidutils.generate_uuid()
    claim(placement, orphan, providers["h1"], 1)
    objects.InstanceGroup.add_members(ctxt, group.uuid, placed)
    zone = objects.Aggregate(ctxt, name="east")
    zone.create()
    zone.update_metadata({"availability_zone": "east"})
    zone.add_host("h2")
    generation = placement.call("GET", f"/resource_providers/{providers['h2']}")["generation"]
    body = {"aggregates": [str(zone.uuid)], "resource_provider_generation": generation}
    placement.call("PUT", f"/resource_providers/{providers['h2']}/aggregates", body)
    placement.close()
    return {
        "group": str(group.uuid),
        "placed": placed,
        "without_claim": without_claim,
        "refused": refused,
        "orphan": orphan,
        "providers": providers,
        "cell": str(cells["cell1"].uuid),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
