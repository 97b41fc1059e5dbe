"""What the chart makes of the answers of a deployment, rendered by Helm's own code in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ci.side_environment import HELM
from tests.support.install_site import InstallSite

PROGRAM = Path(__file__).parents[1] / "install" / "render_chart.py"
COMMANDS = {
    "sc-api": "superconductor-api",
    "sc-scheduler": "superconductor-scheduler",
    "sc-conductor": "superconductor-conductor",
    "sc-conductor-cell1": "superconductor-conductor",
    "sc-agent-cell1-host1": "superconductor-compute",
}
"""The command of each pod, by the name of the object that makes it."""


def render(site: InstallSite, *files: str, **values: object) -> dict[str, Any]:
    """The objects that these values make, beside those of the deployment; see ``render_chart.py``."""
    if not os.environ.get(HELM.variable):
        pytest.skip(f"{HELM.variable} is not set: make test STAGES=install")
    more = site.folder / "more.yaml"
    more.write_text(json.dumps(values))
    named = [str(site.install / file) for file in files or ("api.yaml", "cell1.yaml")]
    command = [os.environ[HELM.variable], str(PROGRAM), str(site.install / "chart"), *named, str(more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def pods(rendered: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod of each Deployment and StatefulSet, by the object's name."""
    kinds = ("Deployment", "StatefulSet")
    return {made["metadata"]["name"]: made["spec"]["template"]["spec"] for made in rendered["objects"] if made["kind"] in kinds}
