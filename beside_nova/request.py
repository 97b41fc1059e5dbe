"""Nova's RequestSpec, as it is stored or sent, read as a request of this scheduler; or why it cannot be judged here.

Nothing is guessed: a condition that this scheduler does not know makes the request ``NotJudged``, and names the condition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from objects import errors, extra_specs, hints
from objects.destination import Destination
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.spec import Image, RequestSpec

Data = Mapping[str, Any]

_JUDGED_SPEC = re.compile(r"(resources|trait):[A-Z0-9_]+|capabilities:hypervisor_(type|version)|aggregate_instance_extra_specs:.+")
_HARMLESS_SPEC = re.compile(
    r"(quota|hw_rng|hw_video|os):.*"
    r"|hw:(cpu_(sockets|cores|threads|max_sockets|max_cores|max_threads|shares_.*)|watchdog_action|boot_menu|rng_allowed"
    r"|hide_hypervisor_id|vif_multiqueue_enabled)"
)
"""Extra specs that a hypervisor reads and no scheduler does."""
_HARD_PROPERTY = re.compile(
    r"hw_(numa|cpu_(policy|thread|realtime|emulator)|emulator_threads|mem_page_size|mem_encryption|tpm|pci|pmu|firmware_stateless"
    r"|maxphysaddr|ephemeral_encryption|virtio_packed|sound|usb_model|locked_memory|viommu).*|os_secure_boot"
)
"""Properties of images that Nova places by and this scheduler does not."""
METADATA_TRAITS = {
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL",
    "hw_architecture": "HW_ARCH",
    "hw_emulation_architecture": "COMPUTE_ARCH",
}
"""The traits that ``image_metadata_prefilter`` requires, without the value in capitals."""
CHECK_TYPE = "_nova_check_type"
NO_HINTS = frozenset({"group", CHECK_TYPE})


class NotJudged(NamedTuple):
    """Why a request is not judged: the conditions that this scheduler does not know, by name."""

    reasons: tuple[str, ...]

    @property
    def as_text(self) -> str:
        return f"not judged here: {', '.join(self.reasons)}"


class JudgedRequest(NamedTuple):
    """``members``: the servers of its group. ``neighbours``: the servers that hints name. Where they are is to be looked up."""

    spec: RequestSpec
    members: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()


class RequestFilters(NamedTuple):
    """What a site's Nova makes of a request before Placement is asked. ``zones``: those that some aggregate makes.

    ``disabled_hosts``: Placement does not offer them, not even to administrators who force one.
    """

    zones: Collection[str] = ()
    disabled_hosts: tuple[str, ...] = ()
    by_image_type: bool = False
    by_image_metadata: bool = False


def plain_data(value: Any) -> Any:
    """A versioned object as plain data: its fields, without its names and versions."""
    if isinstance(value, Mapping):
        if "nova_object.data" in value:
            return plain_data(value["nova_object.data"])
        return {key: plain_data(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain_data(part) for part in value]
    return value


def request_of_text(text: str, filters: RequestFilters, group: Data | None = None) -> JudgedRequest | NotJudged:
    """The request of a row of ``request_specs``. ``group``: of the tables of groups, since a stored request has its name only."""
    try:
        stored = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return NotJudged(("the stored request spec is not JSON",))
    return request_of_spec(stored, filters, group)


def request_of_spec(value: Any, filters: RequestFilters, group: Data | None = None) -> JudgedRequest | NotJudged:
    """The request of a RequestSpec as Nova serializes it. Unset fields and null ones are the same.

    ``group``: policy, rules and members, in place of what the request says of its group.
    """
    data = plain_data(value)
    if not isinstance(data, dict) or not isinstance(data.get("flavor"), dict):
        return NotJudged(("a request spec without a flavor",))
    try:
        reasons = tuple(_unknown_conditions(data, filters, group))
        return NotJudged(reasons) if reasons else _judged_request(data, filters, group)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return NotJudged((f"a request spec that cannot be read ({type(error).__name__}: {error})",))


def _unknown_conditions(data: Data, filters: RequestFilters, group: Data | None) -> Iterator[str]:
    properties = _image_properties(data)
    yield from (f"extra spec {key}" for key in _extra_specs(data) if not _is_known_spec(key))
    try:
        extra_specs.check_specs(
            {key: value for key, value in _extra_specs(data).items() if key.startswith(("resources:", "trait:"))}
        )
    except errors.Invalid as error:
        yield f"extra spec {error}"
    yield from (f"image property {key}" for key in properties if _HARD_PROPERTY.fullmatch(key))
    if data.get("requested_resources"):
        yield "requested_resources (ports, accelerators or devices)"
    if data.get("numa_topology"):
        yield "numa_topology"
    if _list_of(data.get("pci_requests"), "requests"):
        yield "pci_requests"
    level = data.get("request_level_params") or {}
    yield from (f"request_level_params.{key}" for key in ("same_subtree", "root_required", "root_forbidden") if level.get(key))
    destination = data.get("requested_destination") or {}
    yield from (f"requested_destination.{key}" for key in ("aggregates", "forbidden_aggregates") if destination.get(key))
    policy = _group_of(data, group).get("policy")
    if policy and policy not in list(GroupPolicy):
        yield f"server group policy {policy}"
    if _is_forced(data) and any(key.startswith("trait:") for key in [*_extra_specs(data), *properties]):
        yield "traits for a forced host"  # Placement demands them also there; filters of traits do not run
    if filters.by_image_type and not data.get("is_bfv") and not (data.get("image") or {}).get("disk_format"):
        yield "an image of unknown format"


def _is_known_spec(key: str) -> bool:
    return bool(_JUDGED_SPEC.fullmatch(key) or _HARMLESS_SPEC.fullmatch(key))


def _judged_request(data: Data, filters: RequestFilters, group: Data | None) -> JudgedRequest:
    scheduler_hints = {
        key: tuple(map(str, value if isinstance(value, list) else [value]))
        for key, value in (data.get("scheduler_hints") or {}).items()
    }
    forced = _is_forced(data)
    zone = data.get("availability_zone")
    group_data = _group_of(data, group)
    uuid = data.get("instance_uuid") or ""
    spec = RequestSpec(
        batch_id=uuid,
        request_id="",
        project_id=data.get("project_id") or "",
        user_id=data.get("user_id") or "",
        name=uuid,
        flavor=_flavor_of(data),
        image=_image_of(data, filters),
        num_instances=int(data.get("num_instances") or 1),
        availability_zone=zone if zone in filters.zones else None,  # a zone that no aggregate makes restricts nothing in Nova
        group=None if forced else _server_group(data, group_data),  # Nova's filters do not run for a forced host
        ignore_hosts=(*(data.get("ignore_hosts") or ()), *(filters.disabled_hosts if forced else ())),
        force_hosts=tuple(data.get("force_hosts") or ()),
        force_nodes=tuple(data.get("force_nodes") or ()),
        requested_destination=_destination_of(data),
        scheduler_hints={key: value for key, value in scheduler_hints.items() if key not in NO_HINTS},
    )
    named = [hints.server_uuids(spec.scheduler_hints, name) for name in (hints.SAME_HOST, hints.DIFFERENT_HOST)]
    return JudgedRequest(
        spec,
        members=tuple(group_data.get("members") or ()) if spec.group is not None else (),
        neighbours=tuple(uuid for uuids in named for uuid in uuids),
    )


def _flavor_of(data: Data) -> Flavor:
    flavor = data["flavor"]
    return Flavor(
        flavor_id=str(flavor.get("flavorid") or ""),
        name=str(flavor.get("name") or ""),
        vcpus=int(flavor["vcpus"]),
        memory_mb=int(flavor["memory_mb"]),
        root_gb=0 if data.get("is_bfv") else int(flavor.get("root_gb") or 0),
        ephemeral_gb=int(flavor.get("ephemeral_gb") or 0),
        swap_mb=int(flavor.get("swap") or 0),
        extra_specs={key: value for key, value in _extra_specs(data).items() if _JUDGED_SPEC.fullmatch(key)},
    )


def _extra_specs(data: Data) -> dict[str, str]:
    return {key: str(value) for key, value in (data["flavor"].get("extra_specs") or {}).items()}


def _image_of(data: Data, filters: RequestFilters) -> Image | None:
    image = data.get("image")
    if not image:
        return None
    properties = _image_properties(data)
    if filters.by_image_type and not data.get("is_bfv"):
        properties[f"trait:COMPUTE_IMAGE_TYPE_{_trait_value(image['disk_format'])}"] = extra_specs.REQUIRED
    if filters.by_image_metadata:
        for key, prefix in METADATA_TRAITS.items():
            if value := properties.get(key):
                properties[f"trait:{prefix}_{_trait_value(value)}"] = extra_specs.REQUIRED
    return Image(id=str(image.get("id") or ""), properties=properties)


def _image_properties(data: Data) -> dict[str, str]:
    """By name; required traits as ``trait:NAME``."""
    properties = (data.get("image") or {}).get("properties") or {}
    named = {key: str(value) for key, value in properties.items() if value is not None and not isinstance(value, list | dict)}
    return named | {f"trait:{trait}": extra_specs.REQUIRED for trait in properties.get("traits_required") or ()}


def _trait_value(value: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", value.upper())


def _group_of(data: Data, group: Data | None) -> Data:
    return group if group is not None else data.get("instance_group") or {}


def _server_group(data: Data, group: Data) -> ServerGroup | None:
    policy = group.get("policy") or next(iter(group.get("policies") or ()), None)
    if not policy:
        return None
    rules = group.get("_rules") or group.get("rules") or {}
    return ServerGroup(
        uuid=str(group.get("uuid") or ""),
        name=str(group.get("name") or ""),
        project_id=data.get("project_id") or "",
        policy=GroupPolicy(policy),
        max_server_per_host=int(rules.get("max_server_per_host") or 1),
    )


def _destination_of(data: Data) -> Destination | None:
    destination = data.get("requested_destination")
    if not destination:
        return None
    cell = destination.get("cell") or {}
    return Destination(
        host=destination.get("host"),
        node=destination.get("node"),
        cell_uuid=cell.get("uuid"),
        allow_cross_cell_move=bool(destination.get("allow_cross_cell_move")),
    )


def _is_forced(data: Data) -> bool:
    """Whether an administrator forces a host. A check of a named destination names one too, but its filters run."""
    is_named = bool(data.get("force_hosts") or data.get("force_nodes"))
    return is_named and not (data.get("scheduler_hints") or {}).get(CHECK_TYPE)


def _list_of(value: Any, key: str) -> list[Any]:
    """``pci_requests`` is an object with a list, or the list."""
    content = value.get(key) if isinstance(value, Mapping) else value
    return list(content or ())
