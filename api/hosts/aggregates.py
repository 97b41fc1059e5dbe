"""``/os-aggregates``: named sets of hosts with metadata, and the availability zones that some of them make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import Validator, read_body, validated_by
from api.lookup.server_view import format_micro
from api.opts import ApiSettings
from db.api.deployment import aggregates, host_mappings
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.aggregate import ZONE, Aggregate
from objects.base import INT32_MAX

Change = Callable[[ApiTransaction, int, dict[str, Any]], None]


class HostAggregates:
    """The list, one aggregate (methods with suffix ``one``), and actions on one (``action``)."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase) -> None:
        self._settings = settings
        self._database = database
        self._new = Validator(schemas.aggregate_body(required=["name"]))
        self._changed = Validator(schemas.aggregate_body())
        self._added = Validator(schemas.aggregate_host("add_host"))
        self._removed = Validator(schemas.aggregate_host("remove_host"))
        self._described = Validator(schemas.aggregate_metadata("set_metadata"))
        self._actions: dict[str, tuple[str, Validator, Change]] = {
            "add_host": (policies.AGGREGATE_ADD_HOST, self._added, _add_host),
            "remove_host": (policies.AGGREGATE_REMOVE_HOST, self._removed, _remove_host),
            "set_metadata": (policies.AGGREGATE_METADATA, self._described, _set_metadata),
        }

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        send_json(resp, {"aggregates": [_aggregate_document(one, call) for one in self._database.read(aggregates.list_all)]})

    @validated_by("_new")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The answer has neither hosts nor metadata."""
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._new.check_body(document)
        aggregate_body = document["aggregate"]
        zone = aggregate_body.get("availability_zone")
        metadata = {} if zone is None else {ZONE: zone}
        created = self._database.write(aggregates.create, aggregate_body["name"], metadata)
        shown = _aggregate_document(created, call)
        del shown["hosts"], shown["metadata"]
        send_json(resp, {"aggregate": shown})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        send_json(
            resp,
            {
                "aggregate": _aggregate_document(
                    self._database.read(aggregates.get, _parse_aggregate_id(aggregate_id)), calls.get_call(req)
                )
            },
        )

    @validated_by("_changed")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        """A zone of null removes the aggregate from its zone."""
        document = read_body(req, self._settings.max_body_size)
        self._changed.check_body(document)
        changed = self._database.write(
            _change_aggregate, _parse_aggregate_id(aggregate_id), _update_aggregate, document["aggregate"]
        )
        send_json(resp, {"aggregate": _aggregate_document(changed, calls.get_call(req))})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        self._database.write(aggregates.delete, _parse_aggregate_id(aggregate_id))
        resp.status = 200

    @validated_by("_added", "_removed", "_described")
    def on_post_action(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        name = next(iter(document), "")
        if len(document) != 1 or name not in self._actions:
            raise errors.Invalid(f"There is no such action: {name[:80]!r}; give one of {', '.join(self._actions)}")
        rule, validator, change = self._actions[name]
        call.guarded_by(rule)
        validator.check_body(document)
        changed = self._database.write(_change_aggregate, _parse_aggregate_id(aggregate_id), change, document[name])
        send_json(resp, {"aggregate": _aggregate_document(changed, call)})


def _parse_aggregate_id(aggregate_id: str) -> int:
    """Raises errors.Invalid for what is no number, and errors.NotFound for one that no aggregate can have."""
    digits = aggregate_id.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise errors.Invalid(f"Aggregate {aggregate_id[:80]!r}: aggregates are named by their numbers")
    if digits != aggregate_id or int(digits[:12]) > INT32_MAX:
        raise errors.NotFound(f"Aggregate {aggregate_id[:80]} could not be found.")
    return int(digits[:12])


def _change_aggregate(tx: ApiTransaction, aggregate_id: int, change: Change, fields: dict[str, Any]) -> Aggregate:
    change(tx, aggregate_id, fields)
    return aggregates.get(tx, aggregate_id)


def _update_aggregate(tx: ApiTransaction, aggregate_id: int, fields: dict[str, Any]) -> None:
    if "name" in fields:
        aggregates.rename_aggregate(tx, aggregate_id, fields["name"])
    if "availability_zone" in fields:
        aggregates.set_metadata(tx, aggregate_id, {ZONE: fields["availability_zone"]})


def _add_host(tx: ApiTransaction, aggregate_id: int, fields: dict[str, Any]) -> None:
    """Raises errors.NotFound for a host that is not mapped to a cell."""
    aggregates.get(tx, aggregate_id)
    if not host_mappings.is_known(tx, fields["host"], None):
        raise errors.NotFound(f"Compute host {fields['host']} could not be found.")
    aggregates.add_host(tx, aggregate_id, fields["host"])


def _remove_host(tx: ApiTransaction, aggregate_id: int, fields: dict[str, Any]) -> None:
    aggregates.remove_host(tx, aggregate_id, fields["host"])


def _set_metadata(tx: ApiTransaction, aggregate_id: int, fields: dict[str, Any]) -> None:
    aggregates.set_metadata(tx, aggregate_id, fields["metadata"])


def _aggregate_document(one: Aggregate, call: Call) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": one.id,
        "name": one.name,
        "availability_zone": one.availability_zone,
        "hosts": list(one.hosts),
        "metadata": one.metadata,
        "created_at": format_micro(one.created_at),
        "updated_at": format_micro(one.updated_at),
        "deleted": False,
        "deleted_at": None,
    }
    return shown | {"uuid": one.uuid} if call.has_feature(Microversion.AGGREGATE_UUIDS) else shown
