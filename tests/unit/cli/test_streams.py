"""Nothing that a command prints of others can write to the operator's terminal."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from cli import app
from cli.shared.console import console_on, table_of
from cli.shared.streams import escape_stream

ODD = "\x1b]0;owned\x07\x9b31m\u202eabc\ud800\r"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_tables_and_texts_are_escaped(stream: type[io.StringIO]) -> None:
    out = stream()
    console = console_on(escape_stream(out))
    console.print(table_of("T", ("A",), [[ODD]]))
    console.print(f"plain {ODD}", markup=False)
    console.print(Text(ODD, style="bold"))
    shown = out.getvalue()
    assert "owned" in shown
    for control in ("\x1b]", "\x07", "\x9b", "\u202e", "\ud800", "\r"):
        assert control not in shown
    assert "\\u001b]0;owned" in shown


def test_streams_escape_what_is_printed() -> None:
    out = io.StringIO()
    print(f"a\tb {ODD}", file=escape_stream(out))
    assert out.getvalue() == "a\tb \\u001b]0;owned\\u0007\\u009b31m\\u202eabc\\ud800\\u000d\n"


def test_an_argument_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["host", "delete", "\udcff"]) == 2
    assert capsys.readouterr().err == "superconductor: '\\udcff' is not text in this terminal's encoding\n"
