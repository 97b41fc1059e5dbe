"""Notices as documents in the format of Nova's versioned notifications, with its names of objects and fields.

A document shows only what the API shows: no user data and no passwords. It has no metadata either, because tenants keep secrets
there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from objects.base import Object
from objects.compute_node import Service
from objects.flavor import Flavor
from objects.notification import EventType, Facts, Notice
from objects.spec import RequestSpec
from objects.utc import to_utc

Document = dict[str, Any]

NAMESPACE = "superconductor"
VERSION = "1.0"
"""The version of every payload: a newer minor version only adds fields."""


class Subject(Object, frozen=True, kw_only=True):
    """The constant data of an instance; for a batch only ``spec``. ``spec`` None: it no longer exists.

    ``server_uuid``: of a batch that is a move: the server that it moves.
    """

    name: str = ""
    project_id: str = ""
    user_id: str = ""
    batch_id: str = ""
    launch_index: int = 0
    created_at: float | None = None
    spec: RequestSpec | None = None
    server_uuid: str | None = None


def make_message(notice: Notice, subject: Subject, publisher: str) -> Document:
    """The whole message. ``publisher``: the host of the sender, used unless an agent or a service is the publisher."""
    return {
        "message_id": notice.message_id,
        "publisher_id": _publisher_id(notice, publisher),
        "event_type": str(notice.event_type),
        "priority": notice.event_type.log_priority,
        "timestamp": to_utc(notice.at).strftime("%Y-%m-%d %H:%M:%S.%f"),
        "payload": _make_payload(notice, subject),
    }


def make_context(subject: Subject) -> Document:
    """The request and the project of the subject."""
    request_id = subject.spec.request_id if subject.spec is not None else None
    return {"request_id": request_id, "project_id": subject.project_id, "user_id": subject.user_id}


def _publisher_id(notice: Notice, publisher: str) -> str:
    event, facts = notice.event_type, notice.facts
    if event.startswith("instance.create.") and facts.host:
        return f"superconductor-compute:{facts.host}"
    if event.startswith("scheduler."):
        return f"superconductor-scheduler:{publisher}"
    if facts.service is not None:
        return f"{facts.service.binary}:{facts.service.host}"
    return f"superconductor-conductor:{publisher}"


def _make_payload(notice: Notice, subject: Subject) -> Document:
    event, facts = notice.event_type, notice.facts
    if facts.service is not None:
        return _wrap_object("ServiceStatusPayload", _service_payload(facts.service))
    if event.startswith("scheduler."):
        if subject.server_uuid is not None:
            facts = msgspec.structs.replace(facts, instance_uuids=(subject.server_uuid,))
        return _wrap_object("RequestSpecPayload", _request_payload(subject.spec, facts))
    if event is EventType.BUILD_ERROR:
        data = {"instance_uuid": notice.subject, "state": facts.state, "request_spec": None, "reason": _fault_payload(facts)}
        if subject.spec is not None:
            data["request_spec"] = _wrap_object("RequestSpecPayload", _request_payload(subject.spec, Facts()))
        return _wrap_object("ComputeTaskPayload", data)
    kinds = {"create": "InstanceCreatePayload", "update": "InstanceUpdatePayload"}
    return _wrap_object(kinds.get(event.split(".")[1], "InstanceActionPayload"), _instance_payload(notice, subject))


def _instance_payload(notice: Notice, subject: Subject) -> Document:
    facts, spec = notice.facts, subject.spec
    data: Document = {
        "uuid": notice.subject,
        "display_name": subject.name,
        "tenant_id": subject.project_id,
        "user_id": subject.user_id,
        "reservation_id": f"r-{subject.batch_id.replace('-', '')}" if subject.batch_id else None,
        "request_id": spec.request_id if spec is not None else None,
        "launch_index": subject.launch_index,
        "state": facts.state,
        "host": facts.host,
        "node": facts.node,
        "availability_zone": facts.availability_zone,
        "attempt": facts.attempt,
        "created_at": _format_time(subject.created_at),
        "launched_at": _format_time(facts.launched_at),
        "terminated_at": _format_time(facts.terminated_at),
        "deleted_at": _format_time(facts.terminated_at),
        "image_uuid": spec.image.id if spec is not None and spec.image is not None else None,
        "flavor": _wrap_object("FlavorPayload", _flavor_payload(spec.flavor)) if spec is not None else None,
        "fault": _fault_payload(facts),
    }
    if notice.event_type is EventType.UPDATE:
        states = {"old_state": facts.old_state, "state": facts.state}
        data["state_update"] = _wrap_object("InstanceStateUpdatePayload", states)
    return data


def _request_payload(spec: RequestSpec | None, facts: Facts) -> Document:
    if spec is None:
        return {"instance_uuids": list(facts.instance_uuids), "reason": _fault_payload(facts)}
    return {
        "instance_uuids": list(facts.instance_uuids),
        "num_instances": spec.num_instances,
        "project_id": spec.project_id,
        "user_id": spec.user_id,
        "request_id": spec.request_id,
        "availability_zone": spec.availability_zone,
        "flavor": _wrap_object("FlavorPayload", _flavor_payload(spec.flavor)),
        "image_uuid": spec.image.id if spec.image is not None else None,
        "instance_group": spec.group.uuid if spec.group is not None else None,
        "reason": _fault_payload(facts),
    }


def _flavor_payload(flavor: Flavor) -> Document:
    return {
        "flavorid": flavor.flavor_id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "memory_mb": flavor.memory_mb,
        "root_gb": flavor.root_gb,
        "ephemeral_gb": flavor.ephemeral_gb,
        "swap": flavor.swap_mb,
        "extra_specs": flavor.extra_specs,
    }


def _service_payload(service: Service) -> Document:
    return {
        "uuid": service.uuid,
        "host": service.host,
        "binary": service.binary,
        "report_count": service.report_count,
        "last_seen_up": _format_time(service.last_seen),
        "disabled": service.disabled,
        "disabled_reason": service.disabled_reason,
        "forced_down": service.forced_down,
        "version": service.version,
    }


def _fault_payload(facts: Facts) -> Document | None:
    if facts.error is None:
        return None
    return _wrap_object("ExceptionPayload", {"exception": facts.error, "exception_message": facts.message})


def _wrap_object(name: str, data: Document) -> Document:
    """Wrap data as Nova does, so that readers of its versioned notifications can read these too."""
    return {
        "nova_object.name": name,
        "nova_object.namespace": NAMESPACE,
        "nova_object.version": VERSION,
        "nova_object.data": data,
    }


def _format_time(at: float | None) -> str | None:
    return None if at is None else to_utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")
