"""``/os-aggregates``: named sets of hosts with metadata, and the availability zones that some of them make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call
from api.http.microversions import Since
from api.http.validation import Validator, read_body, validated_by
from api.http.versions import answer
from api.lookup.server_view import micro
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
        self._new = Validator(schemas.aggregate(required=["name"]))
        self._changed = Validator(schemas.aggregate())
        self._added = Validator(schemas.aggregate_host("add_host"))
        self._removed = Validator(schemas.aggregate_host("remove_host"))
        self._described = Validator(schemas.aggregate_metadata("set_metadata"))
        self._actions: dict[str, tuple[str, Validator, Change]] = {
            "add_host": (policies.AGGREGATE_ADD_HOST, self._added, _add_host),
            "remove_host": (policies.AGGREGATE_REMOVE_HOST, self._removed, _remove_host),
            "set_metadata": (policies.AGGREGATE_METADATA, self._described, _set_metadata),
        }

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.of(req)
        answer(resp, {"aggregates": [_shown(one, call) for one in self._database.read(aggregates.list_all)]})

    @validated_by("_new")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The answer has neither hosts nor metadata."""
        call = calls.of(req)
        document = read_body(req, self._settings.max_body_size)
        self._new.check(document)
        asked = document["aggregate"]
        zone = asked.get("availability_zone")
        metadata = {} if zone is None else {ZONE: zone}
        created = self._database.write(aggregates.create, asked["name"], metadata)
        shown = _shown(created, call)
        del shown["hosts"], shown["metadata"]
        answer(resp, {"aggregate": shown})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        answer(resp, {"aggregate": _shown(self._database.read(aggregates.get, _number(aggregate_id)), calls.of(req))})

    @validated_by("_changed")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        """A zone of null removes the aggregate from its zone."""
        document = read_body(req, self._settings.max_body_size)
        self._changed.check(document)
        changed = self._database.write(_changed, _number(aggregate_id), _update, document["aggregate"])
        answer(resp, {"aggregate": _shown(changed, calls.of(req))})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        self._database.write(aggregates.delete, _number(aggregate_id))
        resp.status = 200

    @validated_by("_added", "_removed", "_described")
    def on_post_action(self, req: falcon.Request, resp: falcon.Response, aggregate_id: str) -> None:
        call = calls.of(req)
        document = read_body(req, self._settings.max_body_size)
        name = next(iter(document), "")
        if len(document) != 1 or name not in self._actions:
            raise errors.Invalid(f"There is no such action: {name[:80]!r}; give one of {', '.join(self._actions)}")
        rule, validator, change = self._actions[name]
        call.guarded_by(rule)
        validator.check(document)
        changed = self._database.write(_changed, _number(aggregate_id), change, document[name])
        answer(resp, {"aggregate": _shown(changed, call)})


def _number(aggregate_id: str) -> int:
    """Raises errors.Invalid for what is no number, and errors.NotFound for one that no aggregate can have."""
    digits = aggregate_id.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise errors.Invalid(f"Aggregate {aggregate_id[:80]!r}: aggregates are named by their numbers")
    if digits != aggregate_id or int(digits[:12]) > INT32_MAX:
        raise errors.NotFound(f"Aggregate {aggregate_id[:80]} could not be found.")
    return int(digits[:12])


def _changed(tx: ApiTransaction, aggregate_id: int, change: Change, asked: dict[str, Any]) -> Aggregate:
    change(tx, aggregate_id, asked)
    return aggregates.get(tx, aggregate_id)


def _update(tx: ApiTransaction, aggregate_id: int, asked: dict[str, Any]) -> None:
    if "name" in asked:
        aggregates.update(tx, aggregate_id, asked["name"])
    if "availability_zone" in asked:
        aggregates.set_metadata(tx, aggregate_id, {ZONE: asked["availability_zone"]})


def _add_host(tx: ApiTransaction, aggregate_id: int, asked: dict[str, Any]) -> None:
    """Raises errors.NotFound for a host that is not mapped to a cell."""
    aggregates.get(tx, aggregate_id)
    if not host_mappings.is_known(tx, asked["host"], None):
        raise errors.NotFound(f"Compute host {asked['host']} could not be found.")
    aggregates.add_host(tx, aggregate_id, asked["host"])


def _remove_host(tx: ApiTransaction, aggregate_id: int, asked: dict[str, Any]) -> None:
    aggregates.remove_host(tx, aggregate_id, asked["host"])


def _set_metadata(tx: ApiTransaction, aggregate_id: int, asked: dict[str, Any]) -> None:
    aggregates.set_metadata(tx, aggregate_id, asked["metadata"])


def _shown(one: Aggregate, call: Call) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": one.id,
        "name": one.name,
        "availability_zone": one.availability_zone,
        "hosts": list(one.hosts),
        "metadata": one.metadata,
        "created_at": micro(one.created_at),
        "updated_at": micro(one.updated_at),
        "deleted": False,
        "deleted_at": None,
    }
    return shown | {"uuid": one.uuid} if call.has(Since.AGGREGATE_UUIDS) else shown
