"""Every statement that locks rows has been held against what the other side of its guard does on another node of a cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
LOCKS = {
    "db/api/servers/addresses.py": 4,
    "db/api/reconcile/adoption.py": 1,
    "db/api/deployment/cell_mappings.py": 1,
    "db/api/reconcile/cell_removal.py": 1,
    "db/api/claims/claim_repair.py": 2,
    "db/api/claims/claiming.py": 1,
    "db/api/claims/claims.py": 1,
    "db/api/servers/edits.py": 1,
    "db/api/reconcile/events.py": 1,
    "db/api/claims/group_slots.py": 1,
    "db/api/servers/images.py": 1,
    "db/api/claims/inventories.py": 4,
    "db/api/queue/leases.py": 5,
    "db/api/servers/networks.py": 1,
    "db/api/operations/steps.py": 1,
    "db/api/operations/operations.py": 2,
    "db/api/reconcile/repair.py": 1,
    "db/api/claims/resources.py": 1,
    "db/api/rows/epochs.py": 1,
    "db/api/servers/names.py": 1,
    "db/cell/compute_nodes.py": 1,
    "db/cell/instance_rows.py": 2,
    "db/cell/minimal_end.py": 1,
    "db/cell/services.py": 2,
    "db/cell/staging.py": 1,
    "db/dead_letters.py": 1,
    "db/outbox.py": 1,
    "db/secrets.py": 1,
    "db/sql/keyed.py": 1,
}
"""Statements with a row lock, by file."""
DECISION = "docs/decisions/0039-galera-compares-writes-only.md"


def test_every_row_lock_is_verified_on_two_nodes() -> None:
    texts = {str(path.relative_to(CHECKOUT)): path.read_text() for path in sorted((CHECKOUT / "db").rglob("*.py"))}
    found = {name: count for name, text in texts.items() if (count := len(re.findall(r"with_for_update\(", text)))}
    assert found == LOCKS, f"does a side of the new guard leave the locked row as it is? Read {DECISION}, and bring both up to date"


@pytest.mark.parametrize("folder", ["api", "cells", "cli", "compute", "conductor", "scheduler", "service"])
def test_rows_are_locked_in_the_database_code_only(folder: str) -> None:
    assert [path for path in Path(CHECKOUT, folder).rglob("*.py") if "for_update" in path.read_text()] == []
