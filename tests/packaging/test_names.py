"""A name of a class says which one it is, in every room of the product."""

from __future__ import annotations

import ast
import configparser
import os
from collections import defaultdict
from pathlib import Path

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))


def test_no_class_name_is_in_two_modules() -> None:
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    rooms = {package.split(".")[0] for package in config["options"]["packages"].split()}
    modules = defaultdict(list)
    for path in sorted(path for room in rooms for path in (CHECKOUT / room).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(CHECKOUT)))
    assert len(modules) > 500, "the rooms are looked at"
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
