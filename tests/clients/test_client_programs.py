"""Programs that use client libraries: openstacksdk, novaclient, Ansible."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.client_programs import ANSIBLE, PYTHON
from tests.support.keys import ED25519
from tests.support.keystone_cloud import IMAGE, KeystoneCloud

PROGRAMS = Path(__file__).parent / "programs"
FLAVOR = "m1.tiny"


def test_openstacksdk(cloud: KeystoneCloud) -> None:
    cloud.caller("root").program([str(PYTHON), str(PROGRAMS / "sdk_script.py"), IMAGE, FLAVOR])


def test_novaclient(cloud: KeystoneCloud) -> None:
    cloud.caller("root").program([str(PYTHON), str(PROGRAMS / "novaclient_script.py"), IMAGE, FLAVOR])


def playbook(cloud: KeystoneCloud, name: str) -> int:
    """Run it as a member; how many of its tasks have changed something."""
    values = (f"image={IMAGE}", f"flavor={FLAVOR}", f"public_key='{ED25519}'")
    command = [
        str(ANSIBLE / "bin" / "ansible-playbook"),
        str(PROGRAMS / name),
        *(word for value in values for word in ("-e", value)),
    ]
    said = cloud.caller("alice").program(command, HOME=str(cloud.folder), ANSIBLE_NOCOLOR="1")
    found = re.search(r"changed=(\d+)", said)
    assert found, said
    return int(found[1])


def test_ansible_makes_a_server_once_and_removes_it(cloud: KeystoneCloud) -> None:
    assert playbook(cloud, "playbook.yml") == 2
    assert playbook(cloud, "playbook.yml") == 0
    assert playbook(cloud, "playbook_away.yml") == 2
    assert playbook(cloud, "playbook_away.yml") == 0
