"""The deployment that a command works on: its API database and cells, found from the command line or the configuration."""

from __future__ import annotations

import argparse
import os
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from objects import errors

if TYPE_CHECKING:  # imported where they are used: a usage error or a help text should not wait for them
    from oslo_config import cfg

    from cells.opts import RegistrySettings
    from cells.registry import CellRegistry
    from cells.template import Local
    from db.sql.engine import ApiDatabase
    from images.store import FolderStore

CONFIG_VARIABLE = "SUPERCONDUCTOR_CONFIG"
"""Environment variable that names configuration files or folders of them, separated as in PATH."""


class Deployment:
    """Opens what a command asks for, once, and closes it at the end. Databases only: commands never use a bus."""

    def __init__(self, options: argparse.Namespace, environment: os._Environ[str] | dict[str, str] = os.environ) -> None:
        self._options = options
        self._environment = environment

    @cached_property
    def state(self) -> Path | None:
        """The folder given with --state."""
        return Path(self._options.state).absolute() if self._options.state else None

    @cached_property
    def api_url(self) -> str:
        """URL of the API database. Raises Misconfigured where none is named."""
        if self.state is not None:
            return f"sqlite:///{self.state / 'api.db'}"
        url: str | None = self.conf.api_database.connection
        if not url:
            raise errors.Misconfigured(
                "No API database is named: give --state DIR, or a --config-file with 'connection' in [api_database]"
                f" (or name the file in {CONFIG_VARIABLE})"
            )
        return url

    @cached_property
    def api_database(self) -> ApiDatabase:
        from db.sql.engine import ApiDatabase

        return ApiDatabase(self.api_url, name="api", outbox=self.notifying)

    @cached_property
    def registry(self) -> CellRegistry:
        """The cells, without their buses."""
        from cells.registry import CellRegistry, open_database

        opened = partial(open_database, outbox=self.notifying)
        return CellRegistry(self.api_database, self.registry_settings, open_database=opened, open_bus=lambda _: None)

    @property
    def notifying(self) -> bool:
        """Whether what commands change is to be told. Conductors send it."""
        from service import notifications

        return self.state is None and notifications.settings(self.conf).on

    @cached_property
    def registry_settings(self) -> RegistrySettings:
        """How patient commands are with cells, and what URL templates are filled in from."""
        from cells import opts
        from cells.template import Local

        settings = opts.settings(self.conf)
        return settings if self.state is None else replace(settings, local=Local(database_url=self.api_url))

    @property
    def images(self) -> FolderStore | None:
        """The image store; None if there is none."""
        from images import opts
        from images.store import open_store

        return open_store(str(self.state / "images") if self.state is not None else opts.folder(self.conf))

    @property
    def local(self) -> Local:
        """What URL templates of cells are filled in from."""
        return self.registry_settings.local

    @cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration. Raises Misconfigured."""
        from api.opts import QUOTA_GROUP, QUOTAS
        from cells import opts
        from images import opts as image_opts
        from service import config
        from service.opts import API_BUS, API_DATABASE, BUS

        ours = [(None, [BUS, API_BUS]), ("api_database", [API_DATABASE]), (QUOTA_GROUP, QUOTAS)]
        return config.load(self.arguments, ours, opts.list_opts(), image_opts.list_opts(), files=[] if self.state else None)

    def close(self) -> None:
        """Close what was opened."""
        for name in ("registry", "api_database"):
            opened = self.__dict__.get(name)  # where cached_property keeps what was asked for
            if opened is not None:
                opened.close() if name == "registry" else opened.dispose()

    @property
    def arguments(self) -> list[str]:
        """The files and folders that were named, on the command line or else in the environment, as arguments of a process."""
        files, folders = list(self._options.config_file), list(self._options.config_dir)
        if not files and not folders and self.state is None:
            named = [Path(p) for p in self._environment.get(CONFIG_VARIABLE, "").split(os.pathsep) if p]
            files, folders = [str(p) for p in named if not p.is_dir()], [str(p) for p in named if p.is_dir()]
        return [f"--config-file={file}" for file in files] + [f"--config-dir={folder}" for folder in folders]
