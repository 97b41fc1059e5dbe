"""Text compared with its trailing blanks on MariaDB; control characters in what is stored replaced; histories of any length.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import compare_blanks, mend_texts, mended_json
from objects import text

revision = "0010"
down_revision = "0009"

LONG_DETAILS = "ALTER TABLE instance_faults MODIFY details MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"


def upgrade() -> None:
    compare_blanks(LONG_DETAILS)
    mend_texts("instances", "uuid", plain=("name", "rolled_back"))
    mend_texts("builds", "instance_uuid", json=("spec", "history"))
    mend_texts("instance_faults", "id", plain=("message",), json=("details",))
    mend_texts("services", "uuid", plain=("disabled_reason", "release"))
    mend_texts("cell_notifications", "id", json=("facts",))
    _mend_tags()
    _mend_devices()


def _mend_tags() -> None:
    """A tag is a part of its key: where two become one, one stays."""
    tx = op.get_bind()
    tags = sa.table("tags", sa.column("instance_uuid"), sa.column("tag"))
    odd = [(uuid, tag) for uuid, tag in tx.execute(sa.select(tags.c.instance_uuid, tags.c.tag)) if not text.is_safe(tag)]
    for uuid, tag in odd:
        tx.execute(sa.delete(tags).where(tags.c.instance_uuid == uuid, tags.c.tag == tag))
        mended = text.clean(tag, len(tag) * 4)
        there = sa.select(tags.c.tag).where(tags.c.instance_uuid == uuid, tags.c.tag == mended)
        if tx.execute(there).first() is None:
            tx.execute(sa.insert(tags).values(instance_uuid=uuid, tag=mended))


def _mend_devices() -> None:
    """Of a server with an odd device; the spec of its build says the same."""
    tx = op.get_bind()
    devices = sa.table("block_device_mappings", sa.column("instance_uuid"), sa.column("position"), sa.column("mapping"))
    for uuid, position, mapping in tx.execute(sa.select(devices)).all():
        mended = mended_json(mapping)
        if mended != mapping:
            of = (devices.c.instance_uuid == uuid, devices.c.position == position)
            tx.execute(sa.update(devices).where(*of).values(mapping=mended))
