"""Public keys that ssh-keygen and openssl made, with the fingerprints that they print."""

from __future__ import annotations

from db.api.projects import keypairs
from objects.keypair import KeyPair, KeyType
from tests.support.api import Front

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEPCJc6P9n+/Dez8tD0xS94zfyNqzvwiMdmlAPZ7hxes me@here"
ED25519_FINGERPRINT = "69:71:18:b2:cc:2a:56:1d:16:7b:b8:5e:59:03:e7:d5"
RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQDTicBT0qp4icCMBd7zJZgrZ48ASAxqCBijAfqQYAWkUMjjm5D0kLYfKXejbOVBWvN1cmcRlnPg8OGHXqi/t0sI2n"
    "j+xabCjtEaqymVJIpdAGzqEnmprzF+jKHbh4KwKhwRsgLntkfi5SaMuyt1TCBzk+j75tIFdcPOYdR3b68YLXAh7gfI2gLNcdPZIcpz/H/lRZgaFnZ8zRdakrGUGhmV"
    "Eht/3rtD9/ay9+H6smpEfdYNQwG9oefSwMN9J6n4TxPD0UV+x3JTk59NUgNw/WGTYXRTHvHuF6hHABaOfiAOJ/J+26GHMhKWI2qKXvZ6NCGoyaMkbgfiRkALr0iYJSVt"
    " me@here"
)
RSA_FINGERPRINT = "6d:dc:5e:58:fc:7b:3d:15:b6:8d:51:95:5c:87:53:0d"
ECDSA = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBAAphNV0OwkUC371njuAs3gX2eVQ3JpfFtgcC5N5M3ckLLucmr9TN"
    "K95i3NJQMA07VdkWHXlQYSKv0YvKKAvT+A= me@here"
)
ECDSA_FINGERPRINT = "d6:a5:96:25:10:a4:db:da:f6:ae:86:1b:af:61:2f:e1"
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBcDCCARWgAwIBAgIUJu0U643MDTwu5yLu5T5O5qHEqgUwCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCbWUwHhcNMjYxMTI1MDQwNjU3WhcNMzYxMTIyMDQwNjU3WjAN
MQswCQYDVQQDDAJtZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABHwpS+g1Sxu8
AyzwWUb7dPlARov9R4WD//xJrgHf90QPb7CGcmYEdfGVPKi5d96xf8mwB3uD0gg2
ZNvZ1DiB+O6jUzBRMB0GA1UdDgQWBBRq0NQDS4Aw3djktIA5q7SwFcGtfTAfBgNV
HSMEGDAWgBRq0NQDS4Aw3djktIA5q7SwFcGtfTAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0kAMEYCIQDKh6hqtW2nXCiVB6oZuNltD6nVw2NN/y9PfSppKdC/
tgIhAMOWZfYAhkrYObCs5oRUAO53Yk3EQ5Q/SNA0qIpQIqQv
-----END CERTIFICATE-----
"""
CERTIFICATE_FINGERPRINT = "69:f4:42:bc:c2:a5:44:df:91:f7:2e:df:2a:0d:4b:06:99:56:29:d3"


def add_key(front: Front, name: str, user: str) -> None:
    """A key pair in the API database."""
    pair = KeyPair(
        user_id=user,
        name=name,
        key_type=KeyType.SSH,
        fingerprint=ED25519_FINGERPRINT,
        public_key=ED25519,
        created_at=1.0,
    )
    front.database.write(keypairs.create, pair)
