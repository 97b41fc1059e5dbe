"""The deployment that a command works on: its API database and cells, found from the command line or the configuration."""

from __future__ import annotations

import argparse
import logging
import os
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cli.shared import running
from cli.shared.endpoint import ENDPOINT, named_endpoint, usual_endpoint
from objects import errors

if TYPE_CHECKING:  # imported where they are used: a usage error or a help text should not wait for them
    from oslo_config import cfg

    from cells.opts import RegistrySettings
    from cells.registry import CellRegistry
    from cells.template import Local
    from db.sql.engine import ApiDatabase
    from images.store import FolderStore

LOG = logging.getLogger(__name__)

CONFIG_VARIABLE = "SUPERCONDUCTOR_CONFIG"
"""Environment variable that names configuration files or folders of them, separated as in PATH."""
STATE_VARIABLE = "SUPERCONDUCTOR_STATE"
"""Environment variable that names the state folder of an all-in-one."""

CONFIGURING = ("OS_API_DATABASE__CONNECTION", "OS_IMAGES__FOLDER")
"""Environment variables of options that say where a deployment is."""


class Deployment:
    """Opens what a command asks for, once, and closes it at the end. Databases only: commands never use a bus."""

    def __init__(self, options: argparse.Namespace, environment: os._Environ[str] | dict[str, str] = os.environ) -> None:
        self._options = options
        self._environment = environment

    @cached_property
    def named_state(self) -> Path | None:
        """The state folder that the command line names, or else the environment. Files on the command line come before that."""
        name = self._options.state
        if not name and not self._options.config_file and not self._options.config_dir:
            name = self._environment.get(STATE_VARIABLE)
        return Path(name).absolute() if name else None

    @cached_property
    def state_folder(self) -> Path | None:
        """The folder of the all-in-one that is meant.

        Where neither a folder nor a configuration is named, and none is in the usual places: that of the standalone of this user
        that serves at the usual endpoint.
        """
        if self.named_state is not None or self.config_arguments or self._is_configured:
            return self.named_state
        standalone = running.find_standalone(usual_endpoint(self._environment), self._environment)
        if standalone is None:
            return None
        LOG.info("using the standalone at %s, with its state in %s", standalone.endpoint, standalone.state)
        return standalone.state

    @property
    def api_endpoint(self) -> str:
        """Where the API is: by the environment, or else of the standalone in the named folder, or else by default."""
        named = named_endpoint(self._environment)
        standalone = (
            running.find_in(self.named_state, self._environment) if named is None and self.named_state is not None else None
        )
        return named or (standalone.endpoint if standalone is not None else ENDPOINT)

    def own_endpoint(self) -> str:
        """``api_endpoint``. Raises Misconfigured where the standalone there has another folder than the one that is named."""
        endpoint, state = self.api_endpoint, self.named_state
        standalone = running.find_standalone(endpoint, self._environment)
        if named_endpoint(self._environment) is None and state is not None and standalone is not None and standalone.state != state:
            raise errors.Misconfigured(
                f"No standalone of yours serves the folder {state}: the one at {endpoint} has {standalone.state}. "
                f"Run 'superconductor standalone --state {state}', or name an API with --endpoint."
            )
        return endpoint

    @property
    def _is_configured(self) -> bool:
        """Whether there is a configuration that nobody has named."""
        from oslo_config import cfg

        from service import config

        files, folders = (find(config.PROJECT) for find in (cfg.find_config_files, cfg.find_config_dirs))
        return bool(files or folders) or any(name in self._environment for name in CONFIGURING)

    @cached_property
    def api_url(self) -> str:
        """URL of the API database. Raises Misconfigured where none is named."""
        if self.state_folder is not None:
            return f"sqlite:///{self.state_folder / 'api.db'}"
        url: str | None = self.loaded_conf.api_database.connection
        if not url:
            raise errors.Misconfigured(
                "No API database is named: give --state DIR, or a --config-file with 'connection' in [api_database]"
                f" (environment: {STATE_VARIABLE}, {CONFIG_VARIABLE}). {self._none_runs()}"
            )
        return url

    def _none_runs(self) -> str:
        """That no standalone was found, and which would be with its endpoint."""
        others = " and ".join(f"at {standalone.endpoint}" for standalone in running.find_all(self._environment))
        hint = f"; yours run {others}: name one in SUPERCONDUCTOR_ENDPOINT" if others else ""
        return f"No standalone of yours serves at {usual_endpoint(self._environment)}{hint}."

    @cached_property
    def api_database(self) -> ApiDatabase:
        from db.sql.engine import ApiDatabase

        return ApiDatabase(self.api_url, name="api", outbox=self.is_notifying)

    @cached_property
    def cell_registry(self) -> CellRegistry:
        """The cells, without their buses."""
        from cells.registry import CellRegistry, open_database

        opened = partial(open_database, outbox=self.is_notifying)
        return CellRegistry(self.api_database, self.registry_settings, open_database=opened, open_bus=lambda _: None)

    @property
    def is_notifying(self) -> bool:
        """Whether what commands change is to be told. Conductors send it."""
        from service import notifications

        return self.state_folder is None and notifications.read_settings(self.loaded_conf).is_on

    @cached_property
    def registry_settings(self) -> RegistrySettings:
        """How patient commands are with cells, and what URL templates are filled in from."""
        from cells import opts
        from cells.template import Local

        settings = opts.read_settings(self.loaded_conf)
        return settings if self.state_folder is None else replace(settings, local=Local(database_url=self.api_url))

    @property
    def image_store(self) -> FolderStore | None:
        """The image store; None if there is none."""
        from images import opts
        from images.store import open_store

        return open_store(
            str(self.state_folder / "images") if self.state_folder is not None else opts.read_folder(self.loaded_conf)
        )

    @property
    def local_values(self) -> Local:
        """What URL templates of cells are filled in from."""
        return self.registry_settings.local

    @cached_property
    def loaded_conf(self) -> cfg.ConfigOpts:
        """The configuration. Raises Misconfigured."""
        from api.opts import QUOTA_GROUP, QUOTAS
        from cells import opts
        from images import opts as image_opts
        from service import config
        from service.opts import API_BUS, API_DATABASE, BUS

        ours = [(None, [BUS, API_BUS]), ("api_database", [API_DATABASE]), (QUOTA_GROUP, QUOTAS)]
        return config.load_options(
            self.config_arguments, ours, opts.list_opts(), image_opts.list_opts(), files=[] if self.state_folder else None
        )

    def close(self) -> None:
        """Close what was opened."""
        for name in ("registry", "api_database"):
            opened = self.__dict__.get(name)  # where cached_property keeps what was asked for
            if opened is not None:
                opened.close() if name == "registry" else opened.dispose_connections()

    @property
    def config_arguments(self) -> list[str]:
        """The files and folders that were named, on the command line or else in the environment, as arguments of a process."""
        files, folders = list(self._options.config_file), list(self._options.config_dir)
        if not files and not folders and self.named_state is None:
            named = [Path(p) for p in self._environment.get(CONFIG_VARIABLE, "").split(os.pathsep) if p]
            files, folders = [str(p) for p in named if not p.is_dir()], [str(p) for p in named if p.is_dir()]
        return [f"--config-file={file}" for file in files] + [f"--config-dir={folder}" for folder in folders]
