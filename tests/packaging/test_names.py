"""Names say what a thing is, and a function what it does.

Offenders from before this rule stand in ``names_allowed.txt``, one a line. That list only shrinks: remove the line of a name that
was replaced. This writes the list anew, for a merge of branches::

    .venv/bin/python -m tests.packaging.test_names
"""

from __future__ import annotations

import ast
import configparser
import functools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
ALLOWED = CHECKOUT / "tests" / "packaging" / "names_allowed.txt"
TOOLS = ("bench", "chaos", "ci", "deploy")
"""Folders of functions that the rule holds for, beside the rooms that are installed."""

VERBS = frozenset(
    (
        *(
            "get",
            "list",
            "create",
            "delete",
            "start",
            "stop",
            "open",
            "close",
            "read",
            "write",
            "send",
            "call",
            "run",
            "main",
            "setup",
        ),
        *("survey", "commit", "rollback", "undo", "wait", "join", "flush", "lock", "encode", "decode", "parse", "render"),
        *("passes", "weigh"),  # of a filter and of a weigher
    )
)
"""One-word names of functions that say everything, because the class or module names the object."""

FILLERS = frozenset(
    (
        *(
            "found",
            "told",
            "asked",
            "wanted",
            "given",
            "kept",
            "left",
            "own",
            "made",
            "some",
            "each",
            "what",
            "heard",
            "busy",
            "here",
        ),
        *("whole", "there", "theirs", "mine", "said", "stuff", "thing"),
    )
)
"""Words that say nothing of a value. ``matching_hosts`` instead of ``found``, ``remaining`` instead of ``left``."""

LIBRARY_NAMES = {
    "api/http/http_server.py:Channel.received": "waitress.channel.HTTPChannel",
    "api/http/http_server.py:Channel.service": "waitress.channel.HTTPChannel",
    "api/http/http_server.py:HttpServer.maintenance": "waitress.server.BaseWSGIServer",
    "cli/app.py:_OneLine.format": "logging.Formatter",
    "conductor/opts.py:_MapHostsType._formatter": "oslo_config.types.ConfigType",
    "scheduler/engine/survey.py:SparseWeights.item": "numpy.ndarray, in whose place it stands",
    "service/accepting.py:PausingServer.accept": "waitress.wasyncore.dispatcher",
    "service/accepting.py:PausingServer.readable": "waitress.wasyncore.dispatcher",
    "service/guru.py:_Lines.emit": "logging.Handler",
    "service/logs.py:MaskingFormatter.format": "logging.Formatter",
    "service/metrics.py:ReadGauge.collect": "prometheus_client's registry",
    "service/process.py:_Worker.reload": "cotyledon.Service",
    "service/process.py:_Worker.terminate": "cotyledon.Service",
}
"""Functions whose name a library requires, and which one. Alembic's ``upgrade`` and ``downgrade`` are known by their folder."""

