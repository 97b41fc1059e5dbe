"""What the documents name exists: files, folders, functions, links, decisions, and a tox environment for every stage."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
from pathlib import Path

import pytest

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
DOCUMENTS = sorted(str(path.relative_to(CHECKOUT)) for path in (*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")))

LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:[a-z_]+/)+[\w.-]*)`")
FUNCTION = re.compile(r"^((?:\w+/)+\w+)\.([a-z]\w*)$")
ENDINGS = ("py", "pyx", "s", "md", "cfg", "toml", "ini", "conf", "sample", "json", "yaml")
NOT_OURS = {"superconductor.conf.d/"}


def exists(name: str) -> bool:
    """A file or folder, or ``room/module.function``."""
    function = FUNCTION.match(name)
    if function and function[2] not in ENDINGS:
        module = CHECKOUT / f"{function[1]}.py"
        return module.exists() and re.search(rf"^ *def {function[2]}\b", module.read_text(), re.MULTILINE) is not None
    return (CHECKOUT / name).exists() or name in NOT_OURS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    folder = (CHECKOUT / document).parent

    assert [link for link in LINK.findall((CHECKOUT / document).read_text()) if not (folder / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_and_functions_exist(document: str) -> None:
    assert [name for name in PATH.findall((CHECKOUT / document).read_text()) if not exists(name)] == []


def test_the_index_lists_every_decision_by_its_title() -> None:
    folder = CHECKOUT / "docs" / "decisions"
    titles = {path.name: path.read_text().partition("\n")[0] for path in sorted(folder.glob("[0-9]*.md"))}
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]*)\): (.*)$", (folder / "README.md").read_text(), re.MULTILINE)

    assert {name: f"# {number}: {title}" for number, name, title in listed} == titles


def test_tox_configures_only_stages_of_the_check() -> None:
    spec = importlib.util.spec_from_file_location("stages", CHECKOUT / "ci" / "stages.py")
    assert spec is not None
    assert spec.loader is not None
    stages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stages)
    tox = configparser.ConfigParser()
    tox.read(CHECKOUT / "tox.ini")

    configured = {name for section in tox.sections() for name in section.removeprefix("testenv:").strip("{}").split(",")}
    assert configured - {"tox", "testenv"} <= set(stages.STAGES)
    assert sorted(name for names in stages.list_jobs().values() for name in names) == sorted(stages.USUAL)
