"""Encrypt the secrets that a tenant gives a guest. They are stored encrypted; only a bus carries them in another form.

The cryptography is the library's: Fernet (AES-128-CBC with HMAC-SHA256) for the text, HKDF-SHA256 for one key per scope.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import threading
from collections.abc import Sequence
from hashlib import sha256

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from objects import errors, stored
from objects.base import Object
from objects.spec import BootSecrets

API = "api"
"""The scope of secrets in the API database. A cell's scope is the uuid of the cell."""

OPTION = "[secrets] keys"

KEY_BYTES = 32


class Content(Object, frozen=True, kw_only=True):
    """The encrypted content. It names its batch, operation or task, so a sealed text copied into another's row is useless there."""

    batch_id: str
    secrets: BootSecrets


class Vault:
    """Seals and opens secrets with the configured keys: the first key that fits seals, every key that fits opens.

    A key is the url-safe base64 of 32 bytes. Written like this it is a master key, valid for every scope; written ``SCOPE:key`` it
    is valid for that scope only. A scope's key can be derived from a master key, never the other way round. Thread-safe.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """Raises errors.Misconfigured for an invalid key; the message names its position, never the key."""
        self._keys = [_parse_key(number, key.strip()) for number, key in enumerate(keys, start=1)]
        self.can_seal = any(scope is None for scope, _ in self._keys)
        """Whether there is a master key, which is needed to accept secrets from tenants."""
        self._fernets: dict[str, MultiFernet | None] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        masters = sum(scope is None for scope, _ in self._keys)
        return f"Vault({masters} master keys, {len(self._keys) - masters} keys of one scope)"

    def seal_secrets(self, scope: str, batch_id: str, secrets: BootSecrets) -> str:
        """The secrets as ``SCOPE:token``. Raises errors.Misconfigured if no key fits the scope.

        ``batch_id``: whose they are. A rebuild gives the name of its operation or task.
        """
        fernet = self._fernet_for(scope)
        if fernet is None:
            raise errors.Misconfigured(
                f"{OPTION}: no key is valid for scope {scope!r}: add a master key, or the key of that scope."
            )
        content = stored.dump_value(Content(batch_id=batch_id, secrets=secrets))
        return f"{scope}:{fernet.encrypt(content.encode()).decode()}"

    def open(self, batch_id: str, sealed: str) -> BootSecrets:
        """The secrets that ``seal_secrets`` encrypted for this batch. Raises errors.Misconfigured if no key opens it or it is
        another batch's.
        """
        scope, _, token = sealed.partition(":")
        fernet = self._fernet_for(scope)
        try:
            if fernet is None:
                raise InvalidToken
            content = stored.load_text(fernet.decrypt(token), Content)
        except (InvalidToken, ValueError):
            raise errors.Misconfigured(
                f"{OPTION}: no key decrypts the user data and password of batch, operation or task {batch_id}, "
                f"encrypted for scope {scope[:40]!r}: add the key that encrypted them, as a master key or as the key of the scope."
            ) from None
        if content.batch_id != batch_id:
            raise errors.Misconfigured(f"The stored secrets of {batch_id} were encrypted for another batch, operation or task.")
        return content.secrets

    def keys_of(self, scope: str) -> list[str]:
        """The configuration of a process that may know this scope only: ``SCOPE:key`` for each key that fits, in order."""
        return [f"{scope}:{key.decode()}" for key in self._fitting_keys(scope)]

    def list_digests(self, scope: str, content: bytes) -> list[str]:
        """``KEY.DIGEST`` for each key that fits the scope: a short name of the key, and the HMAC-SHA256 in hexadecimal digits."""
        keys = self._fitting_keys(scope)
        return [f"{sha256(key).hexdigest()[:8]}.{hmac.digest(key, content, 'sha256').hex()}" for key in keys]

    def _fitting_keys(self, scope: str) -> list[bytes]:
        return [
            _derive_key(key, scope) if key_scope is None else _encode_key(key)
            for key_scope, key in self._keys
            if key_scope in (None, scope)
        ]

    def _fernet_for(self, scope: str) -> MultiFernet | None:
        with self._lock:
            if scope not in self._fernets:
                fitting = [Fernet(key) for key in self._fitting_keys(scope)]
                self._fernets[scope] = MultiFernet(fitting) if fitting else None
            return self._fernets[scope]


def new_key() -> str:
    """A new master key."""
    return Fernet.generate_key().decode()


def _parse_key(number: int, text: str) -> tuple[str | None, bytes]:
    scope, colon, encoded = text.rpartition(":")
    try:
        key = base64.b64decode(encoded.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if len(key) != KEY_BYTES or (colon and not scope):
        raise errors.Misconfigured(
            f"{OPTION}: number {number} is not a key: give the url-safe base64 of {KEY_BYTES} bytes, as 'superconductor secrets "
            "new' prints it, or CELL-UUID:KEY, as 'superconductor secrets derive' does."
        )
    return scope or None, key


def _derive_key(master: bytes, scope: str) -> bytes:
    return _encode_key(
        HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=f"superconductor:{scope}".encode()).derive(master)
    )


def _encode_key(key: bytes) -> bytes:
    return base64.urlsafe_b64encode(key)