TEST_WORDS_LIMIT = 8
"""Words of a test's name after ``test_``."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def rooms() -> tuple[str, ...]:
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    return tuple(sorted({package.split(".")[0] for package in config["options"]["packages"].split()}))


@functools.cache
def parsed_folder(folder: str) -> list[tuple[str, ast.Module]]:
    paths = sorted((CHECKOUT / folder).rglob("*.py"))
    return [(str(path.relative_to(CHECKOUT)), ast.parse(path.read_text())) for path in paths]


def parsed(folders: Sequence[str]) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        yield from parsed_folder(folder)


@functools.cache
def bus_methods() -> frozenset[str]:
    """The names on the bus: methods of the endpoints in ``rpc``, which other releases call."""
    classes = [node for _, module in parsed(["rpc"]) for node in module.body if isinstance(node, ast.ClassDef)]
    endpoints = [node for node in classes if node.name.endswith("Endpoint")]
    return frozenset(member.name for node in endpoints for member in node.body if isinstance(member, ast.FunctionDef))


def is_required(path: str, qualname: str, function: Function, owner: ast.ClassDef | None) -> bool:
    """Whether somebody else has chosen the name: Python, a library, the bus, or the field that a property stands for."""
    name = function.name
    if name.startswith("__") and name.endswith("__"):
        return True
    if f"{path}:{qualname}" in LIBRARY_NAMES or ("/migrations/" in path and name in ("upgrade", "downgrade")):
        return True
    if owner is None:
        return False
    parameters = [parameter.arg for parameter in function.args.args]
    if name in bus_methods() and "context" in parameters:
        return True
    is_property = any(isinstance(node, ast.Name) and node.id == "property" for node in function.decorator_list)
    return is_property and any(ast.unparse(base).startswith("Protocol") for base in owner.bases)


def one_word_functions(path: str, module: ast.Module) -> Iterator[str]:
    def walk(node: ast.AST, qualname: str, owner: ast.ClassDef | None) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                inner = f"{qualname}.{child.name}".lstrip(".")
                name = child.name.strip("_")
                if "_" not in name and name not in VERBS and not is_required(path, inner, child, owner):
                    yield f"function {path}:{inner}"
                yield from walk(child, inner, None)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{qualname}.{child.name}".lstrip("."), child)
            else:
                yield from walk(child, qualname, owner)

    return walk(module, "", None)


def filler_variables(path: str, module: ast.Module) -> Iterator[str]:
    def bound(node: ast.AST) -> str:
        """The variable, parameter or attribute that the node binds; empty if it binds none."""
        if isinstance(node, ast.arg):
            return node.arg
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            return node.id
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            return f"self.{node.attr}"
        return ""

    def walk(node: ast.AST, qualname: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            name = bound(child)
            if name.removeprefix("self.").strip("_").lower() in FILLERS:
                yield f"variable {path}:{qualname or 'module'} {name}"
            inner = f"{qualname}.{child.name}".lstrip(".") if isinstance(child, Function | ast.ClassDef) else qualname
            yield from walk(child, inner)

    return walk(module, "")


def long_test_names(path: str, module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, Function) and node.name.startswith("test_"):
            words = node.name.removeprefix("test_").split("_")
            if len(words) > TEST_WORDS_LIMIT:
                yield f"test {path}:{node.name}"


def offenders() -> list[str]:
    lines: set[str] = set()
    for path, module in parsed([*rooms(), *TOOLS]):
        lines.update(one_word_functions(path, module))
        lines.update(filler_variables(path, module))
    for path, module in parsed(["tests"]):
        lines.update(long_test_names(path, module))
    return sorted(lines)


@functools.cache
def changes() -> tuple[list[str], list[str]]:
    """The offenders that are not in the list, and those in the list that are gone."""
    now, allowed = set(offenders()), set(ALLOWED.read_text().splitlines())
    return sorted(now - allowed), sorted(allowed - now)


def test_no_class_name_is_in_two_modules() -> None:
    modules = defaultdict(list)
    for path, module in parsed(rooms()):
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(path)
    assert len(modules) > 500, "the rooms are looked at"
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_new_names_carry_information() -> None:
    new, _ = changes()
    assert not new, "give these functions a verb and an object, these variables a noun, these tests at most eight words"


def test_list_of_allowed_names_only_shrinks() -> None:
    _, gone = changes()
    assert not gone, f"remove these lines from {ALLOWED.name}"


def test_list_of_allowed_names_is_sorted() -> None:
    lines = ALLOWED.read_text().splitlines()
    assert lines == sorted(set(lines))


def test_names_of_libraries_are_in_use() -> None:
    functions = set()
    for path, module in parsed(rooms()):
        for owner in module.body:
            if isinstance(owner, ast.ClassDef):
                functions |= {f"{path}:{owner.name}.{node.name}" for node in owner.body if isinstance(node, Function)}
    assert LIBRARY_NAMES.keys() - functions == set()


def test_one_word_and_filler_names_are_noticed() -> None:
    module = ast.parse(
        "def look(given):\n    found = 1\n    return found\n\n\n"
        "class Table:\n    kept: int\n\n    def get(self):\n        self._told = 1\n\n    def _find_rows(self): ...\n"
    )
    assert list(one_word_functions("a.py", module)) == ["function a.py:look"]
    assert sorted(filler_variables("a.py", module)) == [
        "variable a.py:Table kept",
        "variable a.py:Table.get self._told",
        "variable a.py:look found",
        "variable a.py:look given",
    ]


def test_long_test_names_are_noticed() -> None:
    module = ast.parse("def test_a_b_c_d_e_f_g_h(): ...\n\n\ndef test_a_b_c_d_e_f_g_h_i(): ...\n")
    assert list(long_test_names("a.py", module)) == ["test a.py:test_a_b_c_d_e_f_g_h_i"]


if __name__ == "__main__":
    ALLOWED.write_text("".join(f"{line}\n" for line in offenders()))
