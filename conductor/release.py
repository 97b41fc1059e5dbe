"""Release the secrets of builds and tasks that were just granted: agents get them with the verdicts, and in no other way."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

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

    def verdict_with_secrets(self, verdict: Verdict) -> Verdict:
        """The verdict with its secrets; a refusal for an instance whose secrets are lost."""
        uuid = verdict.instance_uuid
        if uuid in self.lost:
            return msgspec.structs.replace(verdict, accepted=False, reason=LOST)
        return msgspec.structs.replace(verdict, secrets=self.carried.get(uuid), secrets_with=self.referring.get(uuid))


def release_secrets(vault: Vault, uuids: Sequence[str], secrets_by_uuid: Mapping[str, Kept]) -> Released:
    """Decrypt the stored secrets (``secrets_by_uuid``, by instance UUID) of these instances, once for each batch.

    Raises errors.Misconfigured if no key opens one of them, and logs which instance waits for it.
    """
    carried: dict[str, BootSecrets] = {}
    referring: dict[str, str] = {}
    first: dict[str, str] = {}
    for uuid in uuids:
        kept_secrets = secrets_by_uuid.get(uuid)
        if kept_secrets is None or kept_secrets.sealed is None:
            continue
        if kept_secrets.batch_id in first:
            referring[uuid] = first[kept_secrets.batch_id]
            continue
        first[kept_secrets.batch_id] = uuid
        try:
            carried[uuid] = vault.open(kept_secrets.batch_id, kept_secrets.sealed)
        except errors.Misconfigured as error:
            LOG.error("instance %s waits: %s", uuid, error)
            raise
    return Released(carried=carried, referring=referring, lost=frozenset(uuids) - carried.keys() - referring.keys())
