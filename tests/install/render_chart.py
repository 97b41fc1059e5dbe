"""Lint and render a chart by Helm's own code, and check each object against Kubernetes' schemas: ``CHART VALUES...``.

Run by the interpreter of ``ci.side_environment.HELM``. Prints JSON: ``messages`` of lint, ``objects``, and ``faults`` of these.
"""

import json
import sys
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

KUBERNETES = ("1.27", "1.37")
"""The oldest and the newest release whose schemas objects must fit."""


def main(chart: str, *files: str) -> None:
    values: dict[str, Any] = {}
    for file in files:
        merge(values, helm_python.values_from_yaml(Path(file).read_text()))
    lint = helm_python.lint(chart, values, strict=True)
    told: dict[str, Any] = {"messages": lint, "objects": [], "faults": [], "error": ""}
    try:
        rendered = helm_python.Chart.load(chart).render(values, name="sc", namespace="clouds")
    except helm_python.HelmError as error:
        told["error"] = str(error)
    else:
        texts = rendered.values()
        told["objects"] = [found for text in texts for found in yaml.safe_load_all(text) if found]
    for made in told["objects"]:
        for release in KUBERNETES:
            try:
                kubernetes_validate.validate(made, release, strict=True)
            except Exception as error:  # noqa: BLE001 - whichever it is, it is the answer
                told["faults"].append(f"{made['kind']} {made['metadata']['name']}, {release}: {error}")
    print(json.dumps(told))


def merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    """As Helm merges files of values."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            merge(values[name], value)
        else:
            values[name] = value


if __name__ == "__main__":
    main(*sys.argv[1:])
