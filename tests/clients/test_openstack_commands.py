"""Every command of ``openstack`` for the Compute API works, or is refused in one line that says why.

``openstack_commands.yaml`` says which. The tests are run in its order, each on what those before it made.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import client_programs
from tests.support.client_programs import PYTHON
from tests.support.keystone_cloud import KeystoneCloud

ENTRIES: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "openstack_commands.yaml").read_text())
LONGEST_LINE = 600
"""Characters of a refusal. The client puts the address before the API's sentence."""
_OWN = re.compile(r"deprecated|^\d+ of \d+ .* (failed to delete|were not added|were not removed)\.$")
"""Lines that the client adds by itself."""
_NAMES = """
import importlib.metadata, json
print(json.dumps([point.name for point in importlib.metadata.entry_points(group="openstack.compute.v2")]))
"""


def test_every_command_of_the_client_is_listed() -> None:
    if client_programs.missing():
        pytest.skip(client_programs.MISSING)
    found = subprocess.run([PYTHON, "-c", _NAMES], check=True, capture_output=True, text=True).stdout
    names: list[str] = [name.replace("_", " ") for name in json.loads(found)]
    assert [name for name in names if not any(f"{entry['run']} ".startswith(f"{name} ") for entry in ENTRIES)] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["run"] for entry in ENTRIES])
def test_a_command_works_or_is_refused_as_listed(cloud: KeystoneCloud, entry: dict[str, Any]) -> None:
    caller = cloud.admin if "as" not in entry else cloud.caller(entry["as"])
    ran = caller.run(*shlex.split(entry["run"].format(**cloud.kept)))
    said = ran.stderr.strip()
    assert "Traceback" not in said
    if "refused" in entry:
        assert ran.returncode != 0, f"it works: remove 'refused' from its entry. {ran.stdout}"
        assert entry["refused"] in said
        lines = [line for line in said.splitlines() if not _OWN.search(line)]
        assert len(lines) == 1, "one line is enough"
        assert len(lines[0]) < LONGEST_LINE
        return
    assert ran.returncode == 0, said
    if "keep" in entry:
        cloud.kept[entry["keep"]] = ran.stdout.split("\n", 1)[0].strip()
    if "until" in entry:
        assert cloud.settled(caller, *entry["until"].split()), entry["until"]
