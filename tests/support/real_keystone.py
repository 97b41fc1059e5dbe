"""A real Keystone on loopback, on SQLite, with one worker: SQLite does not bear two."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import requests

from deploy import ports
from service.periodic import wait_until
from tests.support.client_programs import CLIENTS

PASSWORD = "keystone-admin-password"
REGION = "RegionOne"
START_TIMEOUT_S = 60.0

_CONFIGURATION = """
[DEFAULT]
log_file = {folder}/keystone.log
[database]
connection = sqlite:///{folder}/keystone.db
[token]
provider = fernet
allow_expired_window = 0
[fernet_tokens]
key_repository = {folder}/fernet
[fernet_receipts]
key_repository = {folder}/fernet
[credential]
key_repository = {folder}/credential
[identity]
password_hash_rounds = 4
"""
_APPLICATION = """
import sys
sys.argv = ["keystone"]
from keystone.server.wsgi import initialize_public_application
application = initialize_public_application()
"""


class RealKeystone:
    """Bootstrapped with the user ``admin``. ``url`` is its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._folder.mkdir(mode=0o700)
        port = ports.free_port()
        self.url = f"http://{ports.HOST}:{port}/v3"
        (self._folder / "keystone.conf").write_text(_CONFIGURATION.format(folder=self._folder))
        (self._folder / "application.py").write_text(_APPLICATION)
        for name in ("fernet", "credential"):
            (self._folder / name).mkdir(mode=0o700)
        owner = ("--keystone-user", str(os.getuid()), "--keystone-group", str(os.getgid()))
        self._manage("db_sync")
        self._manage("fernet_setup", *owner)
        self._manage("credential_setup", *owner)
        addresses = ("--bootstrap-public-url", self.url, "--bootstrap-region-id", REGION)
        self._manage("bootstrap", "--bootstrap-password", PASSWORD, *addresses)
        self._log = (self._folder / "server.log").open("w")
        server = ("-w", "1", "-k", "gthread", "--threads", "4", "-b", f"{ports.HOST}:{port}", "application:application")
        self._process = subprocess.Popen(
            [CLIENTS / "bin" / "gunicorn", *server], cwd=self._folder, env=self._environment(), stdout=self._log, stderr=self._log
        )

    def wait(self) -> None:
        """Until it answers."""
        assert wait_until(self._answers, START_TIMEOUT_S, 0.1), (self._folder / "server.log").read_text()

    def revoke(self, token: str) -> None:
        """Make the token invalid."""
        headers = {"X-Auth-Token": token, "X-Subject-Token": token}
        with requests.Session() as http:
            http.trust_env = False
            assert http.delete(f"{self.url}/auth/tokens", headers=headers, timeout=30).status_code == 204

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "server.log").read_text()
        try:
            with requests.Session() as http:
                http.trust_env = False
                return http.get(self.url, timeout=10).status_code == 200
        except requests.RequestException:
            return False

    def _environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "PYTHON"))}
        return clean | {
            "OS_KEYSTONE_CONFIG_FILES": str(self._folder / "keystone.conf"),
            "OS_KEYSTONE_CONFIG_DIR": str(self._folder),
        }

    def _manage(self, *words: str) -> None:
        command: Sequence[str] = (str(CLIENTS / "bin" / "keystone-manage"), "--config-file", str(self._folder / "keystone.conf"))
        done = subprocess.run([*command, *words], check=False, capture_output=True, text=True, env=self._environment())
        assert done.returncode == 0, f"{words}: {done.stderr}"
