"""``POST /servers/{id}/action``: one action on a server, named by the only key of the body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import falcon

from api.http import call as calls
from api.http import not_served, policies, schemas
from api.http.call import Call
from api.http.microversions import Microversion, Version
from api.http.schemas import Schema
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup.server_lookup import Finder
from api.opts import ApiSettings
from api.servers.edits import ServerEdits
from db.api.servers.edits import ADMIN, OWNER, Edit, check_lock
from objects import errors
from objects.base import Object
from objects.instance import Server
from objects.phase import vm_state_of
from objects.spec import ServerProperties


class ServerAction(Object, frozen=True, kw_only=True):
    """An action. ``rule``: the policy rule that allows it.

    ``versions``: the schemas of its value in the body, each with the first microversion that has it, the oldest first.
    ``run``: takes the call under the action's rule, the server's ID as it stands in the path, the value and the answer to write.
    """

    name: str
    rule: str
    versions: tuple[tuple[Version, Schema], ...]
    run: Callable[[Call, str, Any, falcon.Response], None]


class ServerActions:
    """Finds the action that a body names, checks its rule and its value, and runs it."""

    def __init__(self, settings: ApiSettings, actions: Iterable[ServerAction]) -> None:
        self._settings = settings
        self._actions = {action.name: (action, _action_validator(action)) for action in actions}
        self._bodies = _ActionBodies({name: validator for name, (_, validator) in self._actions.items()})

    @property
    def action_names(self) -> frozenset[str]:
        """The names of the actions that are served."""
        return frozenset(self._actions)

    @validated_by("_bodies")
    def on_post(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        """Raises errors.Invalid for an unknown action, and for a body that names none or several.

        Raises errors.NotOffered for an action that is not served, errors.NotFound for one that this version does not have.
        """
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        if len(document) != 1:
            raise errors.Invalid(f"The body must name exactly one action; it has {len(document)} keys.")
        (name,) = document
        if name not in self._actions:
            not_served.refuse_action(name, call.version)
            raise errors.Invalid(f"There is no such action: {name[:80]!r}")
        not_served.check_version(f"The action {name}", not_served.SERVER_ACTIONS.get(name), call.version)
        action, validator = self._actions[name]
        call = call.guarded_by(action.rule)
        validator.check_body(call.version, document)
        action.run(call, server_id, document[name], resp)


class _ActionBodies:
    """The bodies of all actions, for the API's description."""

    def __init__(self, validators: Mapping[str, VersionedValidator]) -> None:
        self._validators = validators

    def schema(self, version: Version) -> Schema:
        known = {name: not_served.SERVER_ACTIONS.get(name) for name in self._validators}
        served = [name for name, operation in known.items() if operation is None or operation.is_in(version)]
        return {"anyOf": [self._validators[name].schema(version) for name in served]}


def _action_validator(action: ServerAction) -> VersionedValidator:
    return VersionedValidator([(since, schemas.action_body(action.name, value)) for since, value in action.versions])


class Locks:
    """The actions ``lock_edit`` and ``unlock_edit``.

    A project's own lock protects it from mistakes of its members. The lock of an administrator of another project also keeps the
    project from unlocking.
    """

    def __init__(self, edits: ServerEdits) -> None:
        self._edits = edits

    def server_actions(self) -> tuple[ServerAction, ...]:
        return (
            ServerAction(name="lock", rule=policies.LOCK, versions=schemas.LOCK, run=self._lock_server),
            ServerAction(name="unlock", rule=policies.UNLOCK, versions=schemas.NO_VALUE, run=self._unlock_server),
        )

    def _lock_server(self, call: Call, server_id: str, value: Any, resp: falcon.Response) -> None:
        reason = value.get("locked_reason") if value and call.has_feature(Microversion.LOCKED_REASON) else None

        def lock_edit(server: Server, current: ServerProperties) -> Edit:
            holder = _lock_holder(server, call)
            if holder == OWNER and server.locked_by is not None:
                return Edit()  # the owner does not take over an administrator's lock
            return Edit(locked_by=holder, locked_reason=reason)

        self._edits.change_server(call, server_id, lock_edit)
        resp.status = 202

    def _unlock_server(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        overrides = call.is_allowed(policies.UNLOCK_OVERRIDE)

        def unlock_edit(server: Server, current: ServerProperties) -> Edit:
            if server.locked_by is None:
                return Edit()
            if server.locked_by != _lock_holder(server, call) and not overrides:
                raise errors.Forbidden(
                    f"Instance {server.uuid} was locked by an administrator: only an administrator can unlock it."
                )
            return Edit(locked_by=None, locked_reason=None)

        self._edits.change_server(call, server_id, unlock_edit)
        resp.status = 202


class NetworkInfo:
    """The action ``injectNetworkInfo``. It changes nothing: as in Nova, whose driver for libvirt has nothing to inject.

    A guest learns of its network by DHCP and from its config drive.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def server_actions(self) -> tuple[ServerAction, ...]:
        rule = policies.INJECT_NETWORK_INFO
        return (ServerAction(name="injectNetworkInfo", rule=rule, versions=schemas.NO_VALUE, run=self._inject_network_info),)

    def _inject_network_info(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        server = self._finder.get_server(server_id, call)
        check_lock(server.uuid, server.locked_by, ignored=call.is_allowed(policies.IGNORE_LOCK))
        if server.state != "active":
            state = vm_state_of(server)
            raise errors.Conflict(f"Cannot 'injectNetworkInfo' instance {server.uuid} while it is in vm_state {state}")
        resp.status = 202


def _lock_holder(server: Server, call: Call) -> str:
    return OWNER if server.project_id == call.context.project_id else ADMIN
