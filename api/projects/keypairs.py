"""``/os-keypairs``: the public keys of users."""

from __future__ import annotations

import time
from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.paging import next_link, page_of
from api.http.query_parameters import refuse_unknown_names
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup import public_keys
from api.lookup.quota_limits import LimitsInForce
from api.lookup.server_view import format_micro
from api.opts import ApiSettings
from db.api.projects import keypairs
from db.sql.engine import ApiDatabase
from objects import errors
from objects.ids import checked_identifier
from objects.keypair import KeyPair, KeyType


class KeyPairs:
    """Those of the caller; from 2.10 on an administrator may name another user. Methods with suffix ``one`` are of one pair."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, limits: LimitsInForce) -> None:
        self._settings = settings
        self._database = database
        self._limits = limits
        self._validator = VersionedValidator((since, schemas.keypair_body(since)) for since in schemas.KEYPAIR_CHANGES)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("user_id", "limit", "marker"))
        user_id = _user_asked(req, call)
        if not call.has_feature(Microversion.KEYPAIR_PAGES):
            every = self._database.read(keypairs.list_page, user_id)
            send_json(resp, {"keypairs": [_pair_document(pair, call) for pair in every]})
            return
        page = page_of(req, self._settings.max_limit)
        try:
            pairs = self._database.read(keypairs.list_page, user_id, page.limit + 1, page.marker)
        except errors.NotFound as error:
            raise errors.Invalid(f"marker: {error}") from error
        shown = pairs[: page.limit]
        document: dict[str, Any] = {"keypairs": [_pair_document(pair, call) for pair in shown]}
        if shown and len(pairs) > page.limit:
            document["keypairs_links"] = [next_link(req, "os-keypairs", shown[-1].name)]
        send_json(resp, document)

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Without a public key a pair is generated. Only this answer has its private key."""
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        body = document["keypair"]
        user_id = _select_user(call, body.get("user_id"))
        key_type = KeyType(body.get("type", KeyType.SSH))
        public_key, more = body.get("public_key"), {}
        if public_key is None:
            more["private_key"], public_key = public_keys.generate_pair(key_type, user_id)
        pair = KeyPair(
            user_id=user_id,
            name=body["name"],
            key_type=key_type,
            fingerprint=public_keys.compute_fingerprint(key_type, public_key),
            public_key=public_key,
            created_at=time.time(),
        )
        limit = self._limits.read_layers(call, user_id=user_id).in_force["key_pairs"]
        self._database.write(keypairs.create, pair, limit)
        shown = _pair_fields(pair, call) | {"user_id": user_id} | more
        send_json(resp, {"keypair": shown}, 201 if call.has_feature(Microversion.KEYPAIR_TYPES) else 200)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("user_id",))
        pair = self._database.read(keypairs.get, _user_asked(req, call), name)
        created = {"id": pair.id, "user_id": pair.user_id, "created_at": format_micro(pair.created_at)}
        send_json(
            resp, {"keypair": _pair_fields(pair, call) | created | {"updated_at": None, "deleted": False, "deleted_at": None}}
        )

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("user_id",))
        self._database.write(keypairs.delete, _user_asked(req, call), name)
        resp.status = 204 if call.has_feature(Microversion.KEYPAIR_TYPES) else 202


def _pair_document(pair: KeyPair, call: Call) -> dict[str, Any]:
    return {"keypair": _pair_fields(pair, call)}


def _pair_fields(pair: KeyPair, call: Call) -> dict[str, Any]:
    shown = {"name": pair.name, "public_key": pair.public_key, "fingerprint": pair.fingerprint}
    return shown | {"type": pair.key_type} if call.has_feature(Microversion.KEYPAIR_TYPES) else shown


def _user_asked(req: falcon.Request, call: Call) -> str:
    return _select_user(call, req.get_param("user_id") if call.has_feature(Microversion.KEYPAIR_USERS) else None)


def _select_user(call: Call, named: str | None) -> str:
    """The user whose key pairs are meant. Raises errors.Forbidden for another user, unless the policy allows it."""
    if named is None or named == call.context.user_id:
        return call.context.user_id
    user_id = checked_identifier("user_id", named)
    if not call.is_allowed(call.rule, user_id=user_id):
        raise errors.Forbidden(f"Policy doesn't allow {call.rule} to be performed for another user.")
    return user_id
