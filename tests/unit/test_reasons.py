"""What a tool is told to overlook, and a test that is not run, carry their reason in the same place."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_OVERLOOKED = re.compile(r"#\s*(type:\s*ignore|noqa)\b")
_WITH_REASON = re.compile(r"# (type: ignore\[[a-z, -]+\]  #|noqa: [A-Z0-9, ]+ -) \S")
_LEFT_OUT = ("skip", "skipif", "xfail", "importorskip")
_REASON_COMES = {"skip": 0, "xfail": 0}
"""The position of the reason in a call; elsewhere it has a name."""


def sources(below: Path = ROOT) -> Iterator[Path]:
    """Ours: not those of a virtual environment or another tool's folder."""
    for path in sorted(below.iterdir()):
        if path.is_dir() and not path.name.startswith(".") and path.name not in ("build", "dist", "node_modules"):
            if not (path / "pyvenv.cfg").exists():
                yield from sources(path)
        elif path.suffix == ".py":
            yield path


def overlooked(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with a comment that tells a tool to overlook something, and that comment."""
    if _OVERLOOKED.search(path.read_text()):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT and _OVERLOOKED.search(token.string):
                    yield token.start[0], token.string


def left_out(path: Path) -> Iterator[tuple[int, ast.expr | None]]:
    """Lines that leave a test out, and the reason given."""
    text = path.read_text()
    if not any(word in text for word in _LEFT_OUT):
        return
    called: set[ast.expr] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_ours(node.func):
            called.add(node.func)
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            position = _REASON_COMES.get(node.func.attr, len(node.args))
            given = node.args[position] if position < len(node.args) else None
            yield node.lineno, named.get("reason", given)
        elif isinstance(node, ast.Attribute) and _is_ours(node) and node not in called and "mark" in ast.unparse(node.value):
            yield node.lineno, None  # a mark without words


def _is_ours(node: ast.Attribute) -> bool:
    """``pytest.skip``, ``pytest.mark.skipif`` and the like."""
    return node.attr in _LEFT_OUT and ast.unparse(node.value) in ("pytest", "pytest.mark")


def test_what_tools_overlook_says_why() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}: {text}" for path in sources() for line, text in overlooked(path)]
    assert len(found) > 10, "this test looks where there are some"
    assert [each for each in found if not _WITH_REASON.search(each)] == []


def test_tests_that_are_left_out_say_why() -> None:
    found = [(f"{path.relative_to(ROOT)}:{line}", reason) for path in sources(ROOT / "tests") for line, reason in left_out(path)]
    assert len(found) > 5, "this test looks where there are some"
    assert [place for place, reason in found if reason is None or (isinstance(reason, ast.Constant) and not reason.value)] == []
