"""The image runs every role with the configuration that the chart gives its pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import requests

from service.periodic import wait_until
from tests.support.databases import closed_port
from tests.support.install_site import Image, InstallSite
from tests.support.processes import IMAGE, PATIENCE
from tests.support.rendered_chart import COMMANDS, pods, render

USER = 10001


class Pod:
    """A container with the files of one pod. ``monitoring``: its port, as all are on the network of this machine."""

    def __init__(self, image: Image, name: str, folder: Path, told: dict[str, Any]) -> None:
        pod = pods(told)[name]
        self.name = name
        self.grace: int = pod["terminationGracePeriodSeconds"]
        self.monitoring = closed_port()
        configuration = folder / name
        configuration.mkdir()
        by_name = {made["metadata"]["name"]: made for made in told["objects"] if made["kind"] in ("Secret", "ConfigMap")}
        for source in pod["volumes"][0]["projected"]["sources"]:
            ((_, reference),) = source.items()
            made = by_name[reference["name"]]
            for file, text in (made.get("stringData") or made["data"]).items():
                (configuration / file).write_text(re.sub(r"port = 9100", f"port = {self.monitoring}", text))
        state = folder / f"{name}-state"
        state.mkdir()
        state.chmod(0o777)
        folder.chmod(0o755)
        image.run(name, configuration, *pod["containers"][0]["command"], state=state if "agent" in name else None)

    def is_healthy(self) -> bool:
        return self.answers("/health") == 200

    def answers(self, path: str) -> int:
        try:
            return requests.get(f"http://127.0.0.1:{self.monitoring}{path}", timeout=PATIENCE).status_code
        except requests.ConnectionError:
            return 0


@pytest.fixture
def running(image: Image, site: InstallSite, tmp_path: Path) -> list[Pod]:
    told = render(site, api={"authStrategy": "noauth-anywhere", "port": site.port})
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)  # the user of the image reads what is mounted
    return [Pod(image, name, tmp_path, told) for name in COMMANDS]


@pytest.mark.timeout(2400)
def test_a_server_boots_on_containers_stopping_in_time(running: list[Pod], image: Image, site: InstallSite) -> None:
    for pod in running:
        assert wait_until(pod.is_healthy, 2 * PATIENCE, 0.5), image.logs(pod.name)
        assert pod.answers("/alive") == 200
    assert "up to date" in image.ask("sc-conductor", "superconductor", "db", "sync")
    flavors = requests.get(f"{site.endpoint}/flavors", timeout=PATIENCE).json()["flavors"]
    flavor = next(flavor["id"] for flavor in flavors if flavor["name"] == "m1.tiny")
    server = {"name": "web", "flavorRef": flavor, "imageRef": IMAGE}
    answer = requests.post(f"{site.endpoint}/servers", json={"server": server}, timeout=PATIENCE)
    assert answer.status_code == 202, answer.text
    uuid = answer.json()["server"]["id"]

    def status() -> str:
        return str(requests.get(f"{site.endpoint}/servers/{uuid}", timeout=PATIENCE).json()["server"]["status"])

    assert wait_until(lambda: status() == "ACTIVE", PATIENCE, 0.5), status()
    for pod in running:
        assert image.ask(pod.name, "id", "-u") == str(USER)
        assert image.stop(pod.name, pod.grace) == 0, f"{pod.name} was killed: {image.logs(pod.name)}"
