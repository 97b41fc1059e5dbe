"""Nova's RequestSpec read as a request: what is kept, and what is not judged, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from beside_nova.request import JudgedRequest, NotJudged, RequestFilters, request_of_spec, request_of_text
from objects.group import GroupPolicy
from tests.support.nova_cloud import flavor_object, nova_object, request_spec, uuid_of

UUID = uuid_of(1)
FILTERS = RequestFilters(zones={"east"}, disabled_hosts=("off",))


def judged(filters: RequestFilters = FILTERS, **fields: Any) -> JudgedRequest:
    request = request_of_spec(nova_object("RequestSpec", **request_spec(UUID, **fields)), filters)
    assert isinstance(request, JudgedRequest), request
    return request


def refused(filters: RequestFilters = FILTERS, **fields: Any) -> tuple[str, ...]:
    request = request_of_spec(nova_object("RequestSpec", **request_spec(UUID, **fields)), filters)
    assert isinstance(request, NotJudged), request
    return request.reasons


def test_the_amounts_are_those_of_the_claim() -> None:
    spec = judged(flavor=flavor_object(vcpus=2, memory_mb=2048, root_gb=20, ephemeral_gb=5, swap=1500)).spec
    with_volume = judged(is_bfv=True, flavor=flavor_object(root_gb=20)).spec
    overridden = judged(flavor=flavor_object(extra_specs={"resources:VCPU": "0", "resources:CUSTOM_GPU": "2"})).spec

    amounts = spec.taken_amounts
    assert (amounts.vcpus, amounts.memory_mb, amounts.disk_gb) == (2, 2048, 27)
    assert with_volume.taken_amounts.disk_gb == 0
    assert (overridden.taken_amounts.vcpus, overridden.taken_amounts.resources) == (0, {"CUSTOM_GPU": 2})


def test_a_zone_without_aggregate_restricts_nothing() -> None:
    assert judged(availability_zone="east").spec.availability_zone == "east"
    assert judged(availability_zone="nova").spec.availability_zone is None


def test_a_group_is_read_from_the_wire() -> None:
    group = nova_object(
        "InstanceGroup",
        uuid=uuid_of(5),
        name="db",
        policy="anti-affinity",
        members=[UUID, uuid_of(2)],
        hosts=[],
        _rules={"max_server_per_host": "2"},
    )

    request = judged(instance_group=group, scheduler_hints={"group": [uuid_of(5)]})

    assert request.spec.group is not None
    assert (request.spec.group.policy, request.spec.group.max_server_per_host) == (GroupPolicy.ANTI_AFFINITY, 2)
    assert request.members == (UUID, uuid_of(2))
    assert request.spec.scheduler_hints == {}


def test_required_traits_of_images() -> None:
    image = nova_object("ImageMeta", id=uuid_of(7), properties=nova_object("ImageMetaProps", traits_required=["CUSTOM_SSD"]))

    properties = judged(image=image).spec.image

    assert properties is not None
    assert properties.properties == {"trait:CUSTOM_SSD": "required"}


def test_request_filters_of_images() -> None:
    properties = nova_object("ImageMetaProps", hw_disk_bus="virtio")
    image = nova_object("ImageMeta", id=uuid_of(7), disk_format="qcow2", properties=properties)

    read = judged(RequestFilters(by_image_type=True, by_image_metadata=True), image=image).spec.image

    assert read is not None
    required = {key for key in read.properties if key.startswith("trait:")}
    assert required == {"trait:COMPUTE_IMAGE_TYPE_QCOW2", "trait:COMPUTE_STORAGE_BUS_VIRTIO"}


def test_a_forced_host_has_no_filters_but_room() -> None:
    spec = judged(force_hosts=["h1"], instance_group={"policy": "anti-affinity", "uuid": uuid_of(5)}).spec

    assert (spec.force_hosts, spec.group, spec.ignore_hosts) == (("h1",), None, ("off",))


def test_moves_keep_their_cell() -> None:
    cell = nova_object(
        "CellMapping", uuid=uuid_of(3), database_connection="mysql://nova:secret@db/nova", transport_url="rabbit://x"
    )
    destination = nova_object("Destination", cell=cell, allow_cross_cell_move=False)

    spec = judged(requested_destination=destination, ignore_hosts=["h1"]).spec

    assert spec.requested_destination is not None
    assert spec.requested_destination.cell_uuid == uuid_of(3)
    assert spec.ignore_hosts == ("h1",)
    assert "secret@" not in repr(spec)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"flavor": flavor_object(extra_specs={"hw:cpu_policy": "dedicated"})}, "extra spec hw:cpu_policy"),
        ({"flavor": flavor_object(extra_specs={"resources1:CUSTOM_GPU": "1"})}, "extra spec resources1:CUSTOM_GPU"),
        ({"flavor": flavor_object(extra_specs={"capabilities:free_ram_mb": "1"})}, "extra spec capabilities:free_ram_mb"),
        ({"image": nova_object("ImageMeta", properties={"hw_mem_encryption": True})}, "image property hw_mem_encryption"),
        ({"numa_topology": nova_object("InstanceNUMATopology", cells=[])}, "numa_topology"),
        ({"pci_requests": nova_object("InstancePCIRequests", requests=[{"count": 1}])}, "pci_requests"),
        ({"requested_resources": [nova_object("RequestGroup")]}, "requested_resources (ports, accelerators or devices)"),
        ({"request_level_params": nova_object("RequestLevelParams", same_subtree=[["a"]])}, "request_level_params.same_subtree"),
        ({"instance_group": {"policy": "legacy"}}, "server group policy legacy"),
        (
            {"force_hosts": ["h1"], "flavor": flavor_object(extra_specs={"trait:CUSTOM_A": "required"})},
            "traits for a forced host",
        ),
    ],
)
def test_what_is_not_judged_is_named(fields: dict[str, Any], reason: str) -> None:
    assert refused(**fields) == (reason,)


def test_other_resource_classes_are_not_judged() -> None:
    [reason] = refused(flavor=flavor_object(extra_specs={"resources:PCPU": "2"}))

    assert reason.startswith("extra spec resources:PCPU: there is no resource class 'PCPU'")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"flavor": {"vcpus": "many", "memory_mb": 1}})])
def test_unreadable_specs_are_not_judged(text: str) -> None:
    assert isinstance(request_of_text(text, FILTERS), NotJudged)
