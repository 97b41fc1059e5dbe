"""The files that install a deployment on machines and in clusters: systemd units, packages, an image definition, a Helm chart."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from cli.fleet import agent_files
from cli.install import units
from objects import errors
from service.release import DISTRIBUTION

CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""Names of Kubernetes objects are labels of DNS; the release and the component stand before ours."""
VALUES = """\
# Values of the chart for {what}: helm install or upgrade with --values, beside those of the other files. It holds secrets.
"""


class InstallFolder:
    """The files of a deployment.

    ``systemd``, ``debian``, ``image`` and ``chart`` hold nothing secret. The API level and each cell have a file of private values.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_present(self) -> bool:
        return self.path.exists()

    def values_file(self, name: str) -> Path:
        """The file of values of the API level (``api``) or of a cell."""
        return self.path / f"{name}.yaml"

    def write_common(self, port: int) -> None:
        """What does not depend on cells."""
        for name, text in units.unit_texts().items():
            _write(self.path / "systemd" / name, text)
        words = {
            "VERSION": metadata.version(DISTRIBUTION),
            "PORT": str(port),
            "STOP": str(units.STOP_TIMEOUT_S + 5),  # as long again as its pods wait before they begin to stop
        }
        _copy_tree(resources.files("cli.install") / "files", self.path, words)

    def write_api_values(self, configuration: str) -> None:
        self._write_values("api", "the API level", secrets={"api": configuration})

    def write_cell_values(self, name: str, host: str, *, conductor: str, agent: str) -> None:
        """``conductor`` and ``agent``: the texts of their configuration files."""
        extra = f"cells:\n  {name}: {{}}\n# One simulated host, for a trial.\nagents:\n  {host}: {{}}\n"
        self._write_values(name, f"cell {name}", extra, secrets={name: conductor, host: agent})

    def _write_values(self, name: str, subject: str, extra: str = "", *, secrets: Mapping[str, str]) -> None:
        texts = [f"  {key}: |\n{textwrap.indent(text, '    ')}" for key, text in secrets.items()]
        agent_files.write_private(self.values_file(name), "".join([VALUES.format(what=subject), extra, "secrets:\n", *texts]))


def check_cell_name(name: str) -> None:
    """Raises Invalid if no Kubernetes object can be named after the cell."""
    if not CLUSTER_NAME.fullmatch(name):
        raise errors.Invalid(
            f"--add-cell: {name!r} names objects in Kubernetes: use at most 32 small letters, digits and '-', with no '-' at an end"
        )


def _copy_tree(source: Traversable, target: Path, words: Mapping[str, str]) -> None:
    for entry in source.iterdir():
        if entry.is_dir():
            _copy_tree(entry, target / entry.name, words)
        else:
            text = entry.read_text(encoding="utf-8")
            _write(target / entry.name, re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    if text.startswith("#!"):
        file.chmod(0o755)
