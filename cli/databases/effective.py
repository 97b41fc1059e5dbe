"""The configuration that processes would read: each option's value, where it comes from, and names in files that no option has."""

from __future__ import annotations

import configparser
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from oslo_config import cfg

import api.console_opts
import api.http.keystone
import api.opts
import cells.opts
import compute.opts
import conductor.opts
import images.glance
import images.opts
import scheduler.opts
import service.opts
from compute import drivers
from objects import errors
from objects.base import Object
from objects.mask import HIDDEN, mask_url
from service import config
from service.config import Listing

_VARIABLE = re.compile(r"OS_([A-Z0-9_]+?)__([A-Z0-9_]+)")

ROLES: dict[str, tuple[Listing, ...]] = {
    "api": (
        service.opts.list_opts(),
        api.opts.list_opts(),
        api.console_opts.list_opts(),
        cells.opts.list_opts(),
        images.opts.list_opts(),
        api.http.keystone.list_opts(),
    ),
    "console-proxy": (service.opts.list_opts(), api.console_opts.list_opts()),
    "conductor": (service.opts.list_opts(), conductor.opts.list_opts(), cells.opts.list_opts(), images.opts.list_opts()),
    "scheduler": (service.opts.list_opts(), scheduler.opts.list_opts(), cells.opts.list_opts()),
    "compute": (
        service.opts.list_opts(),
        compute.opts.list_opts(),
        service.upgrade_levels.list_opts(),
        images.opts.list_opts(),
        images.glance.list_opts(),
    ),
}
"""The options that the processes of each role read, besides those of logging."""


class Setting(Object, frozen=True, kw_only=True):
    """One option. ``value`` is fit to be shown; ``source`` is a file, a variable, or "default"."""

    group: str
    name: str
    value: Any
    source: str

    @property
    def is_set(self) -> bool:
        return self.source != "default"


class Effective:
    """The configuration of one role, or of all of them, as files, environment and defaults make it.

    Of the hypervisor drivers it knows the options of the one that is configured. Raises errors.Misconfigured for a file that cannot
    be read and a value that does not fit.
    """

    def __init__(self, arguments: Sequence[str], role: str | None = None) -> None:
        self._listings = [*(listing for name in ROLES if role in (None, name) for listing in ROLES[name]), _logging_options()]
        self._of_driver = drivers.options_of(config.load_options(arguments, compute.opts.list_opts()).compute.driver)
        if role in (None, "compute"):
            self._listings.append(self._of_driver)
        self.conf = config.load_options(arguments, *self._listings)
        self.files = [_ConfigFile(path) for path in _config_paths(self.conf)]

    def list_settings(self) -> list[Setting]:
        """Every option once, by group and name."""
        options = {
            (group or "DEFAULT", option.dest): option
            for listing in self._listings
            for group, listed in listing
            for option in listed
        }
        return [self._read_setting(group, options[group, name]) for group, name in sorted(options)]

    def list_strangers(self) -> list[str]:
        """A sentence for each name in the files, and each variable of the environment, that no option of any role has."""
        known = _known_options(self._of_driver)
        sentences = [
            file.sentence_of(_stranger_sentence(section, name, known))
            for file in self.files
            for section, name in file.list_strangers(known)
        ]
        return sentences + list(_strange_variables(known))

    def list_exposed(self) -> list[str]:
        """A sentence for each file that holds secrets and can be read by everybody on the machine."""
        secret = {
            (group or "DEFAULT", option.dest)
            for listing in self._listings
            for group, listed in listing
            for option in listed
            if option.secret
        }
        return [
            f"{file.path}: holds secrets and can be read by everybody here; chmod o-rwx"
            for file in self.files
            if file.path.stat().st_mode & 0o004 and any(_secret_in(file.values.get(option)) for option in secret)
        ]

    def _read_setting(self, group: str, option: cfg.Opt) -> Setting:
        value = self.conf[option.dest] if group == "DEFAULT" else self.conf[group][option.dest]
        return Setting(group=group, name=option.dest, value=mask_value(option, value), source=self._source_of(group, option))

    def _source_of(self, group: str, option: cfg.Opt) -> str:
        info = self.conf.get_location(option.dest, None if group == "DEFAULT" else group)
        if info is None or not info.location.is_user_controlled:
            return "default"
        if info.location is cfg.Locations.environment:
            return f"environment {_variable_of(group, option.dest)}"
        if info.location is cfg.Locations.command_line:
            return "command line"
        names = {(group, option.name), (group, option.dest), *((d.group or group, d.name) for d in option.deprecated_opts)}
        return next((str(file.path) for file in reversed(self.files) if names & file.values.keys()), "a file")


