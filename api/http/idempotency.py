"""``Idempotency-Key``: a request repeated with the same key gets the servers of the first one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from api.http.validation import UNSAFE
from db.api.queue.accepting import ClientToken
from objects import errors, text
from service.vault import Vault

MAX_KEY_LENGTH = 255

_SCOPE = "client-tokens"
_PLAIN = "plain"


def client_key(header: str | None, user_id: str, document: dict[str, Any], vault: Vault) -> ClientToken | None:
    """The key of a request, bound to its user and its body. Raises errors.Invalid.

    Whitespace and the order of members in a JSON object do not matter. Digests use the vault's keys if there are any: a body may
    hold a password, which database readers could guess from a plain digest. Without keys no body holds one.
    """
    if header is None:
        return None
    if not 0 < len(header) <= MAX_KEY_LENGTH:
        raise errors.Invalid(f"Idempotency-Key: must have 1 to {MAX_KEY_LENGTH} characters")
    if not text.is_safe(header):
        raise errors.Invalid(f"Idempotency-Key: {UNSAFE}")
    request = json.dumps([user_id, document], sort_keys=True, separators=(",", ":")).encode()
    keyed = vault.list_digests(_SCOPE, request)
    return ClientToken(value=header, digests=tuple(keyed) or (f"{_PLAIN}.{hashlib.sha256(request).hexdigest()}",))
