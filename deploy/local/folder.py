"""The folder of one region: where its files are, what is remembered of it, and who works on it."""

from __future__ import annotations

import configparser
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from deploy import ports
from deploy.local.shape import Member, Shape
from objects import errors, typed
from objects.base import Object
from service import private_files

BROKER = "rabbitmq"
DATABASE = "database"
"""Folders of the servers."""


class Notes(Object, frozen=True, kw_only=True):
    """What is remembered of a region in ``region.json``: what it consists of, and ports, which its files and databases name too.

    ``monitoring_ports``: where each member tells metrics and health, in their order in ``shape.members()``; none: nobody does.
    ``made``: it has its databases, cells and files. Until then there is nothing in it to keep.
    """

    shape: Shape
    broker_port: int
    database_port: int
    api_ports: tuple[int, ...]
    monitoring_ports: tuple[int, ...] = ()
    console_ports: tuple[int, ...] = ()
    made: bool = False

    def api_endpoints(self) -> tuple[str, ...]:
        """Where the APIs answer."""
        return tuple(f"http://{ports.HOST}:{port}/v2.1" for port in self.api_ports)

    def serial_url(self) -> str:
        """Where users reach the first console proxy; empty: there is none."""
        return f"ws://{ports.HOST}:{self.console_ports[0]}/" if self.console_ports else ""

    def monitored_ports(self) -> dict[str, int]:
        """By the name of each member the port of its metrics and its health. What a command forks is not monitored."""
        members = [member for member in self.shape.list_members() if not member.forks]
        return {member.name: port for member, port in zip(members, self.monitoring_ports, strict=False)}


class Folder:
    """Paths of a region: configuration, a log and a pid file for each process, guests. Nothing is made by looking at them."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.etc = self.path / "etc"
        self.log = self.path / "log"
        self.run = self.path / "run"
        self.hosts = self.path / "hosts"
        self.images = self.path / "images"

    def read_notes(self) -> Notes:
        """Raises errors.NotFound where no region was ever begun, errors.Misconfigured for notes that cannot be read."""
        file = self.path / "region.json"
        try:
            return typed.decode_json(file.read_bytes(), Notes)
        except FileNotFoundError:
            raise errors.NotFound(f"There is no region in {self.path}: 'make region STATE={self.path}' makes one.") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise errors.Misconfigured(f"{file} cannot be read ({error}): choose another folder for a new region.") from None

    def write_notes(self, notes: Notes) -> None:
        self.write("region.json", msgspec.json.format(msgspec.json.encode(notes)).decode() + "\n")

    def clear_leftovers(self) -> None:
        """Remove what a region that was never made has left."""
        for name in ("etc", "log", "run", "hosts", "images", BROKER, DATABASE):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def make_folders(self) -> None:
        """Make the folders that are missing. Raises errors.Misconfigured where that cannot be done."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            private_files.hide_from_git(self.path)
            for folder in (self.etc, self.log, self.run, self.hosts, self.images):
                private_files.own_folder(folder)
        except OSError as error:
            raise errors.Misconfigured(f"{self.path} cannot hold a region: {error.strerror}; choose another folder.") from None

    def write(self, name: str, text: str) -> None:
        """A file of the folder that only its owner may read; whoever reads it meanwhile sees the old one or the new one."""
        path = self.path / name
        new = path.with_name(f".{path.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
        new.replace(path)

    def log_of(self, member: Member) -> Path:
        return self.log / f"{member.name}.log"

    def database_url(self, name: str, /) -> str:
        """URL of the database ``api``, from the file of the API level. Raises errors.Misconfigured where that names none."""
        if name != "api":
            raise ValueError(f"{name} is known to the cell mappings only")
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(self.etc / "api.conf")
            return parser["api_database"]["connection"]
        except (KeyError, configparser.Error):
            raise errors.Misconfigured(f"{self.etc / 'api.conf'} names no connection in [api_database].") from None

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """While inside, no other command starts or stops what is here. Raises errors.Conflict, naming the one that is at work."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = private_files.open_own(self.path / "lock", os.O_RDWR | os.O_APPEND, "a+")
        except OSError as error:
            raise errors.Misconfigured(f"{self.path} cannot hold a region: {error.strerror}; choose another folder.") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                owner = lock.read().strip() or "unknown"
                raise errors.Conflict(f"Process {owner} is at work on the region in {self.path}: wait for it, or end it.") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield
