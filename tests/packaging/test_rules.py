"""Rules of AGENTS.md and CONTRIBUTING.md that the linters do not know."""

from __future__ import annotations

import ast
import configparser
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
DOCUMENTS = sorted(str(path.relative_to(CHECKOUT)) for path in (*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")))
SENTENCE_LIMIT = 25
"""Words of a sentence, without code blocks, tables and headings. An item of a list ends a sentence."""

CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?:;])\s+|\s·\s")


@functools.cache
def product() -> list[tuple[str, ast.Module]]:
    """The paths and parsed modules of what is installed."""
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    rooms = {package.split(".")[0] for package in config["options"]["packages"].split()}
    paths = sorted(path for room in rooms for path in (CHECKOUT / room).rglob("*.py"))
    return [(str(path.relative_to(CHECKOUT)), ast.parse(path.read_text())) for path in paths]


def sentences(text: str) -> Iterator[str]:
    paragraphs = [""]
    for line in CODE_BLOCK.sub("", text).split("\n"):
        if not line.strip() or line.startswith(("|", "#", "<")):
            paragraphs.append("")
        elif ITEM.match(line):
            paragraphs.append(ITEM.sub("", line, count=1))
        else:
            paragraphs[-1] += f" {line.strip()}"
    for paragraph in paragraphs:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", paragraph))
        yield from END.split(plain)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_sentences_are_short(document: str) -> None:
    found = [text for text in sentences((CHECKOUT / document).read_text()) if len(text.split()) > SENTENCE_LIMIT]

    assert found == []


def test_a_transaction_is_the_first_argument() -> None:
    found = []
    for path, module in product():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
                place = 1 if names[:1] in (["self"], ["cls"]) else 0
                if "tx" in names and names.index("tx") != place:
                    found.append(f"{path}:{node.lineno} {node.name}")
    assert found == []


def test_records_are_frozen() -> None:
    found = []
    for path, module in product():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and "Object" in {ast.unparse(base).rpartition(".")[2] for base in node.bases}:
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if options.get("frozen") != "True":
                    found.append(f"{path}:{node.lineno} {node.name}")
    assert found == []


def test_types_are_decoded_through_one_module() -> None:
    """msgspec crashes if two threads first use a type together; ``objects/typed.py`` keeps them apart."""
    found = []
    for path, module in product():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and path != "objects/typed.py":
                name = ast.unparse(node.func)
                typed = name == "msgspec.json.decode" and any(keyword.arg == "type" for keyword in node.keywords)
                if typed or name in ("msgspec.convert", "msgspec.json.Decoder"):
                    found.append(f"{path}:{node.lineno} {name}")
    assert found == []


def test_there_is_no_global_configuration() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, module in product()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "cfg.CONF"
    ]
    assert found == []


def test_names_of_test_files_are_unique() -> None:
    names = Counter(path.name for path in (CHECKOUT / "tests").rglob("test_*.py"))

    assert [name for name, count in names.items() if count > 1] == []


def test_nothing_is_mocked() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in sorted((CHECKOUT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import) and "mock" in ast.unparse(node)
    ]
    assert found == []
