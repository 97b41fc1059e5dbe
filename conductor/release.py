"""Release the secrets of builds and tasks that were just granted: agents get them with the verdicts, and in no other way."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping

import msgspec

from db.secrets import Kept
from objects import errors
from objects.build import Verdict
from objects.spec import BootSecrets
from service.vault import Vault

LOG = logging.getLogger(__name__)

LOST = "The user data and password of this build are no longer stored."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Released:
    """The secrets for the verdicts of one answer: each batch's secrets once, with its first instance."""

    carried: Mapping[str, BootSecrets]
    referring: Mapping[str, str]  # instance -> the instance whose verdict has the secrets of its batch
    lost: frozenset[str]

    def attached(self, verdict: Verdict) -> Verdict:
        """The verdict with its secrets; a refusal for an instance whose secrets are lost."""
        uuid = verdict.instance_uuid
        if uuid in self.lost:
            return msgspec.structs.replace(verdict, accepted=False, reason=LOST)
        return msgspec.structs.replace(verdict, secrets=self.carried.get(uuid), secrets_with=self.referring.get(uuid))


class Release:
    """Decrypts secrets, once per batch and answer."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def of(self, uuids: Iterable[str], kept: Mapping[str, Kept]) -> Released:
        """Decrypt the stored secrets (``kept``, by instance UUID) of these instances.

        Raises errors.Misconfigured if no key opens one of them, and logs which batch.
        """
        wanted = list(uuids)
        carried: dict[str, BootSecrets] = {}
        referring: dict[str, str] = {}
        first: dict[str, str] = {}
        for uuid in wanted:
            found = kept.get(uuid)
            if found is None or found.sealed is None:
                continue
            if found.batch_id in first:
                referring[uuid] = first[found.batch_id]
            else:
                first[found.batch_id] = uuid
                carried[uuid] = self._open(uuid, found.batch_id, found.sealed)
        return Released(carried=carried, referring=referring, lost=frozenset(wanted) - carried.keys() - referring.keys())

    def _open(self, uuid: str, batch_id: str, sealed: str) -> BootSecrets:
        try:
            return self._vault.open(batch_id, sealed)
        except errors.Misconfigured as error:
            LOG.error("instance %s waits: %s", uuid, error)
            raise
