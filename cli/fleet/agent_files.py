"""What an agent needs to log in to its cell's broker as its host: a file for the broker's tool, and one for the agent."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from objects import errors
from objects.base import Object
from rpc import agents
from service import private_files

AGENT = """\
# The agent of {host}: its cell's bus, by the broker user of this host, and no password of any database.

[DEFAULT]
transport_url = {bus}

[compute]
# Unique in the whole deployment, and never changed while the host has guests.
host = {host}
"""


class Login(Object, frozen=True, kw_only=True):
    """The broker user of one host on its cell's virtual host. ``bus``: the URL that the agent uses."""

    host: str
    vhost: str
    prefix: str
    password: str
    bus: str

    def __repr__(self) -> str:
        return f"Login({self.host})"

    @property
    def user_name(self) -> str:
        return agents.user_of(self.host, self.prefix)


def has_users(bus: str) -> bool:
    """Whether the bus is a broker's. The one inside a process has no users."""
    return bus.startswith("rabbit://")


def new_login(bus: str, host: str, prefix: str = "", password: str = "") -> Login:
    """A login for the agent of ``host`` on the broker of its cell's ``bus``, with a new password unless one is given.

    Raises Invalid for a name that no host can have.
    """
    parts = urlsplit(bus)
    vhost = unquote(parts.path[1:]) or "/"
    prefix, password = prefix or agents.prefix_of(vhost), password or secrets.token_hex(16)
    login = f"{quote(agents.user_of(host, prefix), safe='')}:{password}"
    addresses = ",".join(f"{login}@{address.rpartition('@')[2]}" for address in parts.netloc.split(","))
    return Login(host=host, vhost=vhost, prefix=prefix, password=password, bus=parts._replace(netloc=addresses).geturl())


def user_definitions(login: Login) -> dict[str, list[dict[str, str]]]:
    """The user, its password and its rights."""
    return agents.permission_definitions(login.vhost, login.host, login.password, login.prefix)


def users_text(login: Login) -> str:
    """The same as ``rabbitmqctl import_definitions`` reads it."""
    return json.dumps(user_definitions(login), indent=1) + "\n"


def password_before(file: Path) -> str:
    """The password in a file of ``users_text``; empty where there is none."""
    try:
        password = json.loads(file.read_text())["users"][0]["password"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return password if isinstance(password, str) else ""


def agent_text(login: Login, like: str | None = None) -> str:
    """The configuration of the agent: as another agent's is, but for its host and its bus, or these two alone.

    Raises Invalid where the other one's does not name both.
    """
    bus = login.bus.replace("$", "$$")  # a single $ would begin the name of another option
    if like is None:
        return AGENT.format(host=login.host, bus=bus)
    lines = like.splitlines()
    for option, value in (("transport_url", bus), ("host", login.host)):
        numbers = [number for number, line in enumerate(lines) if line.partition("=")[0].strip() == option]
        if len(numbers) != 1:
            raise errors.Invalid(f"--like: the file must have one line '{option} = ...', and has {len(numbers)}")
        lines[numbers[0]] = f"{option} = {value}"
    return "\n".join([*lines, ""])


def write_private(file: Path, text: str) -> None:
    """Only its owner may read it, from its first byte on; whoever reads it meanwhile sees the old file or the new one."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with private_files.open_own(new, os.O_WRONLY | os.O_EXCL, "w") as opened:
        opened.write(text)
    new.replace(file)