class _ConfigFile:
    """What one file gives to which option, in the order of the configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(path), sections).parse()
        self._sections = sections
        self.values = {(_group_of(section), name): values for section, named in sections.items() for name, values in named.items()}

    def list_strangers(self, known: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Sections as such where the whole group is unknown: then its options are as well."""
        groups = {group for group, _ in known}
        for section, named in self._sections.items():
            if _group_of(section) not in groups:
                yield section, ""
            else:
                yield from (
                    (_group_of(section), name) for name in named if (_group_of(section), name.replace("-", "_")) not in known
                )

    def sentence_of(self, problem: str) -> str:
        return f"{self.path}: {problem}"


def mask_value(option: cfg.Opt, value: Any) -> Any:
    """The value without its secrets: of a secret option nothing but what a URL says besides its password."""
    if isinstance(value, list | tuple):
        return [mask_value(option, item) for item in value] if not option.secret else HIDDEN if value else []
    if isinstance(value, dict):
        return {key: mask_value(option, item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if not option.secret or value == "":
        return mask_url(value)
    return mask_url(value) if "://" in value and not re.search(r"\s", value) else HIDDEN


def _config_paths(conf: cfg.ConfigOpts) -> list[Path]:
    """All files that were read, weakest first."""
    folders = [Path(folder) for folder in conf.config_dir or ()]
    files = [Path(file) for file in conf.config_file or ()]
    return files + [file for folder in folders for file in sorted(folder.glob("*.conf"))]


def _logging_options() -> Listing:
    """The options of oslo.log, as its entry point for the sample's generator lists them."""
    (entry_point,) = metadata.entry_points(group="oslo.config.opts", name="oslo.log")
    listing: Listing = entry_point.load()()
    return listing


def _known_options(more: Listing) -> set[tuple[str, str]]:
    known = set()
    for listing in (*(listing for listings in ROLES.values() for listing in listings), _logging_options(), more):
        for group, options in listing:
            for option in options:
                known |= {(group or "DEFAULT", option.dest)}
                known |= {
                    (old.group or group or "DEFAULT", (old.name or option.dest).replace("-", "_")) for old in option.deprecated_opts
                }
    return known


def _stranger_sentence(section: str, name: str, known: set[tuple[str, str]]) -> str:
    """What is wrong with a name, and which one was perhaps meant."""
    if not name:
        near = difflib.get_close_matches(section, sorted({group for group, _ in known}), 1)
        return f"no options are in a group [{section}]" + (f"; perhaps [{near[0]}]" if near else "")
    elsewhere = sorted(group for group, option in known if option == name)
    near = difflib.get_close_matches(name, sorted(option for group, option in known if group == section), 1)
    hint = f"; perhaps {near[0]}" if near else f"; perhaps in [{elsewhere[0]}]" if elsewhere else ""
    return f"[{section}] has no option {name}{hint}"


def _strange_variables(known: set[tuple[str, str]]) -> Iterator[str]:
    variables = {_variable_of(group, name) for group, name in known}
    for name in sorted(os.environ):
        if _VARIABLE.fullmatch(name) and name not in variables:
            near = difflib.get_close_matches(name, sorted(variables), 1)
            yield f"environment: no option is set by {name}" + (f"; perhaps {near[0]}" if near else "")


def _variable_of(group: str, name: str) -> str:
    return f"OS_{group.upper()}__{name.upper()}"


def _group_of(section: str) -> str:
    return section if section == configparser.DEFAULTSECT else section.lower()


def _secret_in(values: list[str] | None) -> bool:
    """Whether a secret option really holds one: a URL without a password does not."""
    return any(value and ("://" not in value or mask_url(value) != value) for value in values or ())


def check_role(role: str, conf: cfg.ConfigOpts) -> str:
    """Try what a process of that role would look at before it starts; return what it would be. Raises errors.Misconfigured."""
    from api.process import check_callers
    from cells import api_level
    from service.vault import Vault

    if role == "api":  # whose own plan would listen
        api_level.check_config(conf)
        check_callers(conf)
        vault = Vault(conf.secrets["keys"])
        return "api" if vault.can_seal else "api, without admin passwords and user data: [secrets] keys is empty"
    if role == "conductor":
        from conductor.process import roles_of

        roles = roles_of(conf)
        description = f"conductor of {' and '.join({'super': 'the API level', 'cell': 'a cell'}[name] for name in roles)}"
        if "cell" in roles and conf.conductor.agent_users == "shared" and not conf.transport_url.startswith("embedded://"):
            description += (
                ", which does not tell its hosts apart where their agents share a broker user: [conductor] agent_users = shared"
            )
        return description
    if role == "scheduler":
        from scheduler import process as scheduler_process

        scheduler_process.read_plan(conf)
    elif role == "console-proxy":  # likewise
        from api import console_opts
        from api.consoles import process
        from service.opts import required_option

        required_option(conf, "api_database.connection", "the URL of the API database")
        process.load_proxy().tls_context(console_opts.read_proxy_settings(conf))
    elif role == "compute":
        from compute import process as compute_process

        compute_process.read_plan(conf)
    else:
        raise errors.Invalid(f"--role: {role!r} is none of {', '.join(ROLES)}")
    return role
