"""Secrets as a record: nothing shows them, and nothing that is stored or ordered has room for them."""

from __future__ import annotations

import base64

import msgspec

from objects.build import BuildOrder, BuildOrders, Verdict, with_secrets
from objects.spec import BootSecrets, RequestSpec, ServerProperties
from tests.support import fleet

USER_DATA = base64.b64encode(b"#cloud-config: hunter2").decode()
SECRETS = BootSecrets(user_data=USER_DATA, admin_pass="Tr0ub4dor")


def test_nothing_shows_them() -> None:
    for text in (repr(SECRETS), str(SECRETS), f"{SECRETS}", repr(Verdict(instance_uuid="u", accepted=True, secrets=SECRETS))):
        assert "Tr0ub4dor" not in text
        assert USER_DATA not in text


def test_none_given_is_none() -> None:
    assert not BootSecrets()
    assert BootSecrets(user_data="QQ==")
    assert BootSecrets(admin_pass="x")


def test_a_text_that_quotes_them_is_masked() -> None:
    said = f"cloud-init: bad line '#cloud-config: hunter2' in {USER_DATA}; password Tr0ub4dor refused"
    assert SECRETS.mask_text(said) == "cloud-init: bad line '***' in ***; password *** refused"
    assert BootSecrets(user_data="//79").mask_text("as it was") == "as it was", "user data need not be text"


def test_specs_and_orders_have_no_field_for_them() -> None:
    """What is stored per batch and instance, and what waits on brokers' disks."""
    old = msgspec.json.encode(fleet.spec()).replace(b'"properties":{', b'"properties":{"user_data":"QUFBQQ==",')
    assert b"QUFBQQ==" in old
    read = msgspec.json.decode(old, type=RequestSpec)
    orders = BuildOrders(spec=read, orders=(BuildOrder(instance_uuid="u", name="n", host="h", node="h", fence=1, attempt=1),))
    assert b"QUFBQQ==" not in msgspec.json.encode(orders)
    assert "user_data" not in ServerProperties.__struct_fields__


def test_verdicts_of_a_batch_share_the_first_secrets() -> None:
    """An answer to 500 accepts of one batch holds 64 KiB of user data once."""
    verdicts = [
        Verdict(instance_uuid="a", accepted=True, secrets=SECRETS),
        Verdict(instance_uuid="b", accepted=True, secrets_with="a"),
        Verdict(instance_uuid="c", accepted=True),
        Verdict(instance_uuid="d", accepted=True, secrets_with="gone"),
    ]
    assert [(v.instance_uuid, v.secrets, v.secrets_with) for v in with_secrets(verdicts)] == [
        ("a", SECRETS, None),
        ("b", SECRETS, None),
        ("c", None, None),
        ("d", None, None),
    ]
