"""Build the documentation as a site with search and the reference of the HTTP API, and refuse links that lead nowhere.

    make site

The pages are the repository's own Markdown files, in the same folders, so that their links hold; what they link to beside pages
comes with them. The site is written to ``build/site/html`` and can be read from a disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci import side_environment

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "site" / "pages"
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "AGENTS.md", "LICENSE")
API_PAGE = """# The HTTP API

Made from the routes, schemas and policies of this release, at its newest microversion.
A running API serves the same description at `/v2.1/superconductor/openapi.json`.

<swagger-ui src="openapi.json"/>
"""
API_REFERENCE = Path("docs/http-api.md")
CONFIGURATION = PAGES.parent / "mkdocs.yml"
_SECTION = re.compile(r"(?:#+ )?([A-Z][\w -]*):?")
_ENTRY = re.compile(r"- \[([^]]+)\]\(([^)#]+)\)")
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def main() -> int:
    """Gather the pages and build the site. The exit status of the builder, 1 if it cannot be installed."""
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    gather_pages()
    write_api_reference()
    write_navigation()
    try:
        python = side_environment.SITE.provide_python()
    except side_environment.NotInstalled as error:
        print(error)
        return 1
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIGURATION)]
    # Not with --quiet: what is not logged does not count as a warning.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        print(built.stderr)
    else:
        print(f"The site is in {(PAGES.parent / 'html').relative_to(ROOT)}")
    return built.returncode


def gather_pages() -> None:
    """Copy the Markdown files of the repository, and every file that they link to."""
    for page in [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]:
        _copy_file(page)
        if page.suffix == ".md":
            for link in _LINK.findall(page.read_text()):
                linked = (page.parent / link).resolve()
                if linked.is_file() and linked.is_relative_to(ROOT):
                    _copy_file(linked)


def _copy_file(file: Path) -> None:
    copied = PAGES / file.relative_to(ROOT)
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copied)


def write_api_reference() -> None:
    """Write the page of the HTTP API beside its description in OpenAPI."""
    # Only here: gathering the pages needs none of the product.
    from tests.support.api import NEWEST, Front

    (PAGES / API_REFERENCE).write_text(API_PAGE)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Front(Path(folder))) as front:
        description = front.client.simulate_get("/v2.1/superconductor/openapi.json", headers=NEWEST).json
    (PAGES / API_REFERENCE.with_name("openapi.json")).write_text(json.dumps(description))


def write_navigation() -> None:
    """Write the configuration of the site, whose menu has the sections of ``docs/README.md``."""
    sections: dict[str, list[dict[str, str]]] = {}
    title = "Documentation"
    for line in (ROOT / "docs" / "README.md").read_text().splitlines()[1:]:
        if entry := _ENTRY.match(line):
            sections.setdefault(title, []).append({entry[1]: f"docs/{entry[2]}"})
        elif section := _SECTION.fullmatch(line.strip()):
            title = section[1]
    sections.setdefault("Reference", []).insert(0, {"HTTP API": str(API_REFERENCE)})
    menu: list[object] = [{"Superconductor": ["README.md", {"Changes": "CHANGELOG.md"}, {"Contributing": "CONTRIBUTING.md"}]}]
    menu += [{name: entries} for name, entries in sections.items()]
    # JSON is YAML: the main environment needs no library for it.
    CONFIGURATION.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: {json.dumps(menu)}\n")


if __name__ == "__main__":
    sys.exit(main())
