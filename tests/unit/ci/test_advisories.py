"""The advisory audit tells what it audited, and fails where that was nothing."""

from __future__ import annotations

import pytest

from ci import audit

AUDITED = {"name": "alembic", "version": "1.20.1", "vulns": []}
SKIPPED = {"name": "falcon", "version": "4.4.0", "skip_reason": "not found, could not be audited"}
VULNERABLE = {"name": "waitress", "version": "3.0.2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.0.3"]}]}


@pytest.fixture(autouse=True)
def _nothing_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(audit.ACCEPT, raising=False)


def test_skipped_advisories_are_named_and_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.are_packages_clean([AUDITED, SKIPPED])
    said = capsys.readouterr().out
    assert "1 packages audited, 0 advisories, 1 packages not audited" in said
    assert "not audited: falcon" in said


def test_an_advisory_fails_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert not audit.are_packages_clean([AUDITED, VULNERABLE])
    assert "waitress 3.0.2: PYSEC-1, fixed in 3.0.3" in capsys.readouterr().out


@pytest.mark.parametrize("packages", [[], [SKIPPED, SKIPPED]])
def test_an_audit_of_nothing_fails_unless_accepted(
    packages: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not audit.are_packages_clean(packages)
    assert "NOT AUDITED" in capsys.readouterr().out
    monkeypatch.setenv(audit.ACCEPT, "1")
    assert audit.are_packages_clean(packages)
