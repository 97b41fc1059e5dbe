"""The actions that are operations on a server: power, moves, and the decision about a resize."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import falcon
import msgspec

from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import checked_metadata
from api.lookup import boot_request, server_view
from api.lookup.boot_secrets import BootSecretsPolicy
from api.lookup.hosts import HostWatch
from api.lookup.image_needs import ImageNeeds
from api.lookup.scheduler_queries import SchedulerAsker
from api.lookup.server_lookup import Finder
from api.servers.actions import ServerAction
from api.servers.handlers import edit_of, host_status, keeping_hostname
from api.servers.operate import Operations
from db.api.operations import accepting
from db.api.servers.edits import Edit
from objects import errors
from objects.instance import Server
from objects.operation import OperationArgs, OperationKind
from objects.spec import BootSecrets, Image, RequestSpec, ServerProperties
from objects.task import DriveChanges

Kind = OperationKind

_PLAIN = {
    "os-start": (Kind.START, policies.START),
    "os-stop": (Kind.STOP, policies.STOP),
    "pause": (Kind.PAUSE, policies.PAUSE),
    "unpause": (Kind.UNPAUSE, policies.UNPAUSE),
    "suspend": (Kind.SUSPEND, policies.SUSPEND),
    "resume": (Kind.RESUME, policies.RESUME),
    "unrescue": (Kind.UNRESCUE, policies.UNRESCUE),
}
"""Actions whose value says nothing, with their operations and rules."""


@dataclass(frozen=True, slots=True)
class JudgedImage:
    """An image for a server, and the server as it was when the filters judged that. ``refusal`` None: it may have the image."""

    image: Image
    server: Server
    refusal: errors.SuperconductorError | None = None

    def check_unmoved(self, server: Server) -> None:
        """Called once the state allows the operation.

        Raises ``refusal``, and errors.Conflict if the server was moved or rebuilt meanwhile.
        """
        if self.refusal is not None:
            raise self.refusal
        before = self.server
        if (server.host, server.own_uuid, server.image_id) != (before.host, before.own_uuid, before.image_id):
            raise errors.Conflict(f"Instance {server.uuid} was moved or rebuilt just now; try again")


class OperationActions:
    """Each answers 202 once the operation is stored, except where the Compute API has another status."""

    def __init__(
        self,
        operations: Operations,
        finder: Finder,
        watch: HostWatch,
        boot_secrets: BootSecretsPolicy,
        images: ImageNeeds,
        schedulers: SchedulerAsker,
    ) -> None:
        self._operations = operations
        self._finder = finder
        self._watch = watch
        self._boot_secrets = boot_secrets
        self._images = images
        self._schedulers = schedulers

    def server_actions(self) -> tuple[ServerAction, ...]:
        special = (
            ("reboot", policies.REBOOT, schemas.REBOOT, self._reboot_server),
            ("resize", policies.RESIZE, schemas.RESIZE, self._resize_server),
            ("rebuild", policies.REBUILD, schemas.REBUILD, self._rebuild_server),
            ("confirmResize", policies.CONFIRM_RESIZE, schemas.NO_VALUE, self._confirm_move),
            ("revertResize", policies.REVERT_RESIZE, schemas.NO_VALUE, self._revert_move),
            ("shelve", policies.SHELVE, schemas.NO_VALUE, self._shelve_server),
            ("shelveOffload", policies.SHELVE_OFFLOAD, schemas.NO_VALUE, self._offload_server),
            ("unshelve", policies.UNSHELVE, schemas.UNSHELVE, self._unshelve_server),
            ("rescue", policies.RESCUE, schemas.RESCUE, self._rescue_server),
            ("changePassword", policies.CHANGE_PASSWORD, schemas.CHANGE_PASSWORD, self._change_password),
            ("trigger_crash_dump", policies.CRASH_DUMP, schemas.CRASH_DUMP, self._accept_handler(Kind.CRASH_DUMP)),
            ("migrate", policies.MIGRATE, schemas.MIGRATE, self._migrate_server),
            ("os-migrateLive", policies.LIVE_MIGRATE, schemas.LIVE_MIGRATE, self._migrate_live),
            ("evacuate", policies.EVACUATE, schemas.EVACUATE, self._evacuate_server),
            ("os-resetState", policies.RESET_STATE, schemas.RESET_STATE, self._reset_state),
            ("forceDelete", policies.FORCE_DELETE, schemas.NO_VALUE, self._force_delete),
            ("restore", policies.RESTORE, schemas.NO_VALUE, self._restore_server),
        )
        plain = [
            ServerAction(name=name, rule=rule, versions=schemas.NO_VALUE, run=self._accept_handler(kind))
            for name, (kind, rule) in _PLAIN.items()
        ]
        return (*plain, *(ServerAction(name=name, rule=rule, versions=versions, run=run) for name, rule, versions, run in special))

    def _accept_handler(self, kind: OperationKind) -> Any:
        def run(call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
            self._operations.accept_operation(call, server_id, kind)
            resp.status = 202

        return run

    def _reboot_server(self, call: Call, server_id: str, value: dict[str, str], resp: falcon.Response) -> None:
        self._operations.accept_operation(call, server_id, Kind.REBOOT, OperationArgs(hard=value["type"].upper() == "HARD"))
        resp.status = 202

    def _resize_server(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        flavor = self._operations.find_flavor(call, str(value["flavorRef"]))
        args = OperationArgs(flavor_id=flavor.flavor_id, cross_cell=_cross_cell(call, value))
        self._operations.accept_operation(call, server_id, Kind.RESIZE, args, flavor, decide=partial(_disk_config, value))
        resp.status = 202

    def _rebuild_server(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        """Answers with the server, as it is to be, and with its new password."""
        if schemas.BOOLEANS[value.get("preserve_ephemeral", False)]:
            raise errors.Invalid("rebuild.preserve_ephemeral: only false is served")
        limits = self._operations.limits_in_force(call)
        boot_secrets = self._boot_secrets.complete_secrets(boot_request.secrets_of_rebuild(value), "rebuild")
        boot_request.check_personality(boot_secrets.files, limits, "rebuild")
        drive = self._drive_changes(call, value, boot_secrets)
        server, spec = self._operations.built_as(call, server_id)
        judged = self._judge_image(call, server, spec, value["imageRef"], Kind.REBUILD)
        image = judged.image
        args = OperationArgs(image_id=image.id, drive=drive, rebuilt_from=image, image_hash=image.hash_value)
        decide = partial(_edit_of_rebuild, value, limits["metadata_items"], drive, judged)
        self._operations.accept_operation(call, server_id, Kind.REBUILD, args, decide=decide, secrets=boot_secrets)
        current = self._finder.find_server(server_id, call)
        status = host_status(self._watch, current.server, call)
        server = msgspec.structs.replace(current.server, image_id=value["imageRef"])
        document = server_view.rebuilt_document(server, current.spec, call, status, current.ports, current.groups)
        password = self._boot_secrets.returned_password(boot_secrets)
        send_json(resp, {"server": document | ({"adminPass": password} if password is not None else {})}, 202)

    def _judge_image(self, call: Call, server: Server, spec: RequestSpec | None, image_id: str, kind: OperationKind) -> JudgedImage:
        """The image, and whether the server and its host can have it. ``spec``: that of its body; None: it cannot be read.

        Raises SchedulerSilent: nothing is rebuilt on a host that the filters might refuse.
        """
        if spec is None:
            raise errors.Conflict(f"Cannot '{kind}' instance {server.uuid}: its request cannot be read")
        try:
            if kind is Kind.REBUILD:
                image = self._images.at_rebuild(call, image_id, server.project_id, spec)
            else:
                image = self._images.at_rescue(call, image_id, server.project_id, spec)
            self._ask_filters(call, server, spec, image)
        except (errors.Invalid, errors.Forbidden) as refusal:
            return JudgedImage(image=Image(id=image_id), server=server, refusal=refusal)
        return JudgedImage(image=image, server=server)

    def _ask_filters(self, call: Call, server: Server, spec: RequestSpec, image: Image) -> None:
        """Raises errors.Invalid if the server's host may not run this image. The image that it has is not judged again."""
        now = accepting.current_spec(spec, server)
        if image == now.image or server.host is None:  # without a host it is refused for its state
            return
        reason = self._schedulers.refusal_of_image(call, now.with_image(image), server.own_uuid or server.uuid)
        if reason:
            raise errors.Invalid(f"No valid host was found. The server's host may not run image {image.id}: {reason}")

    def _drive_changes(self, call: Call, value: dict[str, Any], boot_secrets: BootSecrets) -> DriveChanges:
        """What the rebuild changes in the guest's config drive. Raises errors.Invalid for an unknown key pair."""
        changes = DriveChanges(has_secrets=bool(boot_secrets), removes_user_data="user_data" in value and not value["user_data"])
        if "key_name" not in value:
            return changes
        name: str | None = value["key_name"]
        key = self._operations.public_key(call, name) if name is not None else ""
        return msgspec.structs.replace(changes, key_name=name or "", public_key=key)

    def _confirm_move(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        self._operations.confirm_move(call, server_id)
        resp.status = 204

    def _revert_move(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        self._operations.revert_move(call, server_id)
        resp.status = 202

    def _shelve_server(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        self._operations.shelve_server(call, server_id)
        resp.status = 202

    def _offload_server(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        self._operations.offload_server(call, server_id)
        resp.status = 202

    def _unshelve_server(self, call: Call, server_id: str, value: Any, resp: falcon.Response) -> None:
        options = (value or {}) if call.has_feature(Microversion.UNSHELVE_ZONE) else {}
        host, zone = options.get("host"), options.get("availability_zone")
        if host is not None and not call.is_allowed(policies.UNSHELVE_TO_HOST):
            raise errors.Forbidden("unshelve.host: policy does not let you name a host")
        args = OperationArgs(host=host, availability_zone=zone, any_zone="availability_zone" in options and zone is None)
        self._operations.unshelve_server(call, server_id, args)
        resp.status = 202

    def _rescue_server(self, call: Call, server_id: str, value: dict[str, str] | None, resp: falcon.Response) -> None:
        """Answers with the password of the rescue system."""
        options = value or {}
        boot_secrets = self._boot_secrets.complete_secrets(BootSecrets(admin_pass=options.get("adminPass")), "rescue")
        image_id = options.get("rescue_image_ref")
        decide, image_hash = None, ""
        if image_id is not None:
            server, spec = self._operations.built_as(call, server_id)
            judged = self._judge_image(call, server, spec, image_id, Kind.RESCUE)
            decide, image_hash = partial(_edit_of_rescue, judged), judged.image.hash_value
        args = OperationArgs(image_id=image_id, drive=DriveChanges(has_secrets=bool(boot_secrets)), image_hash=image_hash)
        self._operations.accept_operation(call, server_id, Kind.RESCUE, args, decide=decide, secrets=boot_secrets)
        password = self._boot_secrets.returned_password(boot_secrets)
        send_json(resp, {"adminPass": password} if password is not None else {}, 200)

    def _change_password(self, call: Call, server_id: str, value: dict[str, str], resp: falcon.Response) -> None:
        boot_secrets = self._boot_secrets.complete_secrets(
            BootSecrets(admin_pass=value["adminPass"]), "changePassword", generate=False
        )
        args = OperationArgs(drive=DriveChanges(has_secrets=True))
        self._operations.accept_operation(call, server_id, Kind.CHANGE_PASSWORD, args, secrets=boot_secrets)
        resp.status = 202

    def _migrate_server(self, call: Call, server_id: str, value: dict[str, Any] | None, resp: falcon.Response) -> None:
        options = value or {}
        verify = schemas.BOOLEANS[options.get(schemas.VERIFY, True)]
        args = OperationArgs(host=options.get("host"), cross_cell=_cross_cell(call, options), verify=verify)
        self._operations.accept_operation(call, server_id, Kind.MIGRATE, args)
        resp.status = 202

    def _migrate_live(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        """The disk goes with the guest, and the scheduler is asked. 409 for the server's state comes before a refused field."""
        args = OperationArgs(host=value["host"], cross_cell=_cross_cell(call, value))
        self._operations.accept_operation(call, server_id, Kind.LIVE_MIGRATE, args, decide=partial(_checked_live_migration, value))
        resp.status = 202

    def _evacuate_server(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        """Answers before 2.14 with the password of the guest, which is built from its image again."""
        for name in ("force", "onSharedStorage"):
            if schemas.BOOLEANS[value.get(name, False)]:
                raise errors.Invalid(f"evacuate.{name}: only false is served")
        stopped = call.has_feature(Microversion.EVACUATED_STOPPED)
        args = OperationArgs(host=value.get("host"), cross_cell=_cross_cell(call, value), stopped=stopped)
        returns_password = not call.has_feature(Microversion.EVACUATED_PASSWORD_UNTOLD)
        given_secrets = BootSecrets(admin_pass=value.get("adminPass"))
        secrets = self._boot_secrets.complete_secrets(given_secrets, "evacuate", generate=returns_password)
        self._operations.evacuate_server(call, server_id, args, secrets)
        password = self._boot_secrets.returned_password(secrets) if returns_password else None
        if password is not None:
            send_json(resp, {"adminPass": password})
        resp.status = 200

    def _reset_state(self, call: Call, server_id: str, value: dict[str, str], resp: falcon.Response) -> None:
        self._operations.reset_state(call, server_id, Kind.RESET if value["state"] == "active" else Kind.FAIL)
        resp.status = 202

    def _force_delete(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        self._operations.delete(call, server_id, force=True)
        resp.status = 202

    def _restore_server(self, call: Call, server_id: str, value: object, resp: falcon.Response) -> None:
        self._operations.restore_server(call, server_id)
        resp.status = 202


def _edit_of_rebuild(
    value: dict[str, Any],
    metadata_limit: int,
    drive: DriveChanges,
    judged: JudgedImage,
    server: Server,
    current: ServerProperties,
) -> Edit:
    """What a rebuild changes of the server itself. Raises what ``JudgedImage.check_unmoved`` does, and errors.Forbidden."""
    judged.check_unmoved(server)
    edit = keeping_hostname(edit_of(value), server, current)
    if drive.key_name is not None:
        edit = msgspec.structs.replace(edit, key_name=drive.key_name, public_key=drive.public_key)
    if "metadata" not in value:
        return edit
    return msgspec.structs.replace(edit, metadata=checked_metadata(value["metadata"], metadata_limit))


def _edit_of_rescue(judged: JudgedImage, server: Server, current: ServerProperties) -> Edit:
    """Changes nothing of the server. Raises what ``JudgedImage.check_unmoved`` does."""
    judged.check_unmoved(server)
    return Edit()


def _disk_config(value: dict[str, Any], server: Server, current: ServerProperties) -> Edit:
    """What a resize changes of the server itself."""
    return edit_of({name: value[name] for name in (schemas.DISK_CONFIG,) if name in value})


def _checked_live_migration(value: dict[str, Any], server: Server, current: ServerProperties) -> Edit:
    """Changes nothing of the server. Raises errors.Invalid for a field that is not served."""
    if value["block_migration"] != "auto" and not schemas.BOOLEANS[value["block_migration"]]:
        raise errors.Invalid("os-migrateLive.block_migration: only true and auto are served: disks are not shared")
    for name in ("force", "disk_over_commit"):
        if schemas.BOOLEANS[value.get(name, False)]:
            raise errors.Invalid(f"os-migrateLive.{name}: only false is served")
    return Edit()


def _cross_cell(call: Call, value: dict[str, Any]) -> bool:
    """Whether the move may leave the server's cell. Raises errors.Forbidden."""
    cross_cell = schemas.BOOLEANS[value.get(schemas.CROSS_CELL, False)]
    if cross_cell and not call.is_allowed(policies.CROSS_CELL):
        raise errors.Forbidden(f"{schemas.CROSS_CELL}: policy does not let you move servers to other cells")
    return cross_cell
