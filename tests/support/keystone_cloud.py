"""A deployment with a real Keystone, made as ``docs/clients.md`` says, and ``openstack`` in the name of its users."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from images import spark
from service.periodic import wait_until
from tests.support import real_keystone
from tests.support.client_programs import PYTHON, ROOT
from tests.support.keystone_deployments import Deployment
from tests.support.openstack_forks import Forks
from tests.support.real_keystone import RealKeystone

IMAGE = "cirros"
"""Name of the one image in the store."""
USERS = {
    # user: project, role
    "root": ("alpha", "admin"),
    "alice": ("alpha", "member"),
    "rita": ("alpha", "reader"),
    "bob": ("beta", "member"),
    "nora": ("alpha", "service"),
}
"""The users beside ``admin``. Nora has a role that our policy gives nothing."""
SERVICE_PASSWORD = "service-user-password"


def options(keystone_url: str) -> dict[str, dict[str, str]]:
    """The configuration of an API that takes tokens of this Keystone, by group."""
    return {
        "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": {
            "www_authenticate_uri": keystone_url,
            "auth_url": keystone_url,
            "auth_type": "password",
            "username": "superconductor",
            "password": SERVICE_PASSWORD,
            "user_domain_id": "default",
            "project_name": "service",
            "project_domain_id": "default",
            "interface": "public",
            "token_cache_time": "-1",
        },
    }


def password_of(user: str) -> str:
    return real_keystone.PASSWORD if user == "admin" else f"password-of-{user}"


class Caller:
    """Runs ``openstack`` with these variables."""

    def __init__(self, forks: Forks, variables: Mapping[str, str]) -> None:
        self._forks = forks
        self.variables = dict(variables)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._forks.run(words, self.variables)

    def done(self, *words: str) -> str:
        """The output of a command that must succeed."""
        ran = self.run(*words)
        assert ran.returncode == 0, f"openstack {' '.join(words)}: {ran.stdout}{ran.stderr}"
        return ran.stdout.strip()

    def json(self, *words: str) -> Any:
        return json.loads(self.done(*words, "-f", "json"))

    def refused(self, *words: str) -> str:
        """What a command says that must fail, without a trace."""
        ran = self.run(*words)
        assert ran.returncode == 1, f"openstack {' '.join(words)}: {ran.returncode} {ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stderr.strip()

    def status(self, server: str) -> str:
        return self.done("server", "show", server, "-f", "value", "-c", "status")

    def program(self, command: list[str], timeout: float = 280.0, **more: str) -> str:
        """The output of another program with the same variables, which must succeed."""
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=self.variables | more, timeout=timeout, cwd=ROOT
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-6000:]}{done.stderr[-6000:]}"
        return done.stdout


class KeystoneCloud:
    """``deployment``: not started yet. Close it at the end."""

    def __init__(self, folder: Path, deployment: Deployment) -> None:
        self.folder = folder
        self.deployment = deployment
        self.root = deployment.root
        self.kept: dict[str, str] = {}
        """What tests keep for those after them."""
        self.forks = Forks(PYTHON)
        self.keystone = RealKeystone(folder / "keystone")
        try:
            self.keystone.wait()
            self.admin = self.caller("admin", "admin")
            self._fill()
            self._start()
        except BaseException:
            self.close()
            raise

    def caller(self, user: str, project: str | None = None) -> Caller:
        """``openstack`` of this user, by password. ``project``: by name; None: the user's."""
        return Caller(
            self.forks,
            self.anonymous
            | {
                "OS_USERNAME": user,
                "OS_PASSWORD": password_of(user),
                "OS_PROJECT_NAME": project or USERS[user][0],
                "OS_USER_DOMAIN_ID": "default",
                "OS_PROJECT_DOMAIN_ID": "default",
            },
        )

    def with_credential(self, credential: Mapping[str, str]) -> Caller:
        """``openstack`` with an application credential, as ``application credential create`` shows it."""
        shown = {name.lower(): value for name, value in credential.items()}
        more = {
            "OS_AUTH_TYPE": "v3applicationcredential",
            "OS_APPLICATION_CREDENTIAL_ID": shown["id"],
            "OS_APPLICATION_CREDENTIAL_SECRET": shown["secret"],
        }
        return Caller(self.forks, self.anonymous | more)

    def with_token(self, token: str) -> Caller:
        """``openstack`` that sends this token, whatever it is worth."""
        more = {"OS_AUTH_TYPE": "admin_token", "OS_ENDPOINT": f"{self.root}/v2.1", "OS_TOKEN": token} | {
            "OS_IDENTITY_ENDPOINT_OVERRIDE": self.keystone.url
        }
        return Caller(self.forks, {k: v for k, v in self.anonymous.items() if k != "OS_AUTH_URL"} | more)

    @property
    def anonymous(self) -> dict[str, str]:
        """The environment that all callers share."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "PYTHON"))}
        return clean | {
            "OS_AUTH_URL": self.keystone.url,
            "OS_IDENTITY_API_VERSION": "3",
            "OS_REGION_NAME": real_keystone.REGION,
            "NO_PROXY": "127.0.0.1,localhost",
            "LC_ALL": "C.UTF-8",
        }

    def close(self) -> None:
        self.deployment.close()
        self.keystone.close()
        self.forks.close()

    def _fill(self) -> None:
        """Projects, users, roles and the catalog."""
        done = self.admin.done
        done("project", "create", "service")
        for project in ("alpha", "beta"):
            done("project", "create", project)
        done("user", "create", "superconductor", "--project", "service", "--password", SERVICE_PASSWORD)
        done("role", "add", "--project", "service", "--user", "superconductor", "service")
        for user, (project, role) in USERS.items():
            done("user", "create", user, "--password", password_of(user))
            done("role", "add", "--project", project, "--user", user, role)
        for kind, path in (("compute", "/v2.1"), ("image", "/image"), ("network", "/network")):
            done("service", "create", "--name", f"superconductor-{kind}", kind)
            done("endpoint", "create", "--region", real_keystone.REGION, kind, "public", f"{self.root}{path}")

    def _start(self) -> None:
        self.deployment.start(options(self.keystone.url))
        spark.write_disk(self.folder / "disk")
        disk = str(self.folder / "disk")
        self.deployment.add_image(disk, "--name", IMAGE, "--id", spark.IMAGE_ID, "--disk-format", "raw")

    def settled(self, caller: Caller, server: str, status: str) -> bool:
        """Wait until the server has this status, or ERROR."""
        seen: list[str] = []

        def done() -> bool:
            seen.append(caller.status(server))
            return seen[-1] in (status, "ERROR")

        return wait_until(done, 120, 0.2) and seen[-1] == status
