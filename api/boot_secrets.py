"""User data and administrators' passwords: what of them is taken, made, sealed, and told back."""

from __future__ import annotations

import logging
import secrets
import string

import msgspec

from api import create, schemas
from api.create import ServerBody
from api.opts import ApiSettings
from objects import errors
from objects.spec import BootSecrets
from service.vault import API, OPTION, Vault

LOG = logging.getLogger(__name__)

LENGTH = 16
"""Characters of a password made here: about 92 bits."""

_ALPHABETS = tuple(
    "".join(c for c in group if c not in "0O1lI") for group in (string.digits, string.ascii_lowercase, string.ascii_uppercase)
)


class BootSecretsPolicy:
    """Nothing is stored readable: without a key to seal with, no password is made and what brings a secret is refused."""

    def __init__(self, settings: ApiSettings, vault: Vault) -> None:
        self._settings = settings
        self._vault = vault

    def given(self, server: ServerBody) -> BootSecrets:
        """What the guests are to get: as given, with a password made where one can be told. Raises errors.Invalid without keys."""
        asked = create.secrets(server)
        if not self._vault.sealing:
            if asked:
                field = "user_data" if asked.user_data is not None else "adminPass"
                raise errors.Invalid(
                    f"server.{field}: cannot be taken, as this service could only store it unencrypted: "
                    f"its operator has to configure {OPTION}"
                )
            return asked
        told = self._settings.enable_instance_password and not schemas.BOOLEANS[server.return_reservation_id]
        if asked.admin_pass is None and told:
            return msgspec.structs.replace(asked, admin_pass=new_password())
        return asked

    def seal(self, batch_id: str, given: BootSecrets) -> str | None:
        """As the API database keeps it; None where there is nothing to keep."""
        return self._vault.seal(API, batch_id, given) if given else None

    def answered(self, given: BootSecrets) -> str | None:
        """The password to answer with, if there is one."""
        return given.admin_pass if self._settings.enable_instance_password else None

    def told_again(self, batch_id: str, sealed: str | None) -> str | None:
        """The same for a request that was accepted before, if it is still kept."""
        if sealed is None or not self._settings.enable_instance_password:
            return None
        try:
            return self._vault.open(batch_id, sealed).admin_pass
        except errors.Misconfigured as error:  # its servers are accepted all the same
            LOG.error("The password of a repeated request cannot be told: %s", error)
            return None


def new_password() -> str:
    """Random, with a digit, a small and a capital letter, and none of the characters that are mistaken for each other."""
    chosen = [secrets.choice(alphabet) for alphabet in _ALPHABETS]
    chosen += [secrets.choice("".join(_ALPHABETS)) for _ in range(LENGTH - len(chosen))]
    secrets.SystemRandom().shuffle(chosen)
    return "".join(chosen)
