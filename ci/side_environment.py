"""Virtual environments beside the one of this project, for tools whose dependencies are not ours. They are made if missing.

A variable may name an interpreter that has the tool already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class NotInstalled(Exception):
    """The packages could not be installed; pip's output has said why."""


class SideEnvironment(NamedTuple):
    """``folder``: in the checkout. ``variable``: names another interpreter that has the packages of ``requirements``."""

    folder: str
    requirements: tuple[str, ...]
    variable: str

    def provide_python(self, environ: Mapping[str, str] = os.environ) -> Path:
        """The interpreter that has the packages. Raises NotInstalled."""
        if interpreter := environ.get(self.variable):
            return Path(interpreter)
        place = ROOT / self.folder
        python, installed, requirements_text = place / "bin" / "python", place / ".installed", "\n".join(self.requirements)
        if not installed.exists() or installed.read_text() != requirements_text:
            print(f"  installing {', '.join(self.requirements)} in {place}", flush=True)
            self._run(sys.executable, "-m", "venv", "--clear", str(place))
            self._run(str(python), "-m", "pip", "install", "--quiet", *self.requirements)
            installed.write_text(requirements_text)
        return python

    def _run(self, *command: str) -> None:
        if subprocess.run(command, check=False).returncode:
            message = f"{', '.join(self.requirements)} could not be installed in {self.folder}"
            raise NotInstalled(f"{message}; {self.variable} may name an interpreter that has it")


NOVA = SideEnvironment(".venv-nova", ("nova==34.0.0",), "SC_TEST_NOVA")
"""The Compute API is compared with its schemas, the scheduler with its filters and weighers. 440 MB."""
NOVA_CLOUD = SideEnvironment(
    ".venv-nova-cloud", ("nova==34.0.0", "openstack-placement==16.0.0", "PyMySQL==1.2.4"), "SC_TEST_NOVA_CLOUD"
)
"""Their own tools and code make the databases of a cloud. 460 MB."""
SCHEMATHESIS = SideEnvironment(".venv-fuzz", ("schemathesis==4.32.5", "openapi-spec-validator==0.9.0"), "SC_TEST_SCHEMATHESIS")
"""It makes requests of the API's description, which the validator checks."""
HELM = SideEnvironment(".venv-helm", ("helm-python-sdk==0.2.2", "kubernetes-validate==1.37.0"), "SC_TEST_HELM")
"""Helm's own code, which renders the chart, and Kubernetes' schemas, which its objects must fit. 390 MB."""
SITE = SideEnvironment(".venv-site", ("mkdocs-material==9.8.2", "mkdocs-swagger-ui-tag==0.8.1"), "SC_TEST_SITE")
"""The documentation as a site, with the reference of the HTTP API. 90 MB."""
