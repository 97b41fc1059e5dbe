"""User data and admin passwords: accept, generate, seal, and return them."""

from __future__ import annotations

import logging
import secrets
import string

import msgspec

from api.opts import ApiSettings
from objects import errors
from objects.spec import BootSecrets
from service.vault import API, OPTION, Vault

LOG = logging.getLogger(__name__)

PASSWORD_LENGTH = 16
"""Characters of a generated password: about 92 bits."""

_ALPHABETS = tuple(
    "".join(c for c in group if c not in "0O1lI") for group in (string.digits, string.ascii_lowercase, string.ascii_uppercase)
)


class BootSecretsPolicy:
    """Secrets are never stored in plain text. Without a master key no password is generated, and requests with secrets are
    refused.
    """

    def __init__(self, settings: ApiSettings, vault: Vault) -> None:
        self._settings = settings
        self._vault = vault

    def complete_secrets(self, boot_secrets: BootSecrets, of: str, *, generate: bool = True) -> BootSecrets:
        """The secrets for the guests, with a generated password if none was given and the answer can return one.

        ``of``: what of the body has them. ``generate``: the answer can return a password.
        Raises errors.Invalid if secrets are given and there is no master key.
        """
        if not self._vault.can_seal:
            if boot_secrets:
                field = "user_data" if boot_secrets.user_data is not None else "personality" if boot_secrets.files else "adminPass"
                raise errors.Invalid(
                    f"{of}.{field}: is refused, because this service could only store it unencrypted: "
                    f"its operator has to configure {OPTION}"
                )
            return boot_secrets
        if boot_secrets.admin_pass is None and generate and self._settings.enable_instance_password:
            return msgspec.structs.replace(boot_secrets, admin_pass=new_password())
        return boot_secrets

    def seal_secrets(self, batch_id: str, boot_secrets: BootSecrets) -> str | None:
        """The sealed secrets for the API database; None if there are none. ``batch_id``: or the UUID of an operation."""
        return self._vault.seal_secrets(API, batch_id, boot_secrets) if boot_secrets else None

    def returned_password(self, boot_secrets: BootSecrets) -> str | None:
        """The password to return in the answer, if any."""
        return boot_secrets.admin_pass if self._settings.enable_instance_password else None

    def repeated_password(self, batch_id: str, sealed: str | None) -> str | None:
        """The password to return for a request that was accepted before, if it is still stored."""
        if sealed is None or not self._settings.enable_instance_password:
            return None
        try:
            return self._vault.open(batch_id, sealed).admin_pass
        except errors.Misconfigured as error:  # its servers are accepted without the password
            LOG.error("the answer to a repeated request lacks its password: %s", error)
            return None


def new_password() -> str:
    """A random password with a digit, a lower-case and a capital letter, and without characters that look alike."""
    chosen = [secrets.choice(alphabet) for alphabet in _ALPHABETS]
    chosen += [secrets.choice("".join(_ALPHABETS)) for _ in range(PASSWORD_LENGTH - len(chosen))]
    secrets.SystemRandom().shuffle(chosen)
    return "".join(chosen)
