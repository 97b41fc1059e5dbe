"""What is told of servers that a command waits for: a bar on a terminal, a few lines in a file."""

from __future__ import annotations

import io

import pytest

from cli.shared.progress import WaitProgress


class TerminalOutput(io.StringIO):
    def isatty(self) -> bool:
        return True


def statuses(active: int, failed: int, total: int) -> list[str]:
    return ["ACTIVE"] * active + ["ERROR"] * failed + ["BUILD"] * (total - active - failed)


def test_a_file_gets_a_line_for_each_tenth() -> None:
    out = io.StringIO()
    progress = WaitProgress(out, 1000)
    for active in range(0, 996, 5):
        progress.show_statuses(statuses(active, 5, 1000))
    progress.end_line()
    lines = out.getvalue().splitlines()
    assert lines[0] == "100 of 1000 servers: 95 ACTIVE, 5 in ERROR"
    assert lines[-1] == "1000 of 1000 servers: 995 ACTIVE, 5 in ERROR"
    assert len(lines) == 10


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = TerminalOutput()
    progress = WaitProgress(out, 20)
    progress.show_statuses(statuses(9, 1, 20))
    progress.end_line()
    assert out.getvalue() == f"\r[{'#' * 15}{' ' * 15}] 10 of 20 servers: 9 ACTIVE, 1 in ERROR\x1b[K\n"


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = TerminalOutput()
    WaitProgress(out, 20).show_statuses(statuses(20, 0, 20))
    assert out.getvalue() == "20 of 20 servers: 20 ACTIVE, 0 in ERROR\n"


@pytest.mark.parametrize(("total", "quiet"), [(1, False), (9, False), (0, False), (1000, True)])
def test_few_servers_and_quiet_commands_need_no_lines(total: int, quiet: bool) -> None:
    out = io.StringIO()
    progress = WaitProgress(out, total, quiet=quiet)
    progress.show_statuses(statuses(total, 0, total))
    progress.end_line()
    assert out.getvalue() == ""
