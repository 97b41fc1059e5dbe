"""Text compared with its trailing blanks on MariaDB; control characters in what is stored replaced.

Revision ID: 0011
"""

from __future__ import annotations

from db.sql.migrations.shorthand import compare_blanks, mend_texts

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    compare_blanks()
    mend_texts("request_specs", "batch_id", json=("spec",))
    mend_texts("instance_mappings", "instance_uuid", plain=("name", "fault"))
    mend_texts("all_or_nothing", "batch_id", plain=("fault",))
    mend_texts("decisions", "id", json=("decision",))
    mend_texts("notifications", "id", json=("facts",))
    mend_texts("cell_silences", "cell_uuid", plain=("reason",))
    mend_texts("flavors", "flavor_id", plain=("description",), json=("extra_specs",))
    mend_texts("aggregates", "id", json=("metadata",))
