"""What a process tells of itself: its threads, its parts, its metrics and its configuration, and no secret."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from service import config, guru
from service.opts import list_opts

SECRETS = {
    "transport_url": "rabbit://guest:hunter2@broker/",
    "api_database.connection": "mysql+pymysql://root:hunter2@db/api",
    "secrets.keys": "hunter2",
}


def test_a_report_shows_threads_metrics_and_safe_configuration(tmp_path: Path) -> None:
    conf = config.load_options([], list_opts(), files=[], overrides=SECRETS | {"log_dir": str(tmp_path), "monitoring.port": 9123})
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="stuck-here")
    thread.start()
    try:
        path = guru.write("superconductor-conductor", conf)
    finally:
        ended.set()
    assert path is not None
    assert path.parent == tmp_path
    assert path.name.startswith("superconductor-conductor_gurumeditation_")
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    for expected in ("stuck-here", "threading.py", "====  Health", "superconductor_claims_total", "9123", "superconductor-cloud "):
        assert expected in text, expected
    assert "hunter2" not in text


def test_an_unwritable_folder_sends_reports_to_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert guru.write("x", None, tmp_path / "missing") is None
    assert "Guru Meditation" in capfd.readouterr().err
