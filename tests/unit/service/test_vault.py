"""Keys, scopes, and what a vault refuses to say."""

from __future__ import annotations

import base64
import logging

import pytest

from objects import errors
from objects.spec import BootSecrets
from service.vault import API, Vault, new_key

CELL = "11111111-1111-4111-8111-111111111111"
OTHER_CELL = "22222222-2222-4222-8222-222222222222"
SECRETS = BootSecrets(user_data="aHVudGVyMg==", admin_pass="hunter2")


def test_sealed_text_opens_with_its_key_showing_nothing() -> None:
    vault = Vault([new_key()])
    for scope in (API, CELL):
        sealed = vault.seal_secrets(scope, "b1", SECRETS)
        assert sealed.startswith(f"{scope}:")
        assert vault.open("b1", sealed) == SECRETS
        for inside in ("hunter2", "aHVudGVyMg==", base64.b64encode(b"hunter2").decode().rstrip("=")):
            assert inside not in sealed
    assert vault.seal_secrets(API, "b1", SECRETS) != vault.seal_secrets(API, "b1", SECRETS), (
        "equal secrets cannot be told to be equal"
    )


def test_a_cell_key_is_good_for_that_cell() -> None:
    master = Vault([new_key()])
    cell = Vault(master.keys_of(CELL))
    assert cell.open("b1", master.seal_secrets(CELL, "b1", SECRETS)) == SECRETS
    assert master.open("b1", cell.seal_secrets(CELL, "b1", SECRETS)) == SECRETS
    for scope in (API, OTHER_CELL):
        with pytest.raises(errors.Misconfigured, match=r"\[secrets\] keys"):
            cell.open("b1", master.seal_secrets(scope, "b1", SECRETS))
        with pytest.raises(errors.Misconfigured, match=r"\[secrets\] keys"):
            cell.seal_secrets(scope, "b1", SECRETS)
        assert cell.keys_of(scope) == []
    relabelled = master.seal_secrets(API, "b1", SECRETS).replace(f"{API}:", f"{CELL}:", 1)
    with pytest.raises(errors.Misconfigured):
        cell.open("b1", relabelled)


def test_only_a_master_key_lets_secrets_be_accepted() -> None:
    master = Vault([new_key()])
    assert (master.can_seal, Vault([]).can_seal, Vault(master.keys_of(CELL)).can_seal) == (True, False, False)
    for scope in (API, CELL):
        with pytest.raises(errors.Misconfigured):
            Vault([]).seal_secrets(scope, "b1", SECRETS)
        with pytest.raises(errors.Misconfigured):
            Vault([]).open("b1", master.seal_secrets(scope, "b1", SECRETS))


def test_keys_change_by_putting_the_new_one_first() -> None:
    old, new = new_key(), new_key()
    before, both, after = Vault([old]), Vault([new, old]), Vault([new])
    for scope in (API, CELL):
        assert both.open("b1", before.seal_secrets(scope, "b1", SECRETS)) == SECRETS
        assert after.open("b1", both.seal_secrets(scope, "b1", SECRETS)) == SECRETS
        with pytest.raises(errors.Misconfigured):
            after.open("b1", before.seal_secrets(scope, "b1", SECRETS))
    cell = Vault(both.keys_of(CELL))
    assert [cell.open("b1", vault.seal_secrets(CELL, "b1", SECRETS)) for vault in (before, both, after)] == [SECRETS] * 3


def test_sealed_secrets_of_a_batch_fail_in_another() -> None:
    """Whoever can write the database could otherwise have the secrets of one tenant given to a guest of another."""
    vault = Vault([new_key()])
    with pytest.raises(errors.Misconfigured, match="another batch"):
        vault.open("b2", vault.seal_secrets(API, "b1", SECRETS))


@pytest.mark.parametrize("damage", [lambda text: text[:-4], lambda text: "", lambda text: "api:", lambda text: text + "é"])
def test_damage_is_reported_like_a_missing_key(damage: object) -> None:
    vault = Vault([new_key()])
    with pytest.raises(errors.Misconfigured, match="b1"):
        vault.open("b1", damage(vault.seal_secrets(API, "b1", SECRETS)))  # type: ignore[operator]  # a test's shorthand


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "short",
        "x" * 43,
        base64.urlsafe_b64encode(b"k" * 31).decode(),
        base64.urlsafe_b64encode(b"k" * 33).decode(),
        ":" + base64.urlsafe_b64encode(b"k" * 32).decode(),
        "kéy",
    ],
)
def test_a_malformed_key_is_named_by_place_only(wrong: str) -> None:
    with pytest.raises(errors.Misconfigured) as refused:
        Vault([new_key(), wrong])
    assert "[secrets] keys: number 2" in str(refused.value)
    assert wrong[:8] == "" or wrong[:8] not in str(refused.value)


def test_a_vault_shows_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = new_key()
    vault = Vault([key, *Vault([key]).keys_of(CELL)])
    with pytest.raises(errors.Misconfigured) as refused:
        vault.open("b1", Vault([new_key()]).seal_secrets(API, "b1", SECRETS))
    for text in (repr(vault), str(vault), str(refused.value), caplog.text):
        for shown in (key, *vault.keys_of(CELL)):
            assert shown.rpartition(":")[2] not in text
    assert "hunter2" not in str(refused.value)
