"""Every statement that locks rows has been held against what the other side of its guard does on another node of a cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
LOCKS = {
    "db/api/addresses.py": 4,
    "db/api/adoption.py": 1,
    "db/api/cell_mappings.py": 1,
    "db/api/cell_removal.py": 1,
    "db/api/claim_repair.py": 2,
    "db/api/claiming.py": 1,
    "db/api/claims.py": 1,
    "db/api/edits.py": 1,
    "db/api/events.py": 1,
    "db/api/group_slots.py": 1,
    "db/api/images.py": 1,
    "db/api/inventories.py": 4,
    "db/api/leases.py": 5,
    "db/api/networks.py": 1,
    "db/api/operation_steps.py": 1,
    "db/api/operations.py": 2,
    "db/api/repair.py": 1,
    "db/api/resources.py": 1,
    "db/api/epochs.py": 1,
    "db/api/server_names.py": 1,
    "db/cell/compute_nodes.py": 1,
    "db/cell/instance_rows.py": 2,
    "db/cell/minimal_end.py": 1,
    "db/cell/services.py": 1,
    "db/cell/staging.py": 1,
    "db/dead_letters.py": 1,
    "db/outbox.py": 1,
    "db/secrets.py": 1,
    "db/sql/keyed.py": 1,
}
"""Statements with a row lock, by file."""
DECISION = "docs/decisions/0039-galera-compares-writes-only.md"


def test_each_row_lock_is_known_to_hold_on_two_nodes() -> None:
    texts = {str(path.relative_to(CHECKOUT)): path.read_text() for path in sorted((CHECKOUT / "db").rglob("*.py"))}
    found = {name: count for name, text in texts.items() if (count := len(re.findall(r"with_for_update\(", text)))}
    assert found == LOCKS, f"does a side of the new guard leave the locked row as it is? Read {DECISION}, and bring both up to date"


@pytest.mark.parametrize("folder", ["api", "cells", "cli", "compute", "conductor", "scheduler", "service"])
def test_rows_are_locked_in_the_database_code_only(folder: str) -> None:
    assert [path for path in Path(CHECKOUT, folder).rglob("*.py") if "for_update" in path.read_text()] == []
