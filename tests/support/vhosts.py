"""Virtual hosts of a real RabbitMQ, through its own tool: each call starts an Erlang machine, so one call does many."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence

from rpc import agents

CTL_VARIABLE = "SC_TEST_RABBIT_CTL"
"""The command that administers the broker of SC_TEST_RABBIT_URL where it is not the rabbitmqctl of this machine."""


def create(names: Sequence[str], user: str) -> None:
    """Make the virtual hosts, with all permissions on them for the user. Raises LookupError, which says why not."""
    rights = {"user": user, "configure": ".*", "write": ".*", "read": ".*"}
    definitions = {"vhosts": [{"name": name} for name in names], "permissions": [{**rights, "vhost": name} for name in names]}
    ctl("import_definitions", said=json.dumps(definitions))


def delete(names: Sequence[str]) -> None:
    """Delete those of the virtual hosts that exist. Raises LookupError."""
    if names:
        listed = ", ".join(f'<<"{name}">>' for name in names)
        ctl("eval", f'[catch rabbit_vhost:delete(Name, <<"tests">>) || Name <- [{listed}]].')


def every() -> list[str]:
    """The names of all virtual hosts. Raises LookupError."""
    return ctl("list_vhosts", "name", "--no-table-headers").split()


def create_users(names: Sequence[str], password: str, vhost: str) -> None:
    """Make users with all permissions on the virtual host. Raises LookupError."""
    by = '<<"tests">>'
    made = [
        f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{password}">>, {by}), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"{vhost}">>, <<".*">>, <<".*">>, <<".*">>, {by})'
        for name in names
    ]
    ctl("eval", f"{', '.join(made)}.")


def create_agents(hosts: Sequence[str], password: str, vhost: str) -> None:
    """Make the user of each host, with what an agent may do on the virtual host and no more. Raises LookupError."""
    made = [agents.permission_definitions(vhost, host, password) for host in hosts]
    ctl("import_definitions", said=json.dumps({kind: [entry for each in made for entry in each[kind]] for kind in made[0]}))


def delete_users(names: Sequence[str]) -> None:
    """Delete those of the users that exist; the broker cuts their connections. Raises LookupError."""
    listed = ", ".join(f'<<"{name}">>' for name in names)
    ctl("eval", f'[catch rabbit_auth_backend_internal:delete_user(Name, <<"tests">>) || Name <- [{listed}]].')


def ctl(*arguments: str, said: str = "") -> str:
    """What rabbitmqctl says. Raises LookupError."""
    command = os.environ.get(CTL_VARIABLE) or shutil.which("rabbitmqctl", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if command is None:
        raise LookupError("there is no rabbitmqctl to make a virtual host with")
    try:
        done = subprocess.run([command, "-q", *arguments], input=said, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookupError(f"rabbitmqctl {arguments[0]} failed: {error}") from None
    if done.returncode:
        raise LookupError(f"rabbitmqctl {arguments[0]} failed: {(done.stdout + done.stderr).strip()[:200]}")
    return done.stdout
