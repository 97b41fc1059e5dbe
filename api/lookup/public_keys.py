"""Public keys: check those that users bring, and generate pairs. Private keys are neither stored nor logged."""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.http.call import Call
from db.api.projects import keypairs
from db.sql.engine import ApiDatabase
from objects import errors
from objects.keypair import KeyType

RSA_BITS = 2048
"""Of generated keys: RSA, as the Compute API generates them, because every client can read it."""
COMMENT = "Generated-by-Superconductor"

CERTIFICATE_DAYS = 3650
"""Days for which a generated certificate is valid."""
USER_LENGTH = 64
"""Characters that a common name may have (RFC 5280, appendix A.1)."""
USER_PRINCIPAL_NAME = x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")
"""By this name Windows finds the account of a certificate."""
UTF8_STRING = 0x0C
"""The tag of a text in DER."""


def compute_fingerprint(key_type: KeyType, public_key: str) -> str:
    """The fingerprint of a valid key. Raises errors.Invalid for any other text."""
    raw = _certificate_digest(public_key) if key_type is KeyType.X509 else _ssh_digest(public_key)
    return raw.hex(":")


def generate_pair(key_type: KeyType, user_id: str) -> tuple[str, str]:
    """A new pair: the private key as PEM text, and the public key. Raises errors.Invalid if no certificate can name the user."""
    if key_type is KeyType.X509 and len(user_id) > USER_LENGTH:
        raise errors.Invalid(f"keypair.type: a certificate names a user by at most {USER_LENGTH} characters; import one instead")
    key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return private.decode(), _new_certificate(key, user_id) if key_type is KeyType.X509 else _key_line(key)


def _key_line(key: rsa.RSAPrivateKey) -> str:
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{public.decode()} {COMMENT}"


def _new_certificate(key: rsa.RSAPrivateKey, user_id: str) -> str:
    """A certificate that the key itself has signed, by which the user logs in to Windows, as PEM text."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user_id)])
    principal = f"{user_id}@localhost".encode()  # at most 74 bytes, so one byte holds the length
    account = x509.OtherName(USER_PRINCIPAL_NAME, bytes((UTF8_STRING, len(principal))) + principal)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([account]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _ssh_digest(public_key: str) -> bytes:
    line = public_key.strip()
    if len(line.splitlines()) != 1:
        raise _invalid_key("an SSH public key is one line, such as the file id_ed25519.pub")
    try:
        key = serialization.load_ssh_public_key(line.encode())
        blob = base64.b64decode(line.split()[1])
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        raise _invalid_key("it is no SSH public key; give a line such as the file id_ed25519.pub") from None
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey)):
        raise _invalid_key("only RSA, ECDSA and Ed25519 keys can be used")
    return hashlib.md5(blob, usedforsecurity=False).digest()


def _certificate_digest(public_key: str) -> bytes:
    try:
        certificate = x509.load_pem_x509_certificate(public_key.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise _invalid_key("it is no X.509 certificate in PEM") from None
    return hashlib.sha1(certificate.public_bytes(serialization.Encoding.DER), usedforsecurity=False).digest()


def _invalid_key(reason: str) -> errors.Invalid:
    return errors.Invalid(f"keypair.public_key: Keypair data is invalid: {reason}")


def named_public_key(database: ApiDatabase, call: Call, name: str, of: str) -> str:
    """The text of the caller's key of this name. A later change of the key pair does not change the server.

    ``of``: what of the body names it. Raises errors.Invalid for an unknown one.
    """
    public_key = database.read(keypairs.public_key, call.context.user_id, name)
    if public_key is None:
        raise errors.Invalid(f"{of}.key_name: Invalid key_name provided.")
    return public_key
