"""Key pairs: public keys that users name at boot, so that they can log in to their servers."""

from __future__ import annotations

import enum

from objects.base import Object


class KeyType(enum.StrEnum):
    SSH = "ssh"
    X509 = "x509"  # a certificate


class KeyPair(Object, frozen=True, kw_only=True):
    """One public key of a user. The private key is never stored.

    ``public_key``: the text as given: a line of OpenSSH, or a certificate in PEM. ``fingerprint``: in hexadecimal with colons: MD5
    of an SSH key, SHA-1 of a certificate, as the Compute API has it.
    """

    user_id: str
    name: str
    key_type: KeyType
    fingerprint: str
    public_key: str
    created_at: float
    id: int = 0
