"""Where ``ci/clients.py`` puts clients of the Compute API and a real identity service."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / ".venv-clients"
"""The environment of ``openstack``, openstacksdk, novaclient and Keystone."""
ANSIBLE = ROOT / ".venv-ansible"
"""The environment of Ansible with ``openstack.cloud``."""
PYTHON = CLIENTS / "bin" / "python"
MISSING = "needs the clients: make test STAGES=clients"


def missing() -> bool:
    """Whether they have not been installed."""
    return not all((folder / ".installed").exists() for folder in (CLIENTS, ANSIBLE))
