"""Read configuration into a ``ConfigOpts`` of its own: no process-wide CONF, so many can live side by side in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from oslo_config import cfg

from objects import errors
from service import logs

PROJECT = "superconductor"

Listing = Sequence[tuple[str | None, Sequence[cfg.Opt]]]
"""What ``opts.list_opts()`` of each component returns: option groups (None: DEFAULT) with their options."""


def load_options(
    argv: Sequence[str],
    *listings: Listing,
    files: Sequence[str | Path] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> cfg.ConfigOpts:
    """Return the options of ``listings`` and of logging with their values. Every value has been validated.

    Sources, from weakest to strongest:
    - the options' defaults;
    - ``files`` in order (None: ``superconductor.conf`` and the folder ``superconductor.conf.d`` in ``~/.superconductor`` or
      ``/etc/superconductor``);
    - environment variables named ``OS_GROUP__OPTION``;
    - ``argv`` (``--config-file``, ``--config-dir``, ``--debug``...); its files replace the default ones;
    - ``overrides``, by ``option`` or ``group.option``.

    Raises ``errors.Misconfigured`` if a file is missing or cannot be parsed, or if a value or an override is invalid. ``--help`` or
    an unknown option in ``argv`` raises ``SystemExit``.
    """
    conf = cfg.ConfigOpts()
    logs.register_options(conf)
    for listing in listings:
        for group, options in listing:
            conf.register_opts(options, group=group)
    try:
        conf(
            list(argv),
            project=PROJECT,
            default_config_files=None if files is None else [str(file) for file in files],
            default_config_dirs=None if files is None else [],
        )
        for name, value in (overrides or {}).items():
            group, _, option = name.rpartition(".")
            conf.set_override(option, value, group=group or None)
        _check_values(conf, listings)
    except (cfg.Error, ValueError) as error:
        raise errors.Misconfigured(f"Configuration: {' '.join(str(error).split())}") from error
    return conf


def _check_values(conf: cfg.ConfigOpts, listings: Sequence[Listing]) -> None:
    """Read every value now: oslo.config validates a value when it is first read, which could be in the middle of a role's work."""
    for listing in listings:
        for group, options in listing:
            for option in options:
                try:
                    conf[group][option.dest] if group else conf[option.dest]
                except cfg.NoSuchOptError as error:  # it names only the missing option, not the one that refers to it
                    named = f"[{group or 'DEFAULT'}] {option.dest}"
                    raise ValueError(f"{named}: a $ in its value is followed by no option name; write $$ for a $") from error
