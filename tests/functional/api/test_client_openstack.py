"""The real ``openstack`` command against ``superconductor standalone``, as its users type it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.openstack_client import OpenStack, check_everything, needs_client

ROOT = Path(__file__).parents[3]
SERVING = re.compile(r"serving at (http://[^ ,]+)")


@contextmanager
def standalone(state: Path) -> Iterator[str]:
    """A deployment in a process of its own, two cells with a host each; yields its endpoint."""
    command = [sys.executable, "-m", "cli", "standalone", "--state", str(state), "--port", "0", "--hosts", "1"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := SERVING.search(line):
                    yield found[1]
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


@needs_client
@pytest.mark.timeout(900)
def test_the_openstack_client_boots_lists_shows_and_deletes(tmp_path: Path) -> None:
    with standalone(tmp_path) as endpoint:
        client = OpenStack(endpoint)
        group = client.json("server", "group", "create", "--policy", "anti-affinity", "apart")
        check_everything(client, group=group["id"])
