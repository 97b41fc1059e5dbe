"""``superconductor secrets``: keys for user data and passwords of tenants. No other command prints a key."""

from __future__ import annotations

import argparse

from cells import administration
from cli.shared.base import Admin
from cli.standalone import key_file
from objects import errors
from service.opts import KEYS
from service.vault import OPTION, Vault, new_key


class SecretsNew(Admin):
    """Print a new master key, for 'keys' in [secrets] of the API's and the super conductors' configuration.

    To change keys, put the new one first and keep the old one behind it: in the cells' conductors (see 'secrets derive'), then in
    the super conductors, then in the API. Take the old one out when no build is left that began with it.

    Example: superconductor secrets new
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        print(new_key(), file=self.app.stdout)


class SecretsCell(Admin):
    """Print the keys for [secrets] of a cell's conductors. They are derived from the master keys and open that cell's secrets only.

    Example: superconductor secrets derive east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cell", metavar="CELL", help="name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        vault = Vault(self._read_keys())
        if not vault.can_seal:
            raise errors.Misconfigured(f"{OPTION}: no master key is configured here; 'superconductor secrets new' makes one")
        mapping = administration.find_cell(self.deployment.api_database, parsed_args.cell)
        if mapping.is_cell0:
            raise errors.Invalid("cell0 has no conductor and builds nothing: it needs no keys")
        print(f"keys = {','.join(vault.keys_of(mapping.uuid))}", file=self.app.stdout)

    def _read_keys(self) -> list[str]:
        if self.deployment.state_folder is not None:
            return key_file.read(self.deployment.state_folder)
        conf = self.deployment.loaded_conf
        conf.register_opts([KEYS], group="secrets")
        return list(conf.secrets["keys"])  # the attribute of that name is a method of the group
