"""Release the secrets of builds and tasks that were just granted: agents get them with the verdicts, and in no other way."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import msgspec

from db.secrets import Kept
from objects import errors
from objects.build import Verdict
from service.vault import Vault

LOG = logging.getLogger(__name__)

LOST = "The user data and password of this build are no longer stored."


def release_secrets(
    vault: Vault, verdicts: Sequence[Verdict], granted: Collection[str], secrets_by_uuid: Mapping[str, Kept]
) -> tuple[list[Verdict], set[str]]:
    """Add the stored secrets (``secrets_by_uuid``, by instance UUID) to the verdicts of these ``granted`` instances.

    The first instance of a batch gets its secrets, and the others refer to that one: each batch is decrypted once. Instances whose
    secrets are lost get a refusal instead. Returns the verdicts, and the UUIDs of these instances.

    Raises errors.Misconfigured if no key opens one of them, and logs which instance waits for it.
    """
    released: list[Verdict] = []
    lost: set[str] = set()
    first_of_batch: dict[str, str] = {}
    for verdict in verdicts:
        uuid = verdict.instance_uuid
        kept_secrets = secrets_by_uuid.get(uuid)
        if uuid not in granted:
            changes: dict[str, object] = {}
        elif kept_secrets is None or kept_secrets.sealed is None:
            lost.add(uuid)
            changes = {"accepted": False, "reason": LOST}
        elif kept_secrets.batch_id in first_of_batch:
            changes = {"secrets_with": first_of_batch[kept_secrets.batch_id]}
        else:
            first_of_batch[kept_secrets.batch_id] = uuid
            try:
                changes = {"secrets": vault.open(kept_secrets.batch_id, kept_secrets.sealed)}
            except errors.Misconfigured as error:
                LOG.error("instance %s waits: %s", uuid, error)
                raise
        released.append(msgspec.structs.replace(verdict, **changes))
    return released, lost
