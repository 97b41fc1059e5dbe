"""The secrets of a batch, as the API database has them."""

from __future__ import annotations

from db.api.queue import leases
from objects import errors
from objects.spec import BootSecrets
from service.vault import OPTION, Vault


class BatchSecrets:
    """Decrypts secrets, and stores none of them."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def secrets_of(self, batch: leases.LeasedBatch) -> BootSecrets | None:
        """The secrets of a leased batch; None if it has none.

        Raises errors.NotFound if they are no longer stored, errors.Misconfigured if no key opens them.
        """
        if not batch.spec.has_secrets:
            return None
        if not self._vault.can_seal:
            raise errors.Misconfigured(
                f"{OPTION}: no master key; it is needed to decrypt the secrets of a request and encrypt them for a cell."
            )
        if batch.sealed is None:
            raise errors.NotFound("its user data and password are no longer stored")
        return self._vault.open(batch.batch_id, batch.sealed)
