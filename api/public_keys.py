"""Public keys: check those that users bring, and generate pairs. Private keys are neither stored nor logged."""

from __future__ import annotations

import base64
import binascii
import hashlib

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from objects import errors
from objects.keypair import KeyType

RSA_BITS = 2048
"""Of generated keys: RSA, as the Compute API generates them, because every client can read it."""
COMMENT = "Generated-by-Superconductor"


def fingerprint(key_type: KeyType, public_key: str) -> str:
    """The fingerprint of a valid key. Raises errors.Invalid for any other text."""
    raw = _certificate(public_key) if key_type is KeyType.X509 else _ssh(public_key)
    return raw.hex(":")


def generate() -> tuple[str, str]:
    """A new SSH key pair: the private key as PEM text, and the public key as a line."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} {COMMENT}"


def _ssh(public_key: str) -> bytes:
    line = public_key.strip()
    if len(line.splitlines()) != 1:
        raise _invalid("an SSH public key is one line, such as the file id_ed25519.pub")
    try:
        key = serialization.load_ssh_public_key(line.encode())
        blob = base64.b64decode(line.split()[1])
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        raise _invalid("it is no SSH public key; give a line such as the file id_ed25519.pub") from None
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey)):
        raise _invalid("only RSA, ECDSA and Ed25519 keys can be used")
    return hashlib.md5(blob, usedforsecurity=False).digest()


def _certificate(public_key: str) -> bytes:
    try:
        certificate = x509.load_pem_x509_certificate(public_key.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise _invalid("it is no X.509 certificate in PEM") from None
    return hashlib.sha1(certificate.public_bytes(serialization.Encoding.DER), usedforsecurity=False).digest()


def _invalid(reason: str) -> errors.Invalid:
    return errors.Invalid(f"keypair.public_key: Keypair data is invalid: {reason}")
