"""The filter of the documents, installed as a distribution of its own, is asked like any other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
DOCUMENT = CHECKOUT / "docs" / "scheduling.md"

ASK = """
from scheduler.engine.surveying import survey
from objects.cell import CellMapping
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.inventory import Inventory
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.framework.batch_request import Request
from scheduler.plugins import load_driver
from scheduler.framework.settings import DEFAULT_FILTERS, SchedulerSettings
from scheduler.table.host_table import HostTable

driver = load_driver(SchedulerSettings(enabled_filters=(*DEFAULT_FILTERS, "RackFilter")))
table = HostTable()
racks = {"h1": "r1", "h2": "r2", "h3": "r3", "h4": None}
table.set_topology([CellMapping(uuid="c", name="c", database_url="", transport_url="")], dict.fromkeys(racks, "c"), {})
for number, (host, rack) in enumerate(racks.items(), start=1):
    room = {"cap_vcpus": 8.0, "cap_memory_mb": 8192.0, "cap_disk_gb": 80.0}
    table.set_inventory(Inventory(id=number, host=host, node=host, cell_uuid="c", generation=1, **room), 0.0)
    attributes = {"rack": rack} if rack else {}
    table.set_nodes("c", [ComputeNode(host=host, node=host, vcpus=8, memory_mb=8192, disk_gb=80, attributes=attributes)])
    table.set_service("c", host, 1.0, disabled=False, forced_down=False)
for project in ("research", "sales"):
    flavor = Flavor(flavor_id="f", name="f", vcpus=1, memory_mb=1024)
    spec = RequestSpec(batch_id="b", request_id="r", project_id=project, user_id="u", name="n", flavor=flavor)
    found = survey(table, driver, Request(spec=spec, vcpus=1, memory_mb=1024, disk_gb=0, seed=1))
    rows = found.passing_rows  # all of them, so the filter is asked about each
    last = found.filter_counts[-1]
    print(*(table.hosts[row] for row in rows), "|", last.name, last.before, last.after, last.reason)
"""


def block(language: str) -> str:
    """The document's code block in this language."""
    [found] = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has put the package. Its wheel is made here, because a build backend is not always at hand."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads(block("toml"))["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    entries = "".join(
        f"[{group}]\n" + "".join(f"{key} = {target}\n" for key, target in points.items())
        for group, points in project["entry-points"].items()
    )
    info = f"{name}-{version}.dist-info"
    files = {
        "our_filters.py": block("python"),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entries,
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, timeout=120)
    return target


def run(code: str, site: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which finds the site's package."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_filter_takes_part(site: Path) -> None:
    asked = run(ASK, site)

    assert asked.stderr == ""
    assert asked.stdout.splitlines() == [
        "h1 h2 | RackFilter 4 2 not in a rack of the project",
        "h1 h2 h3 h4 | RackFilter 4 4 not in a rack of the project",
    ]


def test_a_wrong_name_is_refused_listing_valid_names(site: Path) -> None:
    wrong = ASK.replace('"RackFilter"', '"RackFliter"')
    refused = run(wrong, site)

    assert refused.returncode == 1
    assert "enabled_filters: there is no 'RackFliter'; choose from " in refused.stderr
    assert "RackFilter, " in refused.stderr


def test_it_has_ten_lines() -> None:
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 10
