"""Which public keys are accepted, and their fingerprints."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from api.lookup import public_keys
from objects import errors
from objects.keypair import KeyType
from tests.support import keys


@pytest.mark.parametrize(
    ("key", "fingerprint"),
    [
        (keys.ED25519, keys.ED25519_FINGERPRINT),
        (keys.RSA, keys.RSA_FINGERPRINT),
        (keys.ECDSA, keys.ECDSA_FINGERPRINT),
        (f"  {keys.ED25519}é\n", keys.ED25519_FINGERPRINT),
        (keys.ED25519.removesuffix(" me@here"), keys.ED25519_FINGERPRINT),
    ],
)
def test_ssh_keys_have_the_fingerprints_of_ssh_keygen(key: str, fingerprint: str) -> None:
    assert public_keys.compute_fingerprint(KeyType.SSH, key) == fingerprint


def test_a_certificate_has_the_fingerprint_of_openssl() -> None:
    assert public_keys.compute_fingerprint(KeyType.X509, keys.CERTIFICATE) == keys.CERTIFICATE_FINGERPRINT


@pytest.mark.parametrize(
    "key",
    [
        "",
        " ",
        "ssh-rsa",
        "ssh-rsa AAAA",
        "ssh-rsa !!!!",
        "ssh-ed25519 é",
        keys.ED25519[:60],
        keys.ED25519.replace("ssh-ed25519", "ssh-rsa"),
        f"{keys.ED25519}\n{keys.RSA}",
        f"{keys.ED25519}\u2028{keys.RSA}",
        f'command="reboot" {keys.ED25519}',
        keys.CERTIFICATE,
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "ssh-dss AAAAB3NzaC1kc3MAAACBAA==",
    ],
)
def test_other_texts_are_refused(key: str) -> None:
    with pytest.raises(errors.Invalid, match=r"^keypair\.public_key: Keypair data is invalid: [^\n]+$"):
        public_keys.compute_fingerprint(KeyType.SSH, key)


@pytest.mark.parametrize("key", ["", keys.ED25519, keys.CERTIFICATE[:100], keys.CERTIFICATE.replace("MII", "AAA")])
def test_other_texts_are_no_certificates(key: str) -> None:
    with pytest.raises(errors.Invalid, match=r"no X\.509 certificate"):
        public_keys.compute_fingerprint(KeyType.X509, key)


def test_a_generated_pair_belongs_together() -> None:
    private, public = public_keys.generate_pair(KeyType.SSH, "u1")
    key = serialization.load_pem_private_key(private.encode(), None)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert public == f"{line.decode()} {public_keys.COMMENT}"
    assert public_keys.compute_fingerprint(KeyType.SSH, public)
    assert public_keys.generate_pair(KeyType.SSH, "u1")[1] != public


def test_a_generated_certificate_names_the_user_for_windows() -> None:
    private, public = public_keys.generate_pair(KeyType.X509, "u1")
    certificate = x509.load_pem_x509_certificate(public.encode())
    key = serialization.load_pem_private_key(private.encode(), None)
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(certificate)
    assert certificate.subject.rfc4514_string() == "CN=u1"
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == timedelta(days=3650)
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    [account] = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert isinstance(account, x509.OtherName)
    assert (account.type_id.dotted_string, account.value) == ("1.3.6.1.4.1.311.20.2.3", b"\x0c\x0cu1@localhost")
    assert public_keys.compute_fingerprint(KeyType.X509, public)


def test_a_certificate_names_users_of_64_characters() -> None:
    public_keys.generate_pair(KeyType.X509, "u" * 64)
    with pytest.raises(errors.Invalid, match="at most 64 characters"):
        public_keys.generate_pair(KeyType.X509, "u" * 65)
