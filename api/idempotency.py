"""``Idempotency-Key``: a request that is repeated with its key is answered with the servers of the first time."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from api.validation import UNSAFE
from objects import errors, text
from objects.base import Object
from service.vault import Vault

MAX_KEY_LENGTH = 255

_SCOPE = "client-tokens"
_PLAIN = "plain"


class ClientKey(Object, frozen=True, kw_only=True):
    """A client's key and the digests of the request that it came with: ``KEY.DIGEST`` by each key of the vault."""

    value: str
    digests: tuple[str, ...]


def client_key(given: str | None, user_id: str, document: dict[str, Any], vault: Vault) -> ClientKey | None:
    """The key of a request, bound to its user and its body. Raises errors.Invalid.

    The order of a JSON object's members and its blanks do not count. Digests are keyed where the service has keys, because a body
    may hold a password, which a plain digest would let readers of the database guess. Without keys no body holds one.
    """
    if given is None:
        return None
    if not 0 < len(given) <= MAX_KEY_LENGTH:
        raise errors.Invalid(f"Idempotency-Key: must have 1 to {MAX_KEY_LENGTH} characters")
    if not text.is_safe(given):
        raise errors.Invalid(f"Idempotency-Key: {UNSAFE}")
    request = json.dumps([user_id, document], sort_keys=True, separators=(",", ":")).encode()
    keyed = vault.digests(_SCOPE, request)
    return ClientKey(value=given, digests=tuple(keyed) or (f"{_PLAIN}.{hashlib.sha256(request).hexdigest()}",))
