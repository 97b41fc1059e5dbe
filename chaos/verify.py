"""What the product itself says of the region in the end: ``superconductor verify``."""

from __future__ import annotations

import contextlib
import io

from cli import app
from cli.standalone.demo.verdict import Violation
from deploy.local.folder import Folder

SETTLE, OVERDUE = "5", "60"
"""Seconds between its two looks, and those after which what is left to be done is a finding: the region's leases are short."""


def run_verify(folder: Folder) -> list[Violation]:
    """Everything that it finds, or why it could not look."""
    output, complaints = io.StringIO(), io.StringIO()
    words = ("verify", "--settle", SETTLE, "--overdue", OVERDUE)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaints):
        status = app.main(["--quiet", "--config-file", str(folder.etc / "api.conf"), *words])
    if not status:
        return []
    lines = [line for line in (output.getvalue() + complaints.getvalue()).splitlines() if line.strip()]
    return [Violation(message=f"superconductor verify: {line}") for line in lines or [f"status {status}"]]
